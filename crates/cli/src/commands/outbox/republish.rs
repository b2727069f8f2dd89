use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use hapax::Timestamp;
use hapax::outbox::RowId;
use serde_json::json;

use super::OutboxPlace;
use super::print::plural;
use crate::admin::api::outbox::STEP;
use crate::admin::api::values::time;
use crate::commands::instant::instant;
use crate::commands::print::line;
use crate::serve::exit::{CommandError, request};

#[derive(Debug, clap::Args)]
pub(super) struct RepublishArgs {
    /// Events that were published at this time or later: 2026-01-31T12:00:00Z, or 2h for two hours ago
    #[arg(long, value_name = "TIME", value_parser = instant)]
    since: Timestamp,

    /// Only events that were published before this time [default: now, on the clock of the database]
    #[arg(long, value_name = "TIME", value_parser = instant)]
    until: Option<Timestamp>,

    #[command(flatten)]
    place: OutboxPlace,
}

/// How often a long republication says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

pub(super) async fn run(args: &RepublishArgs) -> Result<ExitCode, CommandError> {
    let is_empty = || CommandError::usage(anyhow!("--since must be before --until, and before now"));
    if args.until.is_some_and(|until| until <= args.since) {
        return Err(is_empty());
    }
    let outbox = args.place.open().await?;
    if args.until.is_none() && request(outbox.now()).await? <= args.since {
        return Err(is_empty());
    }
    // First: a row whose mark counts is published before the end, and each other one is published once more.
    request(outbox.begin_republication()).await?;
    // An end, so that events which a relay publishes meanwhile are not opened again and again. It is on the clock that
    // published the rows, because that of this host may be behind.
    let until = match args.until {
        Some(until) => until,
        None => request(outbox.now()).await?,
    };
    let published = args.since..until;
    let (mut opened, mut last, mut printed) = (0, RowId(0), Instant::now());
    while let Some(step) = request(outbox.republish(&published, last, STEP)).await? {
        last = step.last;
        opened += u64::try_from(step.rows).unwrap_or(u64::MAX);
        if printed.elapsed() >= PROGRESS_EVERY {
            printed = Instant::now();
            eprintln!("looked at the rows up to {}, and opened {opened}", last.0);
        }
    }
    line(&if args.place.json {
        json!({ "rows": opened, "since": time(published.start), "until": time(published.end) }).to_string()
    } else {
        format!("{} to be published again", plural(opened, "row"))
    })?;
    Ok(ExitCode::SUCCESS)
}

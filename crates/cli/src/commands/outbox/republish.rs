use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde_json::json;

use super::OutboxPlace;
use super::print::plural;
use crate::admin::api::outbox::Republish;
use crate::admin::api::values::RowNumber;
use crate::commands::instant::instant;
use crate::commands::print::line;
use crate::serve::exit::CommandError;

#[derive(Debug, clap::Args)]
pub(super) struct RepublishArgs {
    /// Events that were published at this time or later: 2026-01-31T12:00:00Z, or 2h for two hours ago
    #[arg(long, value_name = "TIME", value_parser = instant)]
    since: humantime::Timestamp,

    /// Only events that were published before this time [default: now, on the clock of the database]
    #[arg(long, value_name = "TIME", value_parser = instant)]
    until: Option<humantime::Timestamp>,

    #[command(flatten)]
    place: OutboxPlace,
}

/// How often a long republication says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

pub(super) async fn run(args: &RepublishArgs) -> Result<ExitCode, CommandError> {
    if args.until.is_some_and(|until| *until <= *args.since) {
        return Err(CommandError::usage(anyhow!("--since must be before --until")));
    }
    let place = args.place.open().await?;
    let (mut rows, mut printed) = (0, Instant::now());
    let mut call = Republish { since: args.since, until: args.until, after: RowNumber::default() };
    let until = loop {
        let step = place.ask(&call).await?;
        rows += u64::try_from(step.rows).unwrap_or(u64::MAX);
        let Some(next) = step.next else { break step.until };
        // The first call has set the end.
        (call.after, call.until) = (next, Some(step.until));
        if printed.elapsed() >= PROGRESS_EVERY {
            printed = Instant::now();
            eprintln!("looked at the rows up to {next}, and opened {rows}");
        }
    };
    line(&if args.place.json {
        json!({ "rows": rows, "since": args.since.to_string(), "until": until.to_string() }).to_string()
    } else {
        format!("{} to be published again", plural(rows, "row"))
    })?;
    Ok(ExitCode::SUCCESS)
}

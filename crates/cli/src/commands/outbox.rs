//! `hapax outbox`: lists the keys that wait for an operator, shows an event, lets keys go on, drops an event that was
//! refused, and publishes events again.

mod print;
mod republish;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::anyhow;
use hapax::EventId;
use hapax::runtime::Tokio;
use hapax_systems::StoreUrl;

use super::print::{line, object};
use crate::admin::api::AdminApi;
use crate::admin::api::calls::{LARGEST_PAGE, members};
use crate::admin::api::ordering_key::OrderingKey;
use crate::admin::api::outbox::{DropEvent, ListParked, ParkedView, ResumeKey, ShowEvent};
use crate::place::{AdminArgs, AuditArgs, CalledPlace};
use crate::serve::exit::CommandError;
use crate::store::opening::{open_outbox, read_url};
use republish::RepublishArgs;

/// The arguments of `hapax outbox`.
#[derive(Debug, clap::Args)]
pub(crate) struct OutboxArgs {
    #[command(subcommand)]
    action: OutboxCommand,
}

#[derive(Debug, clap::Subcommand)]
enum OutboxCommand {
    /// List the parked keys, the one that was parked first at the front, and count the rows that wait
    ///
    /// The sink refused an event of each of these keys for good. The events of the key wait, and other keys go on. A
    /// key that is not plain text is printed as hex: and its digits, and every command takes it like that.
    ///
    /// With --json, each line is one object: those of keys have the field `key`, and the last one has `counts`.
    List(ListParkedArgs),
    /// Show one event: its attributes, its state and its headers
    Show(ShowEventArgs),
    /// Let parked keys go on, once their events can be published
    ///
    /// The rows of a key are opened in parts, and published when all of them are open. An event that the sink refuses
    /// again parks its key again.
    Resume(ResumeArgs),
    /// Drop the event for which a key was parked: it is never published
    ///
    /// The key stays parked until `hapax outbox resume`.
    Drop(DropEventArgs),
    /// Publish events again that were published before, for instance after a broker lost them
    ///
    /// They keep their ids, so that a consumer with a ledger or an inbox runs each of them once. For the broker they
    /// have other ones: it takes them also if it remembers what it has lost. They arrive behind newer events of their
    /// keys. Rows that were removed after --retention of the relay cannot come back.
    ///
    /// Relays may run meanwhile. What they publish before this command begins, and mark later, is published again, too.
    Republish(RepublishArgs),
}

/// Where the outbox is.
#[derive(Debug, clap::Args)]
struct OutboxPlace {
    #[command(flatten)]
    admin: AdminArgs,

    #[arg(long, value_name = "URL", env = "HAPAX_DATABASE", hide_env_values = true)]
    #[arg(help = format!("The database of the outbox: {}", StoreUrl::database_forms()))]
    database: Option<String>,

    #[command(flatten)]
    audit: AuditArgs,

    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct ListParkedArgs {
    #[command(flatten)]
    place: OutboxPlace,
}

#[derive(Debug, clap::Args)]
struct ShowEventArgs {
    /// The id of the event
    id: EventId,

    /// Print the payload, too
    #[arg(long)]
    payload: bool,

    #[command(flatten)]
    place: OutboxPlace,
}

#[derive(Debug, clap::Args)]
struct ResumeArgs {
    /// The keys, as the list prints them
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    keys: Vec<OrderingKey>,

    /// Resume all parked keys
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    place: OutboxPlace,
}

#[derive(Debug, clap::Args)]
struct DropEventArgs {
    /// The key, as the list prints it
    key: OrderingKey,

    /// The event that you saw: nothing is dropped if the key is parked for another one by now
    #[arg(long, value_name = "ID")]
    event: Option<EventId>,

    /// Your word that nobody needs the event any more
    #[arg(long, required_unless_present = "dry_run")]
    yes: bool,

    /// Print which event would be dropped, and drop nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    place: OutboxPlace,
}

pub(crate) async fn run(args: OutboxArgs) -> Result<ExitCode, CommandError> {
    match args.action {
        OutboxCommand::List(args) => list(&args).await,
        OutboxCommand::Show(args) => show(&args).await,
        OutboxCommand::Resume(args) => resume(args).await,
        OutboxCommand::Drop(args) => drop_refused(&args).await,
        OutboxCommand::Republish(args) => republish::run(&args).await,
    }
}

impl OutboxPlace {
    async fn open(&self) -> Result<CalledPlace, CommandError> {
        if let Some(process) = self.admin.open()? {
            return Ok(process);
        }
        let missing = || CommandError::usage(anyhow!("name the place by --admin URL or --database URL"));
        let url = read_url("--database", self.database.as_ref().ok_or_else(missing)?, StoreUrl::database_forms)?;
        let opened = open_outbox(&url, Arc::new(Tokio::current())).await?;
        Ok(self.audit.place(&url, |api| AdminApi { outbox: Some(opened), ..api }))
    }
}

async fn list(args: &ListParkedArgs) -> Result<ExitCode, CommandError> {
    let (place, mut ask) = (args.place.open().await?, ListParked { cursor: None, limit: Some(LARGEST_PAGE) });
    loop {
        let page = place.ask(&ask).await?;
        for parked in &page.parked {
            if !line(&print::parked(parked, args.place.json))? {
                return Ok(ExitCode::SUCCESS);
            }
        }
        ask.cursor = page.next;
        if ask.cursor.is_none() {
            line(&print::counts(page.counts, args.place.json))?;
            return Ok(ExitCode::SUCCESS);
        }
    }
}

async fn show(args: &ShowEventArgs) -> Result<ExitCode, CommandError> {
    let shown = args.place.open().await?.ask(&ShowEvent { id: args.id, payload: args.payload }).await?;
    line(&object(members(&shown), args.place.json))?;
    Ok(ExitCode::SUCCESS)
}

async fn resume(args: ResumeArgs) -> Result<ExitCode, CommandError> {
    let place = args.place.open().await?;
    let keys =
        if args.all { find_all(&place).await?.into_iter().map(|parked| parked.key).collect() } else { args.keys };
    let (mut missing, count) = (0_usize, keys.len());
    for key in keys {
        let call = ResumeKey { key };
        let opened = resume_key(&place, &call).await?;
        missing += usize::from(opened.is_none());
        // The others are resumed also if nobody reads what is printed.
        line(&print::resumed(&call.key, opened, args.place.json))?;
    }
    // With --all, somebody else may have resumed one in the meantime.
    if missing > 0 && !args.all {
        return Err(CommandError::failed(anyhow!("{missing} of {count} keys are not parked")));
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens all rows of a key. Returns how many, or None if the key is not parked.
async fn resume_key(place: &CalledPlace, call: &ResumeKey) -> Result<Option<usize>, CommandError> {
    let mut opened = None;
    while let Ok(resumed) = place.attempt(call).await? {
        opened = Some(opened.unwrap_or(0) + resumed.rows);
        if resumed.is_complete {
            break;
        }
    }
    Ok(opened)
}

/// All parked keys. They are collected first: a key that is parked again goes to the end of the list, so that the list
/// might never end.
async fn find_all(place: &CalledPlace) -> Result<Vec<ParkedView>, CommandError> {
    let (mut found, mut ask) = (Vec::new(), ListParked { cursor: None, limit: Some(LARGEST_PAGE) });
    loop {
        let page = place.ask(&ask).await?;
        found.extend(page.parked);
        ask.cursor = page.next;
        if ask.cursor.is_none() {
            return Ok(found);
        }
    }
}

async fn drop_refused(args: &DropEventArgs) -> Result<ExitCode, CommandError> {
    let (place, key) = (args.place.open().await?, args.key.clone());
    let event = match args.event {
        Some(event) => event,
        None => {
            let parked = find_all(&place).await?.into_iter().find(|parked| parked.key == key);
            parked.ok_or_else(|| CommandError::failed(anyhow!("the key {key} is not parked")))?.event
        }
    };
    if !args.dry_run {
        place.ask(&DropEvent { key, event }).await?;
    }
    line(&print::dropped(&args.key, event, (args.dry_run, args.place.json)))?;
    Ok(ExitCode::SUCCESS)
}

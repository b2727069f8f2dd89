//! `hapax keys`: lists records, shows one, and resolves, reopens, releases and removes them.

mod print;
mod which;
mod write;

use std::path::PathBuf;
use std::process::ExitCode;

use hapax::OperationId;

use super::print::{line, object};
use crate::admin::api::calls::{LARGEST_PAGE, members};
use crate::admin::api::records::writes::{ReleaseDecision, ReopenDecision};
use crate::admin::api::records::{ListRecords, ShowRecord};
use crate::place::PlaceArgs;
use crate::serve::exit::CommandError;

use which::{KeyArgs, ListFilter};
use write::{PurgeArgs, ResolveArgs, WriteArgs};

/// The arguments of `hapax keys`.
#[derive(Debug, clap::Args)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    action: KeysCommand,
}

#[derive(Debug, clap::Subcommand)]
enum KeysCommand {
    /// List records, without their answers
    ///
    /// The state `unknown` has all records whose outcome is unknown, also those whose lease has only expired. A record
    /// does not name its namespace: the list has the records of all gateways and workers on the store.
    List(ListRecordsArgs),
    /// Show one record
    Show(ShowRecordArgs),
    /// Write down what happened to an operation whose outcome is unknown
    ///
    /// With --done, every retry gets the answer that you give. With --not-done, the next retry runs. Make sure first
    /// that no attempt still runs: without a ledger, a late effect is not noticed.
    Resolve(ResolveArgs),
    /// Let a dead record be tried again
    Reopen(WriteArgs),
    /// Free a key whose operation did not happen, as `resolve --not-done`
    Release(WriteArgs),
    /// Remove a record, so that its key is as if it had never been used
    Purge(PurgeArgs),
}

#[derive(Debug, clap::Args)]
struct ListRecordsArgs {
    #[command(flatten)]
    filter: ListFilter,

    /// Only the record of this operation, whose id is in logs and in the request that the API got
    #[arg(long, value_name = "ID")]
    operation: Option<OperationId>,

    /// Print at most so many records
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, clap::Args)]
struct ShowRecordArgs {
    #[command(flatten)]
    key: KeyArgs,

    /// Print the recorded answer, too
    #[arg(long)]
    answer: bool,

    #[command(flatten)]
    place: PlaceArgs,
}

pub(crate) async fn run(args: KeysArgs) -> Result<ExitCode, CommandError> {
    match args.action {
        KeysCommand::List(args) => list(&args).await,
        KeysCommand::Show(args) => show(&args).await,
        KeysCommand::Resolve(args) => args.run().await,
        KeysCommand::Reopen(args) => args.write(&ReopenDecision {}).await,
        KeysCommand::Release(args) => args.write(&ReleaseDecision {}).await,
        KeysCommand::Purge(args) => args.run().await,
    }
}

async fn list(args: &ListRecordsArgs) -> Result<ExitCode, CommandError> {
    let place = args.place.open().await?;
    let (mut left, mut is_first) = (args.limit.unwrap_or(usize::MAX), true);
    let mut ask = ListRecords { operation: args.operation, ..args.filter.ask() };
    while left > 0 {
        ask.limit = Some(left.min(LARGEST_PAGE));
        let page = place.ask(&ask).await?;
        for rk in &page.damaged {
            eprintln!("the record {rk} cannot be read: it was altered, or another release wrote it");
        }
        for record in page.records.iter().take(left) {
            if is_first && !args.place.json {
                line(&print::header())?;
            }
            (is_first, left) = (false, left - 1);
            if !line(&print::listed(record, args.place.json))? {
                return Ok(ExitCode::SUCCESS);
            }
        }
        ask.cursor = page.next;
        if ask.cursor.is_none() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(args: &ShowRecordArgs) -> Result<ExitCode, CommandError> {
    let place = args.place.open().await?;
    let rk = args.key.record_key(&place).await?;
    let record = place.ask(&ShowRecord { rk, answer: args.answer }).await?;
    line(&object(members(&record), args.place.json))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads `@FILE`, the form in which a flag names a file.
fn file(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix('@').filter(|path| !path.is_empty());
    path.map(PathBuf::from).ok_or_else(|| "name a file: @FILE".into())
}

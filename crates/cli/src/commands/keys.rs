//! `hapax keys`: lists records, shows one, and resolves, reopens, releases and removes them.

mod print;
mod which;
mod write;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use hapax::OperationId;
use serde_json::Value;

use super::print::line;
use crate::place::{KeysPlace, PlaceArgs};
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
    /// The state `indeterminate` has all records whose outcome is unknown: those that are held, and those whose lease
    /// has expired. A record does not name its namespace: the list has the records of all gateways and workers on the
    /// store.
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
        KeysCommand::Reopen(args) => args.run("reopen").await,
        KeysCommand::Release(args) => args.run("release").await,
        KeysCommand::Purge(args) => args.run().await,
    }
}

async fn list(args: &ListRecordsArgs) -> Result<ExitCode, CommandError> {
    let place = args.place.open().await?;
    let mut pages = Pages::new(&args.filter, args.operation);
    let (mut left, mut is_first) = (args.limit.unwrap_or(usize::MAX), true);
    while left > 0
        && let Some(page) = pages.next(&place, left).await?
    {
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
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(args: &ShowRecordArgs) -> Result<ExitCode, CommandError> {
    let place = args.place.open().await?;
    let rk = args.key.record_key(&place).await?;
    let answer = if args.answer { "answer=true" } else { "" };
    let record = place.get(&format!("records/{rk}"), answer).await?;
    line(&print::shown(record, args.place.json))?;
    Ok(ExitCode::SUCCESS)
}

/// The pages of a list.
#[derive(Debug)]
struct Pages {
    filter: String,
    /// None at the end.
    cursor: Option<String>,
}

#[derive(Debug)]
struct Page {
    records: Vec<Value>,
    damaged: Vec<String>,
}

/// How many records one request asks for.
const PAGE: usize = 500;

impl Pages {
    fn new(filter: &ListFilter, operation: Option<OperationId>) -> Self {
        let operation = operation.map(|id| format!("&operation={id}")).unwrap_or_default();
        Self { filter: filter.query() + &operation, cursor: Some(String::new()) }
    }

    /// The next page; None behind the last one. A page may have no records, and more than `limit`.
    async fn next(&mut self, place: &KeysPlace, limit: usize) -> Result<Option<Page>, CommandError> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        let cursor = if cursor.is_empty() { cursor } else { format!("&cursor={cursor}") };
        let query = format!("limit={}{}{cursor}", limit.min(PAGE), self.filter);
        let mut page = place.get("records", &query).await?;
        self.cursor = page["next"].as_str().map(str::to_owned);
        let damaged = page["damaged"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        let damaged = damaged.collect();
        let Value::Array(records) = page["records"].take() else {
            return Err(CommandError::cannot_start(anyhow!("the answer has no list of records: {page}")));
        };
        Ok(Some(Page { records, damaged }))
    }
}

/// Reads `@FILE`, the form in which a flag names a file.
fn file(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix('@').filter(|path| !path.is_empty());
    path.map(PathBuf::from).ok_or_else(|| "name a file: @FILE".into())
}

fn duration(text: &str) -> Result<Duration, humantime::DurationError> {
    humantime::parse_duration(text)
}

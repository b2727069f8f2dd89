//! Commands that write records: one, or many at once.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};

use super::which::ListFilter;
use super::{file, print};
use crate::admin::api::calls::{LARGEST_PAGE, RecordName};
use crate::admin::api::records::writes::{
    FoundOutcome, PurgeDecision, RecordBeforeAndAfter, RecordDecision, ResolveDecision, SeenToken, WriteRecord,
};
use crate::commands::print::line;
use crate::commands::progress::CommandProgress;
use crate::files;
use crate::place::PlaceArgs;
use crate::serve::exit::CommandError;

#[derive(Debug, clap::Args)]
pub(super) struct WriteArgs {
    /// The record key: 32 hexadecimal digits, or the URN from the `instance` of a problem
    #[arg(value_name = "RK", required_unless_present = "state")]
    rk: Option<RecordName>,

    /// The token that you saw: the record is written only if it has not changed since
    #[arg(long, value_name = "N", requires = "rk")]
    token: Option<u64>,

    #[command(flatten)]
    filter: ListFilter,

    /// Your word that records of other gateways and workers may be written, too
    ///
    /// A record does not name its namespace, so --state and --older-than find the records of every gateway and worker
    /// on the store. A write of many records needs this flag.
    #[arg(long, conflicts_with = "rk")]
    all_namespaces: bool,

    /// Print what would be written, and what would be refused, and write nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct ResolveArgs {
    #[command(flatten)]
    verdict: VerdictArgs,

    /// The status of the answer
    #[arg(long, value_name = "N", requires = "done")]
    status: Option<u16>,

    /// A header field of the answer, may be given several times: 'Content-Type: application/json'
    #[arg(long, value_name = "FIELD", requires = "status", value_parser = header)]
    header: Vec<(String, String)>,

    /// A file with the body of the answer: @FILE
    #[arg(long, value_name = "@FILE", requires = "status", value_parser = file)]
    body: Option<PathBuf>,

    /// The record is that of a worker: its message was processed, and has no response
    #[arg(long, requires = "done", conflicts_with = "status")]
    message: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// The decision of the operator. A group, so that an error names both words.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct VerdictArgs {
    /// It happened: every retry gets this answer
    #[arg(long)]
    done: bool,

    /// It did not happen, and no attempt still runs: the next retry runs
    #[arg(long)]
    not_done: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct PurgeArgs {
    /// Remove a record whose outcome is unknown, too: a retry may then run the operation a second time
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    write: WriteArgs,
}

/// Why a write of many records may reach further than its user thinks.
const ALL_NAMESPACES: &str =
    "records do not name their namespace: these are the records of all gateways and workers on this store";

fn header(field: &str) -> Result<(String, String), String> {
    let (name, value) = field.split_once(':').ok_or("write NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl ResolveArgs {
    pub(super) async fn run(&self) -> Result<ExitCode, CommandError> {
        self.write.write(&self.decision().map_err(CommandError::usage)?).await
    }

    fn decision(&self) -> Result<ResolveDecision, anyhow::Error> {
        let outcome = match (self.verdict.not_done, self.status) {
            (true, _) => FoundOutcome::NotDone,
            (false, None) if self.message => FoundOutcome::Processed,
            (false, None) => bail!("--done needs --status N, the answer of every retry, or --message for a worker"),
            (false, Some(_)) => FoundOutcome::Done,
        };
        let body = self.body.as_deref().map(files::read).transpose().context("--body")?;
        let body = body.map(|body| (&*body).into());
        Ok(ResolveDecision { outcome, status: self.status, headers: self.header.clone(), body })
    }
}

impl PurgeArgs {
    pub(super) async fn run(&self) -> Result<ExitCode, CommandError> {
        self.write.write(&PurgeDecision { force: self.force }).await
    }
}

impl WriteArgs {
    pub(super) async fn write<D: RecordDecision + Clone>(&self, decision: &D) -> Result<ExitCode, CommandError> {
        let is_many = self.filter.state.is_some() || self.filter.older_than.is_some();
        match (self.rk, self.token) {
            (Some(_), _) if is_many => {
                Err(CommandError::usage(anyhow!("--state and --older-than are for many records, and RK is one")))
            }
            (Some(rk), Some(token)) => {
                let place = self.place.open().await?;
                self.print(D::NAME, &place.ask(&self.call((rk, token), decision)).await?)?;
                Ok(ExitCode::SUCCESS)
            }
            (Some(rk), None) => {
                let message = anyhow!("add --token N, the token that `hapax keys show {rk}` prints");
                Err(CommandError::usage(message))
            }
            (None, _) if !self.all_namespaces && !self.dry_run => {
                Err(CommandError::usage(anyhow!("{ALL_NAMESPACES}; add --all-namespaces if you mean all of them")))
            }
            (None, _) => self.write_many(decision).await,
        }
    }

    fn call<D: Clone>(&self, (rk, token): (RecordName, u64), decision: &D) -> WriteRecord<D> {
        WriteRecord { seen: SeenToken { rk, token, dry_run: self.dry_run }, decision: decision.clone() }
    }

    /// Writes all records of a list, each under the token that the list had. They are collected first, so that the
    /// list does not meet what the command writes.
    async fn write_many<D: RecordDecision + Clone>(&self, decision: &D) -> Result<ExitCode, CommandError> {
        let place = self.place.open().await?;
        let (mut ask, mut found) = (self.filter.ask(), Vec::new());
        ask.limit = Some(LARGEST_PAGE);
        let mut looked = CommandProgress::of("records found");
        loop {
            let page = place.ask(&ask).await?;
            looked.add(page.records.len());
            found.extend(page.records.into_iter().map(|record| (record.rk, record.token)));
            ask.cursor = page.next;
            if ask.cursor.is_none() {
                break;
            }
        }
        // A scan may return a record twice.
        found.sort_unstable();
        found.dedup_by(|left, right| left.0 == right.0);
        drop(looked);
        let (mut refused, mut tried) = (0_usize, CommandProgress::of("records tried"));
        for record in &found {
            tried.add(1);
            match place.attempt(&self.call(*record, decision)).await? {
                Ok(done) => self.print(D::NAME, &done)?,
                Err(error) => {
                    refused += 1;
                    eprintln!("refused: {}: {}", record.0, error.detail);
                }
            }
        }
        match refused {
            _ if self.dry_run => {
                let count = found.len();
                eprintln!("{count} records, {refused} of them refused; nothing is written; {ALL_NAMESPACES}");
                Ok(ExitCode::SUCCESS)
            }
            0 => Ok(ExitCode::SUCCESS),
            _ => Err(CommandError::failed(anyhow!("{refused} of {} records are as they were", found.len()))),
        }
    }

    fn print(&self, action: &str, done: &RecordBeforeAndAfter) -> Result<(), CommandError> {
        let print = if self.dry_run { print::planned } else { print::written };
        line(&print(action, done, self.place.json)).map(drop)
    }
}

//! Commands that write records: one, or many at once.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use serde_json::{Map, Value, json};

use super::which::ListFilter;
use super::{Pages, file, print};
use crate::admin::api::ApiError;
use crate::admin::api::values::text_or_hexadecimal;
use crate::commands::print::line;
use crate::files;
use crate::place::{KeysPlace, PlaceArgs};
use crate::serve::exit::CommandError;

#[derive(Debug, clap::Args)]
pub(super) struct WriteArgs {
    /// The record key: 32 hexadecimal digits, or the URN from the `instance` of a problem
    #[arg(value_name = "RK", value_parser = super::which::read_record_key, required_unless_present = "state")]
    rk: Option<hapax::RecordKey>,

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
    /// It happened: every retry gets this answer
    #[arg(long, required_unless_present = "not_done", conflicts_with = "not_done")]
    done: bool,

    /// It did not happen, and no attempt still runs: the next retry runs
    #[arg(long)]
    not_done: bool,

    /// The status of the answer
    #[arg(long, value_name = "N", requires = "done", required_unless_present_any = ["not_done", "message"])]
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
        let body = self.outcome().map_err(CommandError::usage)?;
        self.write.write("resolve", &body).await
    }

    fn outcome(&self) -> Result<Map<String, Value>, anyhow::Error> {
        let outcome = match (self.not_done, self.status) {
            (true, _) => json!({ "outcome": "not-done" }),
            (false, None) => json!({ "outcome": "processed" }),
            (false, Some(status)) => {
                let body = self.body.as_deref().map(files::read).transpose().context("--body")?.unwrap_or_default();
                let body = text_or_hexadecimal(&body);
                json!({ "outcome": "done", "status": status, "headers": self.header, "body": body })
            }
        };
        Ok(members(outcome))
    }
}

impl PurgeArgs {
    pub(super) async fn run(&self) -> Result<ExitCode, CommandError> {
        self.write.write("purge", &members(json!({ "force": self.force }))).await
    }
}

fn members(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(members) => members,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    }
}

impl WriteArgs {
    pub(super) async fn run(&self, action: &str) -> Result<ExitCode, CommandError> {
        self.write(action, &Map::new()).await
    }

    async fn write(&self, action: &str, body: &Map<String, Value>) -> Result<ExitCode, CommandError> {
        let is_many = self.filter.state.is_some() || self.filter.older_than.is_some();
        match (self.rk, self.token) {
            (Some(_), _) if is_many => {
                Err(CommandError::usage(anyhow!("--state and --older-than are for many records, and RK is one")))
            }
            (Some(rk), Some(token)) => self.write_one(action, (rk, token), body).await,
            (Some(rk), None) => {
                let message = anyhow!("add --token N, the token that `hapax keys show {rk}` prints");
                Err(CommandError::usage(message))
            }
            (None, _) if !self.all_namespaces && !self.dry_run => {
                Err(CommandError::usage(anyhow!("{ALL_NAMESPACES}; add --all-namespaces if you mean all of them")))
            }
            (None, _) => self.write_many(action, body).await,
        }
    }

    async fn write_one(
        &self,
        action: &str,
        (rk, token): (hapax::RecordKey, u64),
        body: &Map<String, Value>,
    ) -> Result<ExitCode, CommandError> {
        let place = self.place.open().await?;
        let answer = self.send(&place, action, (&rk.to_string(), token), body).await?;
        self.print(action, &answer.map_err(|error| place.failure(error))?)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Writes all records of a list, each under the token that the list had. They are collected first, so that the
    /// list does not meet what the command writes.
    async fn write_many(&self, action: &str, body: &Map<String, Value>) -> Result<ExitCode, CommandError> {
        let place = self.place.open().await?;
        let (mut pages, mut found) = (Pages::new(&self.filter, None), Vec::new());
        while let Some(page) = pages.next(&place, usize::MAX).await? {
            for record in &page.records {
                found.extend(record["rk"].as_str().map(str::to_owned).zip(record["token"].as_u64()));
            }
        }
        // A scan may return a record twice.
        found.sort_unstable();
        found.dedup_by(|left, right| left.0 == right.0);
        let mut refused = 0_usize;
        for (rk, token) in &found {
            match self.send(&place, action, (rk, *token), body).await? {
                Ok(done) => self.print(action, &done)?,
                Err(error) => {
                    refused += 1;
                    eprintln!("refused: {rk}: {}", error.detail);
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

    async fn send(
        &self,
        place: &KeysPlace,
        action: &str,
        (rk, token): (&str, u64),
        body: &Map<String, Value>,
    ) -> Result<Result<Value, ApiError>, CommandError> {
        let mut body = body.clone();
        body.insert("token".into(), json!(token));
        if self.dry_run {
            body.insert("dry_run".into(), json!(true));
        }
        place.post(&format!("records/{rk}/{action}"), body).await
    }

    fn print(&self, action: &str, done: &Value) -> Result<(), CommandError> {
        let as_json = self.place.json;
        let text = if self.dry_run {
            print::planned(action, &done["before"], as_json)
        } else {
            print::written(action, done, as_json)
        };
        line(&text).map(drop)
    }
}

//! The audit file: one JSON object a line, for every write of an operator. Nothing in it is ever changed.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hapax::runtime::{Runtime, Tokio};
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::admin::call::{ListEvents, WriteEndpoint};
use crate::admin::{ApiError, Requester};
use crate::commands::print::time;

/// The name of the file in the directory of a store.
pub(crate) const FILE_NAME: &str = "audit.jsonl";

/// How much of the end of the file a list reads.
const READ_BACK: u64 = 16 << 20;

/// The file to which every write appends an event. Several processes may share it: each event is one write to its end.
#[derive(Clone, Debug)]
pub(crate) struct AuditFile {
    path: Arc<Path>,
    /// One event of this process after the other.
    turn: Arc<Mutex<()>>,
}

/// What happened, to what, by whom.
#[derive(Debug)]
pub(crate) struct AuditEvent(Map<String, Value>);

impl AuditEvent {
    /// The event of a write that reached the system.
    pub(crate) fn of(requester: &Requester, endpoint: &WriteEndpoint, result: &Result<Value, ApiError>) -> Self {
        let mut event = Self::begin(requester, endpoint.name);
        event.0.extend(endpoint.subject());
        match result {
            Ok(done) => {
                for member in ["before", "after"] {
                    event.0.insert(member.into(), done.get(member).cloned().unwrap_or_default());
                }
                event.0.insert("result".into(), json!("done"));
            }
            Err(error) => event.refuse(error),
        }
        event
    }

    fn begin(requester: &Requester, action: &str) -> Self {
        let now = time(Tokio::current().wall_now());
        let fields = [("time", json!(now)), ("who", requester.to_json()), ("action", json!(action))];
        Self(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    fn refuse(&mut self, error: &ApiError) {
        let result = if error.status.is_server_error() { "failed" } else { "refused" };
        self.0.insert("before".into(), error.record.clone().unwrap_or_default());
        self.0.insert("result".into(), json!(result));
        self.0.insert("error".into(), json!(error.code));
        self.0.insert("detail".into(), json!(error.detail));
    }
}

impl AuditFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path: path.into(), turn: Arc::default() }
    }

    /// Creates the file if it is missing.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) async fn check(&self) -> Result<(), ApiError> {
        let own = self.clone();
        run(move || own.open().map(drop)).await.map_err(|error| self.failed(&error))
    }

    /// Appends an event. When it returns, the event is on disk.
    ///
    /// # Errors
    /// If the file cannot be written. The write that the event tells of may have happened.
    pub(crate) async fn append(&self, event: AuditEvent) -> Result<(), ApiError> {
        let own = self.clone();
        run(move || own.append_line(&event)).await.map_err(|error| {
            let path = self.path.display();
            tracing::error!(%error, %path, "an audit event is lost: what it tells of may be done");
            self.failed(&error)
        })
    }

    /// Notes a write that was refused before its arguments were read.
    pub(crate) async fn append_refusal(&self, who: &Requester, what: &str, refusal: &ApiError) -> Result<(), ApiError> {
        let mut event = AuditEvent::begin(who, what);
        event.refuse(refusal);
        self.append(event).await
    }

    /// The newest events first.
    pub(crate) async fn read(&self, ask: ListEvents) -> Result<Value, ApiError> {
        let own = self.clone();
        run(move || own.read_back(&ask)).await.map_err(|error| self.failed(&error))
    }

    fn open(&self) -> io::Result<File> {
        if let Some(directory) = self.path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)
    }

    fn append_line(&self, event: &AuditEvent) -> io::Result<()> {
        let mut line = serde_json::to_vec(&event.0)?;
        line.push(b'\n');
        let _turn = self.turn.lock();
        let mut file = self.open()?;
        file.write_all(&line)?;
        file.sync_all()
    }

    fn read_back(&self, ask: &ListEvents) -> io::Result<Value> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(json!({ "events": [], "is_complete": true }));
            }
            Err(error) => return Err(error),
        };
        let start = file.metadata()?.len().saturating_sub(READ_BACK);
        file.seek(SeekFrom::Start(start))?;
        let mut reader = BufReader::new(file.take(READ_BACK));
        if start > 0 {
            // The end of a line.
            reader.read_until(b'\n', &mut Vec::new())?;
        }
        let wanted = ask.record.map(|rk| rk.to_string());
        let mut events = std::collections::VecDeque::new();
        for line in reader.split(b'\n') {
            // A line that was cut by a full disk is no event.
            let Ok(event) = serde_json::from_slice::<Value>(&line?) else { continue };
            if wanted.as_ref().is_none_or(|rk| event["record"] == **rk) {
                events.push_front(event);
                events.truncate(ask.limit);
            }
        }
        Ok(json!({ "events": events, "is_complete": start == 0 }))
    }

    fn failed(&self, error: &io::Error) -> ApiError {
        let detail = format!("the audit file {} cannot be used: {error}", self.path.display());
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "audit-failed", detail)
    }
}

async fn run<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

//! The audit file: JSON objects, one a line. Each write of an operator has two: one before it, and one with its result.
//! Nothing in the file is ever changed.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hapax::runtime::{Runtime, Tokio};
use http::StatusCode;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::admin::api::calls::{EventPage, RecordName, members};
use crate::admin::api::values::{hexadecimal, time};
use crate::admin::api::{ApiError, Requester};
use crate::files::{Links, open_appended, open_to_append};

/// The name of the file in the directory of a store.
pub(crate) const FILE_NAME: &str = "audit.jsonl";

/// The error of a write that is done, and whose result is not in the file.
pub(crate) const INCOMPLETE: &str = "audit-incomplete";

/// How much of the end of the file a list reads.
const READ_BACK: u64 = 16 << 20;

/// The file to which every write appends its events. Several processes may share it: each event is one call that writes
/// to its end.
#[derive(Clone, Debug)]
pub(crate) struct AuditFile {
    path: Arc<Path>,
    /// One event of this process after the other.
    turn: Arc<Mutex<()>>,
}

/// A write, as its events describe it: what happens, to what, by whom.
#[derive(Debug)]
pub(crate) struct AuditedWrite(Map<String, Value>);

impl AuditedWrite {
    /// A write with this subject: its target and its arguments.
    pub(crate) fn new(requester: &Requester, action: &str, subject: &Value) -> Self {
        let mut fields = members(subject);
        // `write` ties the two events together.
        fields.extend(members(&json!({ "who": requester, "action": action, "write": new_id() })));
        Self(fields)
    }

    fn event(&self, result: Value) -> Value {
        let mut event = self.0.clone();
        event.insert("time".into(), json!(time(Tokio::current().wall_now())));
        event.extend(members(&result));
        Value::Object(event)
    }

    fn begun(&self) -> Value {
        self.event(json!({ "result": BEGUN }))
    }

    fn ended<T: Serialize>(&self, result: &Result<T, ApiError>) -> Value {
        self.event(match result {
            Ok(done) => {
                let done = members(done);
                json!({ "result": "done", "before": done.get("before"), "after": done.get("after") })
            }
            Err(error) => {
                let result = if error.status.is_server_error() { "failed" } else { "refused" };
                json!({ "result": result, "before": error.record, "error": error.code, "detail": error.detail })
            }
        })
    }
}

/// The result of the event before a write.
const BEGUN: &str = "begun";

impl AuditFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path: path.into(), turn: Arc::default() }
    }

    /// Carries out a write between its two events. When this returns, both are on disk.
    ///
    /// # Errors
    /// `audit-failed` if the first event cannot be written: then the write is not carried out. `audit-incomplete` if it
    /// is done and the second event cannot be written. Otherwise those of the write.
    pub(crate) async fn around<T: Serialize>(
        &self,
        write: &AuditedWrite,
        carry_out: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        self.append(write.begun()).await.map_err(|error| {
            let mut failed = self.failed(&error);
            failed.detail += "; nothing is written";
            failed
        })?;
        let result = carry_out.await;
        match self.append(write.ended(&result)).await {
            Ok(()) => result,
            Err(error) => {
                let (path, id) = (self.path.display(), write.0.get("write").and_then(Value::as_str));
                tracing::error!(%error, %path, write = id, "the result of a write is not in the audit file");
                result.and_then(|_| Err(self.incomplete(&error)))
            }
        }
    }

    async fn append(&self, event: Value) -> io::Result<()> {
        let own = self.clone();
        run(move || own.append_line(&event)).await
    }

    /// The newest events first.
    pub(crate) async fn read(&self, record: Option<RecordName>, limit: usize) -> Result<EventPage, ApiError> {
        let own = self.clone();
        run(move || own.read_back(record, limit)).await.map_err(|error| self.failed(&error))
    }

    fn open(&self) -> io::Result<File> {
        if let Some(directory) = self.path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        open_to_append(&self.path, Links::Refused)
    }

    fn append_line(&self, event: &Value) -> io::Result<()> {
        let _turn = self.turn.lock();
        let mut file = self.open()?;
        let mut line = Vec::new();
        // A full disk may have cut the last line.
        if is_cut(&file)? {
            line.push(b'\n');
        }
        serde_json::to_writer(&mut line, event)?;
        line.push(b'\n');
        file.write_all(&line)?;
        file.sync_all()
    }

    fn read_back(&self, record: Option<RecordName>, limit: usize) -> io::Result<EventPage> {
        let mut file = match open_appended(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(EventPage { events: Vec::new(), is_complete: true });
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
        let wanted = record.map(|rk| rk.to_string());
        // A write has two events, and the second one replaces the first. So many hold at least `limit` writes.
        let mut events = VecDeque::new();
        for line in reader.split(b'\n') {
            // A line that was cut by a full disk is no event.
            let Ok(event) = serde_json::from_slice::<Value>(&line?) else { continue };
            if wanted.as_ref().is_none_or(|rk| event["record"] == **rk) {
                events.push_front(event);
                events.truncate(2 * limit);
            }
        }
        remove_ended(&mut events);
        events.truncate(limit);
        Ok(EventPage { events: events.into(), is_complete: start == 0 })
    }

    fn failed(&self, error: &io::Error) -> ApiError {
        let detail = format!("the audit file {} cannot be used: {error}", self.path.display());
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "audit-failed", detail)
    }

    fn incomplete(&self, error: &io::Error) -> ApiError {
        let path = self.path.display();
        let detail = format!("the write is done, but the audit file {path} does not have its result: {error}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, INCOMPLETE, detail)
    }
}

fn new_id() -> String {
    let mut id = [0; 8];
    Tokio::current().fill_random(&mut id);
    hexadecimal(&id)
}

/// Whether the file has content that does not end with a newline.
fn is_cut(file: &File) -> io::Result<bool> {
    let Some(last) = file.metadata()?.len().checked_sub(1) else { return Ok(false) };
    let mut end = [0];
    file.read_exact_at(&mut end, last)?;
    Ok(end != *b"\n")
}

/// Removes the first event of each write that has a second one.
fn remove_ended(events: &mut VecDeque<Value>) {
    let is_begun = |event: &Value| event["result"] == BEGUN;
    let ended: HashSet<String> = events
        .iter()
        .filter(|event| !is_begun(event))
        .filter_map(|event| event["write"].as_str().map(str::to_owned))
        .collect();
    events.retain(|event| !is_begun(event) || !event["write"].as_str().is_some_and(|write| ended.contains(write)));
}

async fn run<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RK: &str = "0123456789abcdef0123456789abcdef";

    fn purge() -> AuditedWrite {
        let subject = json!({ "record": RK, "token": 7, "arguments": { "force": true } });
        AuditedWrite::new(&Requester::user(), "purge", &subject)
    }

    async fn write(audit: &AuditFile, result: Result<Value, ApiError>) -> Result<Value, ApiError> {
        audit.around(&purge(), async { result }).await
    }

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    #[tokio::test]
    async fn a_write_has_an_event_before_it_and_one_with_its_result() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        let audit = AuditFile::new(path.clone());
        let seen = path.clone();
        let begun = audit.around(&purge(), async move { Ok(json!(lines(&seen))) }).await.unwrap();
        assert_eq!((&begun[0]["result"], &begun[0]["token"], begun[1].is_null()), (&json!("begun"), &json!(7), true));
        assert_eq!(begun[0]["arguments"], json!({ "force": true }));
        write(&audit, Err(ApiError::not_found("no record"))).await.unwrap_err();
        let results: Vec<_> = lines(&path).iter().map(|event| event["result"].clone()).collect();
        assert_eq!(results, ["begun", "done", "begun", "refused"]);
        // A list has one event for each write.
        let list = || audit.read(Some(RK.parse().unwrap()), 2);
        let listed = list().await.unwrap();
        let results =
            |listed: &EventPage| -> Vec<Value> { listed.events.iter().map(|event| event["result"].clone()).collect() };
        assert_eq!(results(&listed), ["refused", "done"]);
        // And the first one of a write that did not end.
        audit.append(purge().begun()).await.unwrap();
        assert_eq!(results(&list().await.unwrap()), ["begun", "refused"]);
    }

    #[tokio::test]
    async fn without_its_first_event_a_write_is_not_carried_out() {
        let audit = AuditFile::new("/dev/full".into());
        let refused = audit.around::<Value>(&purge(), async { panic!("it is carried out") }).await;
        let refused = refused.unwrap_err();
        assert!(refused.code == "audit-failed" && refused.detail.ends_with("nothing is written"), "{refused:?}");
    }

    #[tokio::test]
    async fn a_write_whose_result_cannot_be_noted_says_that_it_is_done() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        let audit = AuditFile::new(path.clone());
        let fill = async {
            std::fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        };
        let write = async {
            fill.await;
            Ok(json!({}))
        };
        let answered = audit.around(&purge(), write).await.unwrap_err();
        assert!(answered.code == INCOMPLETE && answered.detail.starts_with("the write is done"), "{answered:?}");
        std::fs::remove_file(&path).unwrap();
        let refused = ApiError::not_found("no record");
        let fail = async {
            std::os::unix::fs::symlink("/dev/full", directory.path().join("full")).unwrap();
            std::fs::rename(directory.path().join("full"), &path).unwrap();
            Err(refused)
        };
        let answered = audit.around::<Value>(&purge(), fail).await.unwrap_err();
        assert_eq!(answered.code, "not-found", "nothing is done, so the refusal is the answer");
    }

    #[tokio::test]
    async fn an_event_behind_a_cut_line_has_a_line_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        std::fs::write(&path, "{\"time\":\"2026-01-31T12:00:00Z\",\"who\":{\"na").unwrap();
        let audit = AuditFile::new(path.clone());
        write(&audit, Ok(json!({}))).await.unwrap();
        assert_eq!(lines(&path).len(), 2, "both events can be read");
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3, "the file has no other line");
    }
}

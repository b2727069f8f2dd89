//! The endpoints of the API.

use std::time::Duration;

use hapax::broker::{DeadCursor, DeadLetterId, DeadReason, LetterWord, SeenLetter};
use hapax::outbox::RowId;
use hapax::store::ScanPosition;
use hapax::{EventId, OperationId, RecordKey, Timestamp};
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use crate::admin::api::call::body::WriteBody;
use crate::admin::api::call::query::Query;
use crate::admin::api::ordering_key::OrderingKey;
use crate::admin::api::record::RecordFilter;
use crate::admin::api::{AllowedMethod, ApiError};

mod body;
mod query;

pub(crate) use body::{FoundOutcome, unhex};

/// A call with all its arguments.
#[derive(Clone, Debug)]
pub(crate) enum ApiCall {
    Read(ReadEndpoint),
    Write(WriteEndpoint),
}

#[derive(Clone, Debug)]
pub(crate) enum ReadEndpoint {
    Records(ListRecords),
    /// With the recorded answer, if that is wanted.
    Record(RecordKey, bool),
    DeadLetters(ListLetters),
    DeadLetter(DeadLetterId, bool),
    Outbox(ListParked),
    Event(EventId, bool),
    Policy,
    Audit(ListEvents),
    OpenApi,
}

/// What to write, and what its audit event says.
#[derive(Clone, Debug)]
pub(crate) struct WriteEndpoint {
    /// `resolve`, for instance.
    pub(crate) name: &'static str,
    pub(crate) target: WriteTarget,
}

#[derive(Clone, Debug)]
pub(crate) enum WriteTarget {
    Record(RecordKey, RecordAction),
    DeadLetter(DeadLetterId, LetterWrite),
    Outbox(OutboxAction),
}

/// What an operator does to a record, under the token that the operator saw.
#[derive(Clone, Debug)]
pub(crate) struct RecordAction {
    pub(crate) token: u64,
    pub(crate) change: RecordChange,
    /// Only decide, and write nothing.
    pub(crate) is_dry_run: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum RecordChange {
    Resolve(FoundOutcome),
    Reopen,
    /// As a resolution to `not-done`.
    Release,
    Purge {
        force: bool,
    },
}

impl RecordChange {
    fn arguments(&self) -> Value {
        match self {
            Self::Resolve(FoundOutcome::Response { status, .. }) => {
                json!({ "outcome": "done", "status": status.as_u16() })
            }
            Self::Resolve(FoundOutcome::Processed) => json!({ "outcome": "processed" }),
            Self::Resolve(FoundOutcome::NotDone) => json!({ "outcome": "not-done" }),
            Self::Purge { force } => json!({ "force": force }),
            Self::Reopen | Self::Release => json!({}),
        }
    }
}

/// What an operator does to a dead letter, as the operator saw it.
#[derive(Clone, Debug)]
pub(crate) struct LetterWrite {
    pub(crate) seen: SeenLetter,
    pub(crate) action: LetterAction,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum LetterAction {
    /// With the word of an operator about the outcome.
    Redrive(Option<LetterWord>),
    Drop,
}

impl LetterAction {
    fn arguments(self) -> Option<Value> {
        match self {
            Self::Redrive(word) => Some(json!({
                "not_done": word == Some(LetterWord::NotDone),
                "done": word == Some(LetterWord::Done),
            })),
            Self::Drop => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum OutboxAction {
    Resume(OrderingKey),
    /// With the event that the operator saw.
    Drop(OrderingKey, EventId),
    Republish {
        since: Timestamp,
        /// The time of the call on the clock of the database, if there is none.
        until: Option<Timestamp>,
        after: RowId,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct ListRecords {
    pub(crate) filter: Option<RecordFilter>,
    pub(crate) idle_for: Duration,
    pub(crate) operation: Option<OperationId>,
    pub(crate) from: Option<ScanPosition>,
    pub(crate) limit: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct ListLetters {
    pub(crate) reason: Option<DeadReason>,
    pub(crate) source: Option<String>,
    pub(crate) older_than: Option<Duration>,
    pub(crate) after: Option<DeadCursor>,
    pub(crate) limit: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct ListParked {
    pub(crate) after: Option<(Timestamp, Vec<u8>)>,
    pub(crate) limit: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct ListEvents {
    pub(crate) record: Option<RecordKey>,
    pub(crate) limit: usize,
}

/// What every path of the API begins with.
pub(crate) const PREFIX: &str = "/api/v1/";

impl ApiCall {
    /// Reads a call of the API.
    ///
    /// # Errors
    /// What is wrong with the path, the method or an argument.
    pub(crate) fn read(path: &[&str], query: &str) -> Result<Self, ApiError> {
        let mut query = Query::parse(query)?;
        let endpoint = match path {
            ["records"] => ReadEndpoint::Records(query.records()?),
            ["records", rk] => ReadEndpoint::Record(record_key(rk)?, query.flag("answer")?),
            ["dead-letters"] => ReadEndpoint::DeadLetters(query.letters()?),
            ["dead-letters", id] => ReadEndpoint::DeadLetter(parse(id)?, query.flag("payload")?),
            ["outbox"] => ReadEndpoint::Outbox(query.parked()?),
            ["outbox", "events", id] => ReadEndpoint::Event(parse(id)?, query.flag("payload")?),
            ["policy"] => ReadEndpoint::Policy,
            ["audit"] => ReadEndpoint::Audit(query.events()?),
            ["openapi.json"] => ReadEndpoint::OpenApi,
            _ => return Err(unknown_path()),
        };
        query.end()?;
        Ok(Self::Read(endpoint))
    }

    /// As [`read`](Self::read), for a call that writes.
    pub(crate) fn write(path: &[&str], body: Map<String, Value>) -> Result<Self, ApiError> {
        let mut body = WriteBody::new(body);
        let (name, target) = match path {
            ["records", rk, verb] => {
                let rk = record_key(rk)?;
                let (name, change) = record_change(verb, &mut body)?;
                let (token, is_dry_run) = (body.number("token")?, body.flag("dry_run")?);
                (name, WriteTarget::Record(rk, RecordAction { token, change, is_dry_run }))
            }
            ["dead-letters", id, verb] => {
                let (name, action) = letter_action(verb, &mut body)?;
                (name, WriteTarget::DeadLetter(parse(id)?, LetterWrite { seen: body.seen()?, action }))
            }
            ["outbox", verb] => outbox_action(verb, &mut body)?,
            _ => return Err(unknown_path()),
        };
        body.end()?;
        Ok(Self::Write(WriteEndpoint { name, target }))
    }
}

fn record_change(verb: &str, body: &mut WriteBody) -> Result<(&'static str, RecordChange), ApiError> {
    Ok(match verb {
        "resolve" => ("resolve", RecordChange::Resolve(body.outcome()?)),
        "reopen" => ("reopen", RecordChange::Reopen),
        "release" => ("release", RecordChange::Release),
        "purge" => ("purge", RecordChange::Purge { force: body.flag("force")? }),
        _ => return Err(unknown_path()),
    })
}

fn letter_action(verb: &str, body: &mut WriteBody) -> Result<(&'static str, LetterAction), ApiError> {
    Ok(match verb {
        "redrive" => ("redrive", LetterAction::Redrive(body.word()?)),
        "drop" => ("drop", LetterAction::Drop),
        _ => return Err(unknown_path()),
    })
}

fn outbox_action(verb: &str, body: &mut WriteBody) -> Result<(&'static str, WriteTarget), ApiError> {
    let (name, action) = match verb {
        "resume" => ("resume", OutboxAction::Resume(body.ordering_key()?)),
        "drop" => ("drop", OutboxAction::Drop(body.ordering_key()?, body.event()?)),
        "republish" => ("republish", body.republish()?),
        _ => return Err(unknown_path()),
    };
    Ok((name, WriteTarget::Outbox(action)))
}

/// Which kind of call this path is under this method.
///
/// # Errors
/// `not-found` or `method-not-allowed`.
pub(crate) fn is_write(method: &Method, path: &[&str]) -> Result<bool, ApiError> {
    let (reads, writes) = match path {
        ["records" | "dead-letters" | "outbox" | "policy" | "audit" | "openapi.json"]
        | ["records" | "dead-letters", _]
        | ["outbox", "events", _] => (true, false),
        ["records", _, "resolve" | "reopen" | "release" | "purge"]
        | ["dead-letters", _, "redrive" | "drop"]
        | ["outbox", "resume" | "drop" | "republish"] => (false, true),
        _ => return Err(unknown_path()),
    };
    if reads && *method == Method::GET || writes && *method == Method::POST {
        return Ok(writes);
    }
    let allowed = if writes { AllowedMethod::Post } else { AllowedMethod::Get };
    let detail = format!("use {}", allowed.as_str());
    let refusal = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail);
    Err(ApiError { allow: Some(allowed), ..refusal })
}

fn unknown_path() -> ApiError {
    ApiError::not_found(format!("the API has no such path; {PREFIX}openapi.json lists all of them"))
}

/// Reads a record key: its 32 digits, or the URN of a problem.
///
/// # Errors
/// If the text is neither.
pub(crate) fn record_key(text: &str) -> Result<RecordKey, ApiError> {
    let digits = text.strip_prefix(URN).unwrap_or(text);
    let is_lower = digits.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit));
    let bytes = unhex(digits).filter(|_| is_lower).and_then(|bytes| bytes.try_into().ok());
    bytes.map(RecordKey::from_bytes).ok_or_else(|| {
        ApiError::invalid(format!("a record key is 32 lower-case hexadecimal digits, or {URN} and these"))
    })
}

/// What the `instance` of a problem begins with.
pub(crate) const URN: &str = "urn:hapax:record:";

fn parse<T: std::str::FromStr>(text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|_| ApiError::invalid("the last part of the path is no id: an id is a UUID"))
}

impl WriteEndpoint {
    /// Whether the call only asks whether the write would be carried out.
    pub(crate) fn is_dry_run(&self) -> bool {
        matches!(self.target, WriteTarget::Record(_, RecordAction { is_dry_run: true, .. }))
    }

    /// What the call is about, for its audit events: the record, the token, and the arguments without headers and
    /// bodies.
    pub(crate) fn subject(&self) -> Map<String, Value> {
        let subject = match &self.target {
            WriteTarget::Record(rk, action) => {
                json!({ "record": rk.to_string(), "token": action.token, "arguments": action.change.arguments() })
            }
            WriteTarget::DeadLetter(id, write) => {
                let mut subject = json!({ "dead_letter": id.to_string(), "seen": write.seen.to_string() });
                if let Some(arguments) = write.action.arguments() {
                    subject["arguments"] = arguments;
                }
                subject
            }
            WriteTarget::Outbox(OutboxAction::Resume(key)) => json!({ "ordering_key": key.to_string() }),
            WriteTarget::Outbox(OutboxAction::Drop(key, event)) => {
                json!({ "ordering_key": key.to_string(), "event": event.to_string() })
            }
            WriteTarget::Outbox(OutboxAction::Republish { since, until, .. }) => {
                let mut range = json!({ "since": since.0 });
                if let Some(until) = until {
                    range["until"] = until.0.into();
                }
                range
            }
        };
        subject.as_object().cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_key_has_two_forms() {
        let digits = "0123456789abcdef0123456789abcdef";
        let rk = record_key(digits).unwrap();
        assert_eq!((rk.to_string(), record_key(&format!("{URN}{digits}")).unwrap()), (digits.to_owned(), rk));
        for wrong in ["", "0123", &digits.to_uppercase(), "../../../../../../../../../..", &digits.replace('0', "%30")]
        {
            assert_eq!(record_key(wrong).unwrap_err().status, 400, "{wrong}");
        }
    }

    #[test]
    fn a_path_has_one_method() {
        assert!(!is_write(&Method::GET, &["records"]).unwrap());
        assert!(is_write(&Method::POST, &["records", "x", "purge"]).unwrap());
        for (method, path, status) in [
            (Method::POST, &["records"][..], 405),
            (Method::GET, &["records", "x", "purge"], 405),
            (Method::HEAD, &["policy"], 405),
            (Method::GET, &["records", "x", "purge", ""], 404),
            (Method::GET, &["", "records"], 404),
            (Method::GET, &[".."], 404),
            (Method::POST, &["records", "x", "Purge"], 404),
        ] {
            assert_eq!(is_write(&method, path).unwrap_err().status, status, "{path:?}");
        }
    }
}

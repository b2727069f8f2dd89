//! The letter in an entry of the stream: its fields as JSON, beside the fields that may have any bytes.

use bytes::Bytes;
use hapax_core::broker::{DeadCursor, DeadLetterId, KeptLetter, LetterChange, ListedLetter, ListedReason, SeenLetter};
use hapax_core::{Error, ErrorKind, OperationId, Result, Timestamp};
use redis::Value;
use serde_json::{Value as Json, json};

use crate::letter::{self, LetterColumns, damaged};
use crate::redis::value;

pub(super) fn encode(columns: &LetterColumns) -> Vec<u8> {
    let letter = json!({
        "id": columns.id,
        "reason": columns.reason,
        "attempts": columns.attempts,
        "namespace": columns.namespace,
        "source": columns.source,
        "operation": columns.operation,
        "rule": columns.rule,
        "fingerprint": columns.fingerprint,
        "at": columns.at,
        "origin": columns.origin,
        "partition": columns.partition,
        "position": columns.position,
        "sent_at": columns.sent_at,
        "headers": columns.headers,
        // Redis cannot distinguish no field from an empty one.
        "has_ordering_key": columns.ordering_key.is_some(),
        "has_position_id": columns.position_id.is_some(),
    });
    letter.to_string().into_bytes()
}

/// The argument of `list.lua`: where to begin.
pub(super) fn entry(after: Option<&DeadCursor>) -> Result<String> {
    let Some(cursor) = after else { return Ok("-".into()) };
    let numbers = cursor.as_str().split_once('-');
    let is_entry = numbers.is_some_and(|(ms, n)| ms.parse::<u64>().is_ok() && n.parse::<u64>().is_ok());
    if is_entry { Ok(cursor.to_string()) } else { Err(Error::new(ErrorKind::Invalid, "this is no cursor of a list")) }
}

pub(super) fn listed(reply: Value) -> Result<ListedLetter> {
    let [entry, id, source, letter, size, mark, reason] = parts(reply)?;
    let (marked_at, (source, is_source)) = (marked_at(&mark)?, letter::readable_text(&source));
    let known = ListedLetter {
        id: letter_id(&id)?,
        reason: ListedReason::Damaged,
        attempts: 0,
        namespace: String::new(),
        source,
        operation: None,
        at: written_at(&entry)?,
        marked_at,
        seen: SeenLetter { written: text(&entry)?.to_owned(), marked_at },
        size: number(&size)?,
        cursor: DeadCursor::new(text(&entry)?),
    };
    let Some(columns) = columns(&letter, &reason).ok().filter(|_| is_source) else { return Ok(known) };
    let (reason, attempts) = letter::listed(columns.reason, columns.attempts);
    Ok(ListedLetter {
        reason,
        attempts,
        namespace: columns.namespace,
        operation: columns.operation.map(OperationId::from_bytes),
        at: letter::time(columns.at),
        ..known
    })
}

/// When the entry was added, by the clock of the server.
fn written_at(entry: &Bytes) -> Result<Timestamp> {
    let millis = text(entry)?.split_once('-').and_then(|(millis, _)| millis.parse::<u64>().ok());
    millis.map(|millis| Timestamp(millis.saturating_mul(1_000))).ok_or_else(damaged)
}

pub(super) fn kept(reply: Value) -> Result<KeptLetter> {
    taken(reply)?.1
}

/// A letter, and its id, which is there also if the letter cannot be decoded.
pub(super) fn taken(reply: Value) -> Result<(DeadLetterId, Result<KeptLetter>)> {
    let [id, parts @ ..] = parts::<8>(reply)?;
    Ok((letter_id(&id)?, decode(parts)))
}

fn letter_id(id: &Bytes) -> Result<DeadLetterId> {
    Ok(DeadLetterId::from_bytes(id[..].try_into().map_err(|error| damaged().caused_by(error))?))
}

fn decode([letter, ordering_key, position_id, payload, mark, reason, entry]: [Bytes; 7]) -> Result<KeptLetter> {
    let stored = columns(&letter, &reason)?;
    let columns = LetterColumns {
        ordering_key: stored.ordering_key.map(|_| ordering_key),
        position_id: stored.position_id.map(|_| position_id),
        payload,
        ..stored
    };
    let marked_at = marked_at(&mark)?;
    let seen = SeenLetter { written: text(&entry)?.to_owned(), marked_at };
    Ok(KeptLetter { letter: columns.letter()?, marked_at, seen })
}

/// The result of a write to a letter.
pub(super) fn change(reply: Vec<Value>) -> Result<LetterChange> {
    let words = reply.into_iter().map(|part| value::reply_bytes(part)?.ok_or_else(value::unexpected_reply));
    let words = words.collect::<Result<Vec<_>>>()?;
    match &words[..] {
        [word] if *word == "yes" => Ok(LetterChange::Yes),
        [word] if *word == "missing" => Ok(LetterChange::Missing),
        [word] if *word == "stale" => Ok(LetterChange::Stale),
        [word, until] if *word == "taken" => number(until).map(|until| LetterChange::Taken(Timestamp(until))),
        _ => Err(value::unexpected_reply()),
    }
}

fn parts<const N: usize>(reply: Value) -> Result<[Bytes; N]> {
    let Value::Array(parts) = reply else { return Err(value::unexpected_reply()) };
    let parts = parts.into_iter().map(|part| value::reply_bytes(part)?.ok_or_else(value::unexpected_reply));
    parts.collect::<Result<Vec<_>>>()?.try_into().map_err(|_| value::unexpected_reply())
}

/// The columns, with empty bytes where a field of its own has them. `reason` is empty if it has not changed.
fn columns(letter: &[u8], reason: &Bytes) -> Result<LetterColumns> {
    let json: Json = serde_json::from_slice(letter).map_err(|error| damaged().caused_by(error))?;
    let empty = |flag: &str| (json[flag] == Json::Bool(true)).then(Bytes::new);
    Ok(LetterColumns {
        id: field(&json, "id")?,
        reason: if reason.is_empty() { field(&json, "reason")? } else { text(reason)?.to_owned() },
        attempts: field(&json, "attempts")?,
        namespace: field(&json, "namespace")?,
        source: field(&json, "source")?,
        operation: field(&json, "operation")?,
        rule: field(&json, "rule")?,
        fingerprint: field(&json, "fingerprint")?,
        at: field(&json, "at")?,
        origin: field(&json, "origin")?,
        partition: field(&json, "partition")?,
        position: field(&json, "position")?,
        position_id: empty("has_position_id"),
        sent_at: field(&json, "sent_at")?,
        ordering_key: empty("has_ordering_key"),
        headers: field(&json, "headers")?,
        payload: Bytes::new(),
    })
}

fn field<T: for<'j> serde::Deserialize<'j>>(json: &Json, name: &str) -> Result<T> {
    serde_json::from_value(json[name].clone()).map_err(|error| damaged().caused_by(error))
}

pub(super) fn marked_at(mark: &Bytes) -> Result<Option<Timestamp>> {
    if mark.is_empty() { Ok(None) } else { number(mark).map(|micros| Some(Timestamp(micros))) }
}

fn number(digits: &Bytes) -> Result<u64> {
    text(digits)?.parse().map_err(|error| damaged().caused_by(error))
}

fn text(bytes: &Bytes) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| damaged().caused_by(error))
}

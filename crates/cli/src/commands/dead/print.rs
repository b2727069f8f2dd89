use hapax::broker::{DeadLetter, DeadLetterId, KeptLetter, LetterChange, ListedLetter, ListedReason, Position};
use serde_json::{Map, Value, json};

use crate::commands::dead::FoundLetter;
use crate::commands::print::{exact_time, object, text_or_hexadecimal, time};
use crate::serve::logs::escape_controls;

pub(super) fn listed(letter: &ListedLetter, as_json: bool) -> String {
    if as_json {
        return listed_letter(letter).to_string();
    }
    let marked = letter.marked_at.map_or("", |_| "  marked for a redrive");
    let attempts = if letter.attempts == 1 { "1 attempt".into() } else { format!("{} attempts", letter.attempts) };
    let (source, reason) = (escape_controls(&letter.source), escape_controls(letter.reason.as_str()));
    format!("{}  {}  {reason:<18}  {attempts:<11}  {source}{marked}", time(letter.at), letter.id)
}

pub(crate) fn listed_letter(letter: &ListedLetter) -> Value {
    json!({
        "id": letter.id.to_string(),
        "reason": letter.reason.as_str(),
        "attempts": letter.attempts,
        "source": letter.source,
        "time": time(letter.at),
        "namespace": letter.namespace,
        "operation": letter.operation.map(|operation| operation.to_string()),
        "payload_bytes": letter.size,
        "redrive_at": letter.marked_at.map(time),
        "seen": letter.seen.to_string(),
        "cursor": letter.cursor.as_str(),
    })
}

/// The result of a write to a letter. `done` is `marked` or `dropped`.
pub(super) fn changed(id: DeadLetterId, done: &str, change: LetterChange, as_json: bool) -> String {
    let (error, text) = match change {
        LetterChange::Yes => (None, format!("{done}: {id}")),
        LetterChange::Missing => (Some("not-found"), format!("does not exist: {id}")),
        LetterChange::Stale => (Some("stale"), format!("has changed since it was seen: {id}")),
        LetterChange::Taken(until) => {
            (Some("taken"), format!("a worker processes it, at least until {}: {id}", exact_time(until)))
        }
    };
    if !as_json {
        return text;
    }
    let mut line = Map::from_iter([("id".into(), json!(id.to_string())), (done.into(), json!(error.is_none()))]);
    line.extend(error.map(|error| ("error".into(), json!(error))));
    if let LetterChange::Taken(until) = change {
        line.insert("free_at".into(), json!(exact_time(until)));
    }
    Value::Object(line).to_string()
}

/// A letter that a redrive of all letters leaves alone.
pub(super) fn passed_over(letter: &FoundLetter, as_json: bool) -> String {
    let (id, reason) = (letter.id, letter.reason.as_ref().unwrap_or(&ListedReason::Damaged));
    if as_json {
        return json!({ "id": id.to_string(), "marked": false, "reason": reason.as_str() }).to_string();
    }
    match reason {
        ListedReason::Known(_) | ListedReason::Unknown(_) => {
            format!("passed over, its reason {:?} is unknown: {id}", escape_controls(reason.as_str()))
        }
        ListedReason::Damaged => format!("passed over, it is damaged: {id}"),
    }
}

pub(super) fn shown(kept: &KeptLetter, with_payload: bool, as_json: bool) -> String {
    object(letter_fields(kept, with_payload), as_json)
}

/// All that is known of a letter.
pub(crate) fn letter_fields(kept: &KeptLetter, with_payload: bool) -> Map<String, Value> {
    let mut fields = fields(&kept.letter);
    fields.insert("redrive_at".into(), json!(kept.marked_at.map(time)));
    fields.insert("seen".into(), json!(kept.seen.to_string()));
    if with_payload {
        fields.insert("payload".into(), text_or_hexadecimal(&kept.letter.message.payload));
    }
    fields
}

fn fields(letter: &DeadLetter) -> Map<String, Value> {
    let message = &letter.message;
    let headers: Vec<Value> =
        message.headers.iter().map(|(name, value)| json!([name, text_or_hexadecimal(value)])).collect();
    let coordinates = message.coordinates.as_ref();
    let position = coordinates.map(|coordinates| match &coordinates.position {
        Position::Number(number) => json!(number),
        Position::Id(id) => text_or_hexadecimal(id),
    });
    let fields = [
        ("id", json!(letter.id.to_string())),
        ("reason", json!(letter.reason.as_str())),
        ("attempts", json!(letter.attempts)),
        ("source", json!(&*letter.source)),
        ("time", json!(time(letter.at))),
        ("namespace", json!(&*letter.namespace)),
        ("operation", json!(letter.operation.map(|operation| operation.to_string()))),
        ("origin", json!(coordinates.map(|coordinates| &*coordinates.origin))),
        ("partition", json!(coordinates.map(|coordinates| coordinates.partition))),
        ("position", position.unwrap_or_default()),
        ("sent_at", json!(message.timestamp.map(time))),
        ("ordering_key", message.ordering_key.as_deref().map(text_or_hexadecimal).unwrap_or_default()),
        ("headers", Value::Array(headers)),
        ("payload_bytes", json!(message.payload.len())),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

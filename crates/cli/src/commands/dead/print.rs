use hapax::broker::{DeadLetterId, KeptLetter, LetterChange, ListedLetter, ListedReason};
use serde_json::{Map, Value, json};

use crate::admin::api::dead::{NOTHING_TO_RECORD, letter_fields, listed_letter};
use crate::admin::api::values::{exact_time, time};
use crate::commands::dead::FoundLetter;
use crate::commands::print::object;
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

/// A letter that does not take the word of a redrive.
pub(super) fn refused_word(id: DeadLetterId, as_json: bool) -> String {
    if as_json {
        return json!({ "id": id.to_string(), "marked": false, "error": "unreadable" }).to_string();
    }
    format!("{NOTHING_TO_RECORD}: {id}")
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

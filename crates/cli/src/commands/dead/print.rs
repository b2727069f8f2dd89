use hapax::broker::DeadLetterId;
use serde_json::{Map, Value, json};

use crate::admin::api::ApiError;
use crate::admin::api::dead::ListedView;
use crate::commands::dead::FoundLetter;
use crate::serve::logs::escape_controls;

pub(super) fn listed(letter: &ListedView, as_json: bool) -> String {
    if as_json {
        return json!(letter).to_string();
    }
    let ListedView { id, time, redrive_at, .. } = letter;
    let marked = redrive_at.as_ref().map_or("", |_| "  marked for a redrive");
    let attempts = if letter.attempts == 1 { "1 attempt".into() } else { format!("{} attempts", letter.attempts) };
    let (source, reason) = (escape_controls(&letter.source), escape_controls(&letter.reason));
    format!("{}  {id}  {reason:<18}  {attempts:<11}  {source}{marked}", escape_controls(time))
}

/// The result of a write to a letter: `marked` or `dropped`, or why not.
pub(super) fn changed(id: DeadLetterId, (done, refusal): (&str, Option<ApiError>), as_json: bool) -> String {
    if as_json {
        let mut line = Map::from_iter([("id".into(), json!(id.to_string())), (done.into(), json!(refusal.is_none()))]);
        if let Some(ApiError { code, free_at, .. }) = refusal {
            line.insert("error".into(), json!(code));
            line.extend(free_at.map(|free_at| ("free_at".into(), json!(free_at))));
        }
        return Value::Object(line).to_string();
    }
    match refusal {
        None => format!("{done}: {id}"),
        Some(ApiError { detail, .. }) => format!("{}: {id}", escape_controls(&detail)),
    }
}

/// A letter that `--dry-run` leaves as it is. `done` is `marked` or `dropped`.
pub(super) fn planned(letter: &FoundLetter, done: &str, as_json: bool) -> String {
    let (id, reason) = (letter.id, letter.reason.as_deref());
    if as_json {
        return json!({ "id": id.to_string(), done: false, "reason": reason, "dry_run": true }).to_string();
    }
    let reason = reason.map_or(String::new(), |reason| format!("  {}", escape_controls(reason)));
    format!("would be {done}: {id}{reason}")
}

/// A letter that a redrive of all letters leaves alone.
pub(super) fn passed_over(letter: &FoundLetter, as_json: bool) -> String {
    let (id, reason) = (letter.id, letter.reason.as_deref().unwrap_or_default());
    if as_json {
        return json!({ "id": id.to_string(), "marked": false, "reason": reason }).to_string();
    }
    match reason {
        "damaged" => format!("passed over, it is damaged: {id}"),
        _ => format!("passed over, its reason {:?} is unknown: {id}", escape_controls(reason)),
    }
}

use serde_json::{Value, json};

use crate::commands::print::object;
use crate::serve::logs::escape_controls;

pub(super) fn header() -> String {
    columns(["RECORD KEY", "OPERATION", "STATE", "ATTEMPT", "SINCE", "TOKEN"])
}

fn columns<T: AsRef<str>>([rk, operation, state, attempt, since, token]: [T; 6]) -> String {
    let (rk, operation, state) = (rk.as_ref(), operation.as_ref(), state.as_ref());
    let (attempt, since, token) = (attempt.as_ref(), since.as_ref(), token.as_ref());
    format!("{rk:<32}  {operation:<36}  {state:<13}  {attempt:<7}  {since:<24}  {token}")
}

/// A record of a list.
pub(super) fn listed(record: &Value, as_json: bool) -> String {
    if as_json {
        return record.to_string();
    }
    let text = |name: &str| escape_controls(record[name].as_str().unwrap_or("-")).into_owned();
    let number = |name: &str| record[name].as_u64().map_or("-".into(), |number| number.to_string());
    columns([text("rk"), text("operation"), text("state"), number("attempt"), text("since"), number("token")])
}

/// A record by itself, with its answer if that was asked for.
pub(super) fn shown(record: Value, as_json: bool) -> String {
    if as_json {
        return record.to_string();
    }
    object(record.as_object().cloned().unwrap_or_default(), false)
}

/// A write that happened.
pub(super) fn written(action: &str, done: &Value, as_json: bool) -> String {
    let rk = done["rk"].as_str().unwrap_or_default();
    if as_json {
        let (before, after) = (&done["before"], &done["after"]);
        return json!({ "rk": rk, "action": action, "done": true, "before": before, "after": after }).to_string();
    }
    format!("{action}: {rk}\n  before: {}\n  after:  {}", state(&done["before"]), state(&done["after"]))
}

/// A write that `--dry-run` leaves out.
pub(super) fn planned(action: &str, record: &Value, as_json: bool) -> String {
    if as_json {
        return json!({ "rk": record["rk"], "action": action, "done": false, "before": record }).to_string();
    }
    format!("would {action}: {}\n  now: {}", record["rk"].as_str().unwrap_or_default(), state(record))
}

fn state(record: &Value) -> String {
    let Some(state) = record["state"].as_str() else { return "no record".into() };
    let attempt = record["attempt"].as_u64().map_or(String::new(), |attempt| format!(", attempt {attempt}"));
    format!("{}, token {}{attempt}", escape_controls(state), record["token"])
}

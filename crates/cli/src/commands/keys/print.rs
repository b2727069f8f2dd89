use clap::ValueEnum;
use serde_json::json;

use crate::admin::api::record::{RecordState, RecordView};
use crate::admin::api::records::writes::RecordBeforeAndAfter;
use crate::serve::logs::escape_controls;

pub(super) fn header() -> String {
    columns(["RECORD KEY", "OPERATION", "STATE", "ATTEMPT", "SINCE", "TOKEN"])
}

fn columns([rk, operation, state, attempt, since, token]: [&str; 6]) -> String {
    format!("{rk:<32}  {operation:<36}  {state:<13}  {attempt:<7}  {since:<24}  {token}")
}

/// A record of a list.
pub(super) fn listed(record: &RecordView, as_json: bool) -> String {
    if as_json {
        return json!(record).to_string();
    }
    let attempt = record.attempt.map_or("-".into(), |attempt| attempt.to_string());
    let (rk, operation, token) = (record.rk.to_string(), record.operation.to_string(), record.token.to_string());
    columns([&rk, &operation, &name(record.state), &attempt, &escape_controls(&record.since), &token])
}

/// A write that happened.
pub(super) fn written(action: &str, done: &RecordBeforeAndAfter, as_json: bool) -> String {
    let RecordBeforeAndAfter { rk, before, after } = done;
    if as_json {
        return json!({ "rk": rk.to_string(), "action": action, "done": true, "before": before, "after": after })
            .to_string();
    }
    format!("{action}: {rk}\n  before: {}\n  after:  {}", state(before), state(after))
}

/// A write that `--dry-run` leaves out.
pub(super) fn planned(action: &str, planned: &RecordBeforeAndAfter, as_json: bool) -> String {
    let RecordBeforeAndAfter { rk, before, .. } = planned;
    if as_json {
        return json!({ "rk": rk.to_string(), "action": action, "done": false, "before": before }).to_string();
    }
    format!("would {action}: {rk}\n  now: {}", state(before))
}

fn state(record: &Option<RecordView>) -> String {
    let Some(record) = record else { return "no record".into() };
    let attempt = record.attempt.map_or(String::new(), |attempt| format!(", attempt {attempt}"));
    format!("{}, token {}{attempt}", name(record.state), record.token)
}

fn name(state: RecordState) -> String {
    state.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

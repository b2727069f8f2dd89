use std::time::Duration;

use hapax::RecordKey;
use hapax::store::RecordStatus;
use http::StatusCode;

use super::SeenRecord;
use crate::admin::api::ApiError;
use crate::admin::api::records::writes::{RecordChange, SeenToken};

/// Why a record does not allow what an operator wants, and the command that would work.
pub(in crate::admin::api) fn refusal(named: &SeenToken, seen: Option<&SeenRecord>, change: &RecordChange) -> ApiError {
    let Some(seen) = seen else {
        return ApiError { command: Some("hapax keys list".into()), ..missing() };
    };
    let (rk, token) = (&named.rk.0, seen.record.token.0);
    let (code, detail, command) = if token != named.token {
        let detail = format!("the record has changed: its token is {token}, and you saw {}", named.token);
        ("stale", detail, format!("hapax keys show {rk}"))
    } else {
        let (detail, command) = wrong_state(rk, seen, change);
        ("wrong-state", detail, command)
    };
    ApiError {
        command: Some(command),
        record: Some(Box::new(seen.view())),
        ..ApiError::new(StatusCode::CONFLICT, code, detail)
    }
}

fn wrong_state(rk: &RecordKey, seen: &SeenRecord, change: &RecordChange) -> (String, String) {
    let token = seen.record.token.0;
    let show = format!("hapax keys show {rk}");
    match seen.status {
        RecordStatus::Running => {
            let left = humantime::format_duration(Duration::from_secs(seen.lease_left.as_secs() + 1));
            (format!("an attempt is running, and its lease lasts for {left} more; wait until it ends or expires"), show)
        }
        RecordStatus::Lapsed | RecordStatus::Indeterminate => match change {
            RecordChange::Purge { .. } => (
                "the outcome is unknown: without the record, a retry may run the operation a second time".into(),
                format!("hapax keys purge {rk} --token {token} --force"),
            ),
            RecordChange::Reopen | RecordChange::Resolve(_) => (
                "the outcome is unknown; only a dead record is reopened. Find out what happened, and resolve it".into(),
                format!("hapax keys resolve {rk} --token {token} --not-done"),
            ),
        },
        RecordStatus::Completed => {
            ("an answer is recorded, and nothing replaces it".into(), format!("hapax keys show {rk} --answer"))
        }
        RecordStatus::Released => ("nothing was applied, and the next retry runs; there is nothing to do".into(), show),
        RecordStatus::Dead => (
            "the record is closed after too many attempts; reopen it to let the next retry run".into(),
            format!("hapax keys reopen {rk} --token {token}"),
        ),
    }
}

pub(in crate::admin::api) fn missing() -> ApiError {
    ApiError::not_found("there is no such record: it never existed, was purged, or has expired")
}

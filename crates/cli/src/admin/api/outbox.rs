//! The outbox, for operators.

use hapax::outbox::{OutboxCounts, OutboxUpkeep, OutgoingEvent, ParkedKey, RowId, RowState};
use hapax::{EventId, Timestamp};
use http::StatusCode;
use serde_json::{Map, Value, json};

use crate::admin::api::call::{ListParked, OutboxAction};
use crate::admin::api::ordering_key::OrderingKey;
use crate::admin::api::values::{exact_time, hexadecimal, text_or_hexadecimal, time};
use crate::admin::api::{ApiError, within_deadline};

/// How many rows one request opens.
pub(crate) const STEP: usize = 1000;

/// Counting reads each row that it counts.
pub(crate) const MAX_COUNTED: u64 = 1_000_000;

/// How many times [`STEP`] rows one call opens or looks at. A longer write continues with another call.
const STEPS: usize = 20;

pub(super) async fn list(outbox: &dyn OutboxUpkeep, ask: &ListParked) -> Result<Value, ApiError> {
    let after = ask.after.as_ref().map(|(parked_at, key)| ParkedKey {
        key: key.clone().into(),
        parked_at: *parked_at,
        // The place in the list depends on the two above.
        row: RowId(0),
        event: EventId::from_bytes([0; 16]),
        topic: String::new(),
        reason: String::new(),
    });
    let page = within_deadline(outbox.parked(after.as_ref(), ask.limit)).await?;
    let counts = within_deadline(outbox.counts(MAX_COUNTED)).await?;
    let next = page.get(ask.limit - 1).map(|last| format!("{}.{}", last.parked_at.0, hexadecimal(&last.key)));
    let parked: Vec<Value> = page.iter().map(parked_key).collect();
    Ok(json!({ "counts": counted(&counts), "parked": parked, "next": next }))
}

pub(super) async fn show(outbox: &dyn OutboxUpkeep, id: EventId, with_payload: bool) -> Result<Value, ApiError> {
    let found = within_deadline(outbox.find(id)).await?;
    let missing = || ApiError::not_found("there is no event with this id; its row may have been removed");
    let (row, state, event) = found.ok_or_else(missing)?;
    Ok(Value::Object(event_fields((row, state, &event), with_payload)))
}

pub(super) async fn act(outbox: &dyn OutboxUpkeep, action: &OutboxAction) -> Result<Value, ApiError> {
    match action {
        OutboxAction::Resume(key) => resume(outbox, key.as_bytes()).await,
        OutboxAction::Drop(key, event) => {
            let dropped = within_deadline(outbox.drop_refused(key.as_bytes(), Some(*event))).await?;
            dropped.map(|event| json!({ "dropped": true, "event": event.to_string() })).ok_or_else(|| {
                let detail = "the key is no longer parked for this event, or the event is published or dropped";
                ApiError::new(StatusCode::CONFLICT, "stale", detail)
            })
        }
        OutboxAction::Republish { since, until, after } => republish(outbox, *since, *until, *after).await,
    }
}

/// Opens rows that were published within this time. `next` is the row behind which the next call goes on.
async fn republish(
    outbox: &dyn OutboxUpkeep,
    since: Timestamp,
    until: Option<Timestamp>,
    after: RowId,
) -> Result<Value, ApiError> {
    if until.is_none() && within_deadline(outbox.now()).await? <= since || until.is_some_and(|until| until <= since) {
        return Err(ApiError::invalid("since must be before until, and before now"));
    }
    // Before the end is taken: a row whose mark counts is published before it, and each other one is published again.
    if after == RowId(0) {
        within_deadline(outbox.begin_republication()).await?;
    }
    // An end, so that events which a relay publishes meanwhile are not opened again and again.
    let until = match until {
        Some(until) => until,
        None => within_deadline(outbox.now()).await?,
    };
    let (published, mut rows, mut last) = (since..until, 0, Some(after));
    for _ in 0..STEPS {
        let Some(behind) = last else { break };
        let step = within_deadline(outbox.republish(&published, behind, STEP)).await?;
        last = step.map(|step| step.last);
        rows += step.map_or(0, |step| step.rows);
    }
    Ok(json!({ "rows": rows, "until": exact_time(until), "next": last.map(|row| row.0) }))
}

/// Opens rows of a key. `is_complete` is false if there are more: the key stays parked until the last one is open.
async fn resume(outbox: &dyn OutboxUpkeep, key: &[u8]) -> Result<Value, ApiError> {
    let mut rows = 0;
    for step in 0..STEPS {
        match within_deadline(outbox.resume(key, STEP)).await? {
            None if step == 0 => {
                return Err(ApiError::new(StatusCode::CONFLICT, "wrong-state", "the key is not parked"));
            }
            None | Some(0) => return Ok(json!({ "rows": rows, "is_complete": true })),
            Some(opened) => rows += opened,
        }
    }
    Ok(json!({ "rows": rows, "is_complete": false }))
}

/// A parked key of a list.
pub(crate) fn parked_key(parked: &ParkedKey) -> Value {
    json!({
        "key": OrderingKey::new(parked.key.clone()).to_string(),
        "event": parked.event.to_string(),
        "row": parked.row.0,
        "topic": parked.topic,
        "reason": parked.reason,
        "time": time(parked.parked_at),
    })
}

pub(crate) fn counted(counts: &OutboxCounts) -> Value {
    let seconds = counts.oldest.map(|age| age.as_secs());
    json!({ "open": counts.open, "oldest_seconds": seconds, "parked_keys": counts.parked_keys })
}

/// All that is known of an event.
pub(crate) fn event_fields(row: (RowId, RowState, &OutgoingEvent), with_payload: bool) -> Map<String, Value> {
    let (id, state, event) = row;
    let headers: Vec<Value> =
        event.headers.iter().map(|(name, value)| json!([name, text_or_hexadecimal(value)])).collect();
    let key = event.ordering_key.clone().map(|key| OrderingKey::new(key).to_string());
    let fields = [
        ("id", json!(event.id.to_string())),
        ("state", json!(state.as_str())),
        ("row", json!(id.0)),
        ("topic", json!(event.topic)),
        ("key", json!(key)),
        ("time", json!(time(event.created_at))),
        ("namespace", json!(event.namespace)),
        ("operation", json!(event.operation.map(|operation| operation.to_string()))),
        ("number", json!(event.number)),
        ("type", json!(event.kind)),
        ("source", json!(event.source)),
        ("content_type", json!(event.content_type)),
        ("headers", Value::Array(headers)),
        ("payload_bytes", json!(event.payload.len())),
    ];
    let mut fields: Map<String, Value> = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    if with_payload {
        fields.insert("payload".into(), text_or_hexadecimal(&event.payload));
    }
    fields
}

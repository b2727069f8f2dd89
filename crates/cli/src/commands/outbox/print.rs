use std::time::Duration;

use hapax::EventId;
use hapax::outbox::{OutboxCounts, OutgoingEvent, ParkedKey, RowId, RowState};
use serde_json::{Map, Value, json};

use super::key::OrderingKey;
use crate::commands::print::{object, text_or_hexadecimal, time};
use crate::serve::logs::escape_controls;

pub(super) fn parked(parked: &ParkedKey, as_json: bool) -> String {
    let key = OrderingKey::new(parked.key.clone());
    if as_json {
        return parked_key(parked).to_string();
    }
    let (topic, reason) = (escape_controls(&parked.topic), escape_controls(&parked.reason));
    format!("{}  {key}  {}  row {}  {topic}  {reason}", time(parked.parked_at), parked.event, parked.row.0)
}

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

pub(super) fn counts(counts: &OutboxCounts, limit: u64, as_json: bool) -> String {
    if as_json {
        return json!({ "counts": counted(counts) }).to_string();
    }
    let or_more = if counts.open >= limit { " or more" } else { "" };
    let age = |age: Duration| humantime::format_duration(Duration::from_secs(age.as_secs())).to_string();
    let oldest = counts.oldest.map_or(String::new(), |oldest| format!(", the oldest for {}", age(oldest)));
    let rows = plural(counts.open, "row");
    format!("{}{or_more} not published{oldest}; {} parked", rows, plural(counts.parked_keys, "key"))
}

pub(super) fn plural(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

pub(super) fn resumed(key: &OrderingKey, opened: Option<usize>, as_json: bool) -> String {
    if as_json {
        return json!({ "key": key.to_string(), "resumed": opened.is_some(), "rows": opened }).to_string();
    }
    match opened {
        Some(rows) => format!("resumed: {key}, {}", plural(u64::try_from(rows).unwrap_or(u64::MAX), "row")),
        None => format!("not parked: {key}"),
    }
}

pub(super) fn dropped(key: &OrderingKey, event: EventId, as_json: bool) -> String {
    if as_json {
        return json!({ "key": key.to_string(), "event": event.to_string(), "dropped": true }).to_string();
    }
    format!("dropped: the event {event} of {key}; the key stays parked until `hapax outbox resume`")
}

pub(super) fn shown(row: (RowId, RowState, &OutgoingEvent), with_payload: bool, as_json: bool) -> String {
    object(event_fields(row, with_payload), as_json)
}

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

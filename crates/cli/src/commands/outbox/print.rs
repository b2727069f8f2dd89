use std::time::Duration;

use hapax::EventId;
use hapax::outbox::{OutboxCounts, OutgoingEvent, ParkedKey, RowId, RowState};
use serde_json::json;

use crate::admin::api::ordering_key::OrderingKey;
use crate::admin::api::outbox::{counted, event_fields, parked_key};
use crate::admin::api::values::time;
use crate::commands::print::object;
use crate::serve::logs::escape_controls;

pub(super) fn parked(parked: &ParkedKey, as_json: bool) -> String {
    let key = OrderingKey::new(parked.key.clone());
    if as_json {
        return parked_key(parked).to_string();
    }
    let (topic, reason) = (escape_controls(&parked.topic), escape_controls(&parked.reason));
    format!("{}  {key}  {}  row {}  {topic}  {reason}", time(parked.parked_at), parked.event, parked.row.0)
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

use std::time::Duration;

use hapax::EventId;
use serde_json::json;

use crate::admin::api::ordering_key::OrderingKey;
use crate::admin::api::outbox::{CountsView, MAX_COUNTED, ParkedView};
use crate::serve::logs::escape_controls;

pub(super) fn parked(parked: &ParkedView, as_json: bool) -> String {
    if as_json {
        return json!(parked).to_string();
    }
    let ParkedView { key, event, row, .. } = parked;
    let [time, topic, reason] = [&parked.time, &parked.topic, &parked.reason].map(|text| escape_controls(text));
    format!("{time}  {key}  {event}  row {row}  {topic}  {reason}")
}

pub(super) fn counts(counts: CountsView, as_json: bool) -> String {
    if as_json {
        return json!({ "counts": counts }).to_string();
    }
    let or_more = if counts.open >= MAX_COUNTED { " or more" } else { "" };
    let age = |seconds| humantime::format_duration(Duration::from_secs(seconds)).to_string();
    let oldest = counts.oldest_seconds.map_or(String::new(), |oldest| format!(", the oldest for {}", age(oldest)));
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

pub(super) fn dropped(key: &OrderingKey, event: EventId, (is_dry_run, as_json): (bool, bool)) -> String {
    if as_json {
        return json!({ "key": key.to_string(), "event": event.to_string(), "dropped": !is_dry_run }).to_string();
    }
    if is_dry_run {
        return format!("would be dropped: the event {event} of {key}");
    }
    format!("dropped: the event {event} of {key}; the key stays parked until `hapax outbox resume`")
}

//! From an event to a message of NATS.

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue};
use hapax_core::outbox::{OutgoingEvent, TopicTemplate};

/// The subject and the headers.
///
/// # Errors
/// Why NATS can never take the event.
pub(super) fn of(event: &OutgoingEvent, topic: &TopicTemplate) -> Result<(String, HeaderMap), String> {
    let subject = topic.checked_name(event, check_subject)?;
    let mut headers = HeaderMap::new();
    for (name, value) in event.published_headers("ce-").iter() {
        if name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-")) {
            return Err(format!("the header {name:?} is a command to the NATS server"));
        }
        // The server looks for the first place of these words, and then deduplicates nothing.
        if name.ends_with("Nats-Msg-Id") {
            return Err(format!("the header {name:?} hides the id of the event from the NATS server"));
        }
        let parsed = name.parse::<HeaderName>().map_err(|_| format!("NATS takes no header with the name {name:?}"))?;
        let value = std::str::from_utf8(value).ok().and_then(|value| value.parse::<HeaderValue>().ok());
        // The server takes these words for the header also inside of a value, and then deduplicates nothing.
        if value.as_ref().is_some_and(|value| value.as_str().contains("Nats-Msg-Id:")) {
            return Err(format!("the value of the header {name:?} hides the id of the event from the NATS server"));
        }
        let value = value.ok_or_else(|| format!("NATS takes no header {name:?} with a line break or without UTF-8"))?;
        headers.append(parsed, value);
    }
    headers.insert(async_nats::header::NATS_MESSAGE_ID, event.deduplication_id());
    Ok((subject, headers))
}

fn check_subject(subject: &str) -> Result<(), &'static str> {
    if subject.split('.').any(str::is_empty) {
        return Err("has an empty word between its dots");
    }
    if subject.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("has a blank");
    }
    if subject.contains(['*', '>']) {
        return Err("has a `*` or `>`, which only subscriptions have");
    }
    if subject.starts_with('$') {
        return Err("begins with `$`, as the subjects of the server do");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hapax_core::EventId;

    use super::*;

    #[test]
    fn what_nats_can_never_take_is_told() {
        let message = |topic: &str, header: (&str, &str)| {
            let mut event = OutgoingEvent::new(EventId::from_random([1; 16]), topic, "");
            event.headers = [header].map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
            of(&event, &TopicTemplate::default())
        };
        let plain = ("a", "b");
        let (subject, headers) = message("orders.paid", plain).unwrap();
        assert_eq!((subject.as_str(), headers.get("a").map(HeaderValue::as_str)), ("orders.paid", Some("b")));
        for (topic, header, word) in [
            ("a b", plain, "blank"),
            ("a..b", plain, "empty"),
            ("", plain, "empty"),
            ("a.*", plain, "subscriptions"),
            ("$JS.API", plain, "server"),
            ("a", ("Nats-Rollup", "all"), "command"),
            ("a", ("X-Nats-Msg-Id", "1"), "hides"),
            ("a", ("note", "was Nats-Msg-Id:1"), "hides"),
            ("a", ("x y", "1"), "name"),
            ("a", ("x", "1\r\n2"), "line break"),
        ] {
            let reason = message(topic, header).unwrap_err();
            assert!(reason.contains(word), "{topic} {header:?}: {reason}");
        }
    }
}

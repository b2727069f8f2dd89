//! What came back for a request, and what it means. Pure; answers.md has the numbered rows.

use std::time::{Duration, SystemTime};

use hapax_core::Timestamp;
use hapax_net::http::RequestFailure;
use http::header::RETRY_AFTER;
use http::response::Parts;
use http::{HeaderMap, StatusCode};

/// What came back for a request: the head of an answer, or why there is none.
pub(super) type RequestEnd = Result<Parts, RequestFailure>;

/// The longest `Retry-After` that counts.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// How long a receiver is left alone that gets too many requests and does not say for how long.
const WHILE_BUSY: Duration = Duration::from_secs(1);

/// What the end of a request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meaning {
    pub(super) event: EventFate,
    pub(super) endpoint: EndpointSign,
    /// How long the receiver wants to be left alone, for this event or as a whole.
    pub(super) after: Duration,
}

/// What happened to the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventFate {
    Taken,
    /// The receiver does not have it.
    NotTaken,
    Unknown,
    /// The receiver will never take it.
    NeverTaken,
}

/// What the end of a request says about the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndpointSign {
    Works,
    /// It does not take this event. If it takes no other one either, it fails.
    DislikesEvent,
    /// It fails, and gets nothing before [`Meaning::after`].
    Fails,
    /// It works and gets nothing before [`Meaning::after`].
    Busy,
    /// Nothing.
    Silent,
}

/// Judges the end of a request. `now` is for a `Retry-After` with a date.
pub(super) fn judge(end: &RequestEnd, now: Timestamp) -> Meaning {
    use EndpointSign::{Busy, DislikesEvent, Fails, Silent, Works};
    use EventFate::{NeverTaken, NotTaken, Taken, Unknown};
    let (status, wait) = match end {
        Ok(head) => (head.status.as_u16(), retry_after(&head.headers, now)),
        Err(RequestFailure::Unsent(_) | RequestFailure::TimedOut { sent: false, .. }) => {
            return NotTaken.with(Fails); // A11
        }
        Err(RequestFailure::Cut(_) | RequestFailure::TimedOut { sent: true, .. }) => return Unknown.with(Fails), // A12
    };
    let (event, endpoint) = match status {
        200..=299 => (Taken, Works),                                                        // A1
        410 => (NeverTaken, DislikesEvent),                                                 // A2
        401 | 403 | 404 | 405 | 407 | 421 | 426 => (NotTaken, Fails),                       // A5
        409 if wait.is_some() => (NotTaken, Silent),                                        // A6
        423 | 425 => (NotTaken, Silent),                                                    // A6
        429 => return Meaning { after: wait.unwrap_or(WHILE_BUSY), ..NotTaken.with(Busy) }, // A7
        503 if wait.is_some() => (NotTaken, Fails),                                         // A7
        408 | 500..=599 => (Unknown, Fails),                                                // A8
        400..=499 => (NeverTaken, DislikesEvent),                                           // A3
        301 | 302 | 307 | 308 => (NotTaken, Fails),                                         // A9
        _ => (Unknown, Fails),                                                              // A10
    };
    Meaning { event, endpoint, after: wait.unwrap_or_default() }
}

impl EventFate {
    fn with(self, endpoint: EndpointSign) -> Meaning {
        Meaning { event: self, endpoint, after: Duration::ZERO }
    }
}

/// The end of a request in words for an operator. Shows nothing that the receiver wrote but the status.
pub(super) fn describe(end: &RequestEnd) -> String {
    match end {
        Ok(head) if head.status.is_redirection() => {
            let status = show(head.status);
            format!("it answers {status} and redirects are not followed: its URL must name the final place")
        }
        Ok(head) => format!("it answers {}", show(head.status)),
        Err(failure) => failure.to_string(),
    }
}

fn show(status: StatusCode) -> String {
    status
        .canonical_reason()
        .map_or_else(|| status.as_str().to_owned(), |reason| format!("{} {reason}", status.as_str()))
}

/// How long the receiver asks to wait, if it says so in a readable way.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let wait = if is_number {
        // A number that is too large to read is a long time, too.
        Duration::from_secs(text.parse().unwrap_or(u64::MAX))
    } else {
        let date = httpdate::parse_http_date(text).ok()?;
        let now = SystemTime::UNIX_EPOCH + Duration::from_micros(now.0);
        date.duration_since(now).unwrap_or_default()
    };
    Some(wait.min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use std::io;

    use http::Response;

    use super::*;

    /// 2026-11-23 06:00:00 UTC.
    const NOW: Timestamp = Timestamp(1_795_413_600_000_000);

    fn answer(status: u16, wait: Option<&str>) -> Meaning {
        let mut headers = HeaderMap::new();
        headers.extend(wait.map(|wait| (RETRY_AFTER, wait.parse().unwrap())));
        let (mut head, ()) = Response::new(()).into_parts();
        (head.status, head.headers) = (StatusCode::from_u16(status).unwrap(), headers);
        judge(&Ok(head), NOW)
    }

    fn verdicts(statuses: impl IntoIterator<Item = u16>, wait: Option<&str>) -> Vec<(EventFate, EndpointSign)> {
        let mut verdicts: Vec<_> =
            statuses.into_iter().map(|status| answer(status, wait)).map(|all| (all.event, all.endpoint)).collect();
        verdicts.dedup();
        verdicts
    }

    #[test]
    fn every_status_has_its_row() {
        use EndpointSign::{Busy, DislikesEvent, Fails, Silent, Works};
        use EventFate::{NeverTaken, NotTaken, Taken, Unknown};
        assert_eq!(verdicts(200..=299, None), [(Taken, Works)], "A1");
        assert_eq!(verdicts([410], None), [(NeverTaken, DislikesEvent)], "A2");
        let about_the_event = [400, 402, 406, 409, 411, 412, 413, 414, 415, 416, 417, 422, 424, 428, 431, 451, 499];
        assert_eq!(verdicts(about_the_event, None), [(NeverTaken, DislikesEvent)], "A3");
        let about_the_endpoint = [401, 403, 404, 405, 407, 421, 426];
        assert_eq!(verdicts(about_the_endpoint, None), [(NotTaken, Fails)], "A5");
        assert_eq!(verdicts([409], Some("1")), [(NotTaken, Silent)], "A6");
        assert_eq!(verdicts([423, 425], None), [(NotTaken, Silent)], "A6");
        assert_eq!(verdicts([429], None), [(NotTaken, Busy)], "A7");
        assert_eq!(verdicts([503], Some("1")), [(NotTaken, Fails)], "A7");
        assert_eq!(verdicts([408, 500, 501, 502, 503, 504, 507, 599], None), [(Unknown, Fails)], "A8");
        assert_eq!(verdicts([301, 302, 307, 308], None), [(NotTaken, Fails)], "A9");
        assert_eq!(verdicts([101, 300, 303, 304, 600, 999], None), [(Unknown, Fails)], "A10");
    }

    #[test]
    fn a_request_that_did_not_leave_was_not_published_and_any_other_end_is_unknown() {
        let error = || io::Error::other("the connection broke").into();
        let timed_out = |sent| RequestFailure::TimedOut { sent, limit: Duration::from_secs(1) };
        for end in [RequestFailure::Unsent(error()), timed_out(false)].map(Err) {
            assert_eq!(judge(&end, NOW), EventFate::NotTaken.with(EndpointSign::Fails), "A11 {end:?}");
        }
        for end in [RequestFailure::Cut(error()), timed_out(true)].map(Err) {
            assert_eq!(judge(&end, NOW), EventFate::Unknown.with(EndpointSign::Fails), "A12 {end:?}");
        }
    }

    #[test]
    fn retry_after_is_a_number_or_a_date_and_at_most_one_hour() {
        for (text, seconds) in [
            ("0", 0),
            ("7", 7),
            (" 7 ", 7),
            ("86400", 3600),
            ("99999999999999999999999", 3600),
            ("Mon, 23 Nov 2026 06:00:30 GMT", 30),
            ("Mon, 23 Nov 2026 05:00:00 GMT", 0),
            ("Mon, 23 Nov 2099 06:00:00 GMT", 3600),
            ("soon", 1),
            ("-1", 1),
            ("1.5", 1),
            ("", 1),
        ] {
            assert_eq!(answer(429, Some(text)).after, Duration::from_secs(seconds), "{text:?}");
        }
        assert_eq!(answer(503, Some("soon")).event, EventFate::Unknown, "an unreadable one counts for nothing");
    }
}

//! Messages that the driver cannot read. It drops the connection at each of them, or dies, and nothing of them arrives.
//! They are read in another way: JetStream answers with the stored bytes, encoded.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_nats::header::{HeaderName, HeaderValue};
use async_nats::jetstream::stream::RawMessage;
use async_nats::jetstream::{Context, consumer};
use async_nats::{Client, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::{Error, Result, Timestamp};
use serde_json::{Value, json};

use super::denials::Denials;
use crate::errors::not_applied;

/// As many messages are read at most in one search, and as much time passes. The next search goes on there.
const MOST: usize = 256;
const LONGEST: Duration = Duration::from_secs(10);

/// Where a stored message is read.
const GET: &str = "STREAM.MSG.GET";

/// A message that the driver cannot read.
pub(super) struct UnreadableMessage {
    pub(super) sequence: u64,
    /// Why the driver cannot read it.
    pub(super) why: &'static str,
    pub(super) headers: Vec<u8>,
    pub(super) payload: Bytes,
    pub(super) published: Timestamp,
}

/// Looks through the messages that the consumer has delivered and not finished.
pub(super) struct Search {
    /// Where the next search begins. 0: at the first unfinished message.
    pub(super) next: u64,
    pub(super) found: Vec<UnreadableMessage>,
    /// Why nothing more could be read.
    pub(super) failure: Option<Error>,
}

impl Search {
    /// Searches from `next` on, and leaves out the messages that have arrived.
    pub(super) async fn run(mut self, stored: &StoredMessages, here: &BTreeSet<u64>, info: &consumer::Info) -> Self {
        let begun = stored.runtime.boottime_now();
        let mut sequence = self.next.max(info.ack_floor.stream_sequence + 1);
        for _ in 0..MOST {
            while here.contains(&sequence) {
                sequence += 1;
            }
            let is_late = stored.runtime.boottime_now().saturating_sub(begun) >= LONGEST;
            let read = if sequence > info.delivered.stream_sequence || is_late {
                Ok(None)
            } else {
                stored.next(sequence, info).await
            };
            match read {
                Ok(Some(message)) if message.sequence <= info.delivered.stream_sequence => {
                    sequence = message.sequence + 1;
                    let is_new = !here.contains(&message.sequence);
                    self.found.extend(Some(message).filter(|_| is_new).and_then(unreadable));
                }
                Ok(_) => {
                    self.next = if is_late { sequence } else { 0 };
                    return self;
                }
                Err(error) => {
                    self.failure = Some(error);
                    return self;
                }
            }
        }
        self.next = sequence;
        self
    }
}

/// The messages of a stream, as they are stored.
pub(super) struct StoredMessages {
    pub(super) context: Context,
    pub(super) denials: Denials,
    pub(super) runtime: Arc<dyn Runtime>,
}

impl StoredMessages {
    /// The first message of the consumer from this place on.
    async fn next(&self, sequence: u64, info: &consumer::Info) -> Result<Option<RawMessage>> {
        let one = [info.config.filter_subject.as_str()];
        let several = info.config.filter_subjects.iter().map(String::as_str);
        let filters = several.chain(one).filter(|filter| !filter.is_empty());
        let mut filters: Vec<&str> = filters.collect();
        if filters.is_empty() {
            filters.push(">");
        }
        let mut first: Option<RawMessage> = None;
        for filter in filters {
            let read = self.read(&info.stream_name, sequence, filter).await?;
            first = first.into_iter().chain(read).min_by_key(|message| message.sequence);
        }
        Ok(first)
    }

    async fn read(&self, stream: &str, sequence: u64, subject: &str) -> Result<Option<RawMessage>> {
        let request = json!({ "seq": sequence, "next_by_subj": subject });
        let reply = self.context.request::<_, _, Value>(format!("{GET}.{stream}"), &request);
        let late = || not_applied("JetStream does not show a stored message in time");
        let reply = timeout(&*self.runtime, LONGEST, self.denials.watch(GET, reply)).await.ok_or_else(late)??;
        let mut reply =
            reply.map_err(|error| not_applied("JetStream does not show a stored message").caused_by(error))?;
        // An error, if there is no such message.
        Ok(reply.get_mut("message").and_then(|message| serde_json::from_value(message.take()).ok()))
    }
}

/// The message, if the driver cannot read it.
fn unreadable(stored: RawMessage) -> Option<UnreadableMessage> {
    let headers = stored.headers.as_ref().map(|headers| STANDARD.decode(headers).unwrap_or_default());
    let why = damage(&stored.subject, headers.as_deref())?;
    let micros = u64::try_from(stored.time.unix_timestamp_nanos() / 1000).unwrap_or_default();
    Some(UnreadableMessage {
        sequence: stored.sequence,
        why,
        headers: headers.unwrap_or_default(),
        payload: STANDARD.decode(&stored.payload).unwrap_or_default().into(),
        published: Timestamp(micros),
    })
}

/// Lets the server keep the message for this worker meanwhile.
pub(super) async fn keep(client: &Client, handle: String) {
    let progress = async_nats::jetstream::AckKind::Progress;
    // Without a connection the message is searched for again.
    drop(client.publish(handle, progress.into()).await);
}

/// Why the driver cannot read a message. Reads as the driver does, because what it can read is not damaged.
fn damage(subject: &str, headers: Option<&[u8]>) -> Option<&'static str> {
    // JSON cannot show other bytes.
    if subject.contains(char::REPLACEMENT_CHARACTER) {
        return Some("the subject is not UTF-8");
    }
    let headers = headers.filter(|headers| !headers.is_empty())?;
    // The driver separates the subject from what follows by blanks of Unicode, if there are headers.
    if subject.contains(char::is_whitespace) {
        return Some("the subject has a blank");
    }
    let Ok(text) = std::str::from_utf8(headers) else { return Some("the headers are not UTF-8") };
    let mut lines = text.lines().peekable();
    let Some(status) = lines.next().and_then(|line| line.strip_prefix("NATS/1.0")).map(str::trim) else {
        return Some("the headers do not begin with NATS/1.0");
    };
    let status = status.split_once(' ').map_or(status, |(status, _)| status.trim());
    if !status.is_empty() && StatusCode::from_str(status).is_err() {
        return Some("the status has not three digits");
    }
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let Some((name, value)) = line.split_once(':') else { return Some("a header has no colon") };
        if HeaderName::from_str(name).is_err() {
            return Some("the name of a header has a blank, a control character or no ASCII");
        }
        let mut value = value.trim_start().to_owned();
        while let Some(more) = lines.next_if(|line| line.starts_with(char::is_whitespace)) {
            value.push_str(more);
        }
        if HeaderValue::from_str(value.trim_end()).is_err() {
            return Some("the value of a header has a line break");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_driver_cannot_read_is_damaged() {
        for headers in [
            &b"NATS/1.0\r\n\r\n"[..],
            b"NATS/1.0 404 No Messages\r\n\r\n",
            b"NATS/1.0   \r\nname:value\r\n\r\n",
            b"NATS/1.0\r\nname: value\r\r\n\r\n",
            b"NATS/1.0\r\nname: folded\r\n value\r\n\r\n",
            "NATS/1.0\r\nname: na\u{ef}ve\r\n\r\n".as_bytes(),
            b"NATS/1.0\r\n: no name\r\n\r\n",
            b"",
        ] {
            assert_eq!(damage("orders.x", Some(headers)), None, "{}", headers.escape_ascii());
        }
        assert_eq!(damage("orders.x", None), None);
        for headers in [
            &b"NATS/1.0\r\nname: a\rb\r\n\r\n"[..],
            b"NATS/1.0\r\nname: na\xefve\r\n\r\n",
            b"NATS/2.0\r\n\r\n",
            b"\r\n\r\n",
            b"NATS/1.0 4\r\n\r\n",
            b"NATS/1.0 abc\r\n\r\n",
            b"NATS/1.0\r\nname\r\n\r\n",
            b"NATS/1.0\r\nna me: value\r\n\r\n",
            "NATS/1.0\r\nn\u{e4}me: value\r\n\r\n".as_bytes(),
            b"NATS/1.0\r\nna\x01me: value\r\n\r\n",
            b"NATS/1.0\r\n folded: value\r\n\r\n",
            b"NATS/1.0\r\nname: value\r\n\rother: value\r\n\r\n",
        ] {
            assert!(damage("orders.x", Some(headers)).is_some(), "{}", headers.escape_ascii());
        }
        assert!(damage("orders.\u{fffd}", None).is_some());
        assert!(damage("orders.\u{a0}", Some(b"NATS/1.0\r\n\r\n")).is_some());
        assert_eq!(damage("orders.\u{a0}", None), None);
    }
}

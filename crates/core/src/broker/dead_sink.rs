use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::broker::{Coordinates, DeadLetter, DeadLetters, Headers, Position};
use crate::error::{Error, ErrorKind, Result};
use crate::key::EventId;
use crate::outbox::{OutgoingEvent, Published, Sink, is_reserved_header, percent_encoded, rfc3339};
use crate::runtime::{Runtime, timeout};
use crate::telemetry::{self, STUB, WITHOUT_HEADERS};

/// The topic of dead letters, under a template with `{topic}`.
const TOPIC: &str = "dead-letters";

/// The header that says what a letter lacks.
const LEFT_OUT: &str = "Hapax-Dead-Left-Out";

/// How long one call may take: less than the worker waits for it, so that the worker learns what was published.
const CALL_WITHIN: Duration = Duration::from_secs(25);

/// The words by which the server of NATS finds the id of a message, also inside of a name or a value.
const NATS_ID: &str = "nats-msg-id";

/// Publishes dead letters to a sink, for services that read them from a topic. They are not kept: neither `hapax dead`
/// nor a redrive of the worker knows them.
///
/// A letter is published under its own id, which is derived from its message: after a crash the same letter comes
/// again under the same id. Its topic is `dead-letters`, its ordering key, payload and headers are those of the
/// message. A header that the sink writes itself, such as `Idempotency-Key`, is called `Original-Idempotency-Key`, and
/// one of the broker, such as `Nats-Msg-Id`, `Original-Msg-Id`.
/// These headers are added: `Hapax-Dead-Reason`, `Hapax-Dead-Attempts`, `Hapax-Dead-Source`, `Hapax-Dead-At`, and
/// where the message has them, `Hapax-Dead-Cause`, `Hapax-Dead-Operation` and `Hapax-Dead-Place`.
///
/// A letter that a sink never takes, because it is too large for instance, is published without the headers of its
/// message. If a broker does not take that either, and a topic of Kafka keeps the message, the letter is a stub: it has
/// no payload, and says where the message lies. `Hapax-Dead-Left-Out` says how long the missing parts are. Each such
/// letter is counted and logged. The message of another broker waits.
pub struct SinkDeadLetters {
    sink: Arc<dyn Sink>,
    runtime: Arc<dyn Runtime>,
}

impl SinkDeadLetters {
    /// Dead letters for this sink.
    pub fn new(sink: Arc<dyn Sink>, runtime: Arc<dyn Runtime>) -> Self {
        Self { sink, runtime }
    }

    async fn publish_in_order(&self, letters: &[DeadLetter], places: Vec<usize>, results: &Mutex<Vec<Result<()>>>) {
        for place in places {
            let (Some(letter), late) = (letters.get(place), Error::new(ErrorKind::Unknown, "the sink is late")) else {
                return;
            };
            set(results, place, Err(late));
            let result = self.publish(letter).await;
            let has_failed = result.is_err();
            set(results, place, result);
            if has_failed {
                return;
            }
        }
    }

    /// Publishes a letter as a whole. If the sink never takes it, without the headers of its message, and then without
    /// the payload, too.
    async fn publish(&self, letter: &DeadLetter) -> Result<()> {
        let Some(reason) = self.refusal(event_of(letter)).await? else { return Ok(()) };
        for (form, event) in self.shorter(letter) {
            if self.refusal(event).await?.is_none() {
                telemetry::letter_shortened(letter, form, &reason);
                return Ok(());
            }
        }
        tracing::error!(
            letter = %letter.id,
            sink = &**self.sink.name(),
            reason,
            "The sink will never take a dead letter. Its message waits: change the sink or its limits."
        );
        Err(Error::new(ErrorKind::NotApplied, format!("the sink takes no such dead letter: {reason}")))
    }

    /// Publishes an event. Returns why the sink will never take it, or None if it took it.
    async fn refusal(&self, event: OutgoingEvent) -> Result<Option<String>> {
        match self.sink.publish(&Arc::new(event)).await {
            Published::Yes { .. } => Ok(None),
            Published::NotPublished { cause, .. } => {
                Err(Error::new(ErrorKind::NotApplied, "a dead letter was not published").caused_by(cause))
            }
            Published::Unknown(error) => {
                Err(Error::new(ErrorKind::Unknown, "a dead letter may be published").caused_by(error))
            }
            Published::Refused(reason) => Ok(Some(reason)),
        }
    }

    /// The shorter forms of a letter, the longest one first.
    fn shorter(&self, letter: &DeadLetter) -> impl Iterator<Item = (&'static str, OutgoingEvent)> {
        let has_headers = letter.message.headers.size() > 0;
        let stub = stub(letter);
        // An endpoint decides by the payload, too. It might take a stub of a message that it refuses, and the message
        // would be lost.
        let is_at_broker = self.sink.endpoint(&stub).is_none();
        let without_headers = has_headers.then(|| (WITHOUT_HEADERS, without_headers(letter)));
        let may_be_stub = is_at_broker && stays_at_broker(letter) && !letter.message.payload.is_empty();
        let stub = may_be_stub.then_some((STUB, stub));
        without_headers.into_iter().chain(stub)
    }
}

#[async_trait]
impl DeadLetters for SinkDeadLetters {
    /// Those of one ordering key one after the other, so that they keep their order: after one that fails, the rest of
    /// its key waits. Other keys go on.
    async fn put(&self, letters: Vec<DeadLetter>) -> Vec<Result<()>> {
        let waits = || Err(Error::new(ErrorKind::NotApplied, "a dead letter waits for an earlier one"));
        let results = Mutex::new(letters.iter().map(|_| waits()).collect::<Vec<_>>());
        let groups = grouped(&letters).into_iter().map(|group| self.publish_in_order(&letters, group, &results));
        // What has not ended by then has its result of before.
        let _ = timeout(&*self.runtime, CALL_WITHIN, join_all(groups)).await;
        results.into_inner()
    }
}

fn set(results: &Mutex<Vec<Result<()>>>, place: usize, result: Result<()>) {
    if let Some(slot) = results.lock().get_mut(place) {
        *slot = result;
    }
}

/// The places of the letters, those of one ordering key together. A letter without a key is alone.
fn grouped(letters: &[DeadLetter]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut group_of: BTreeMap<&[u8], usize> = BTreeMap::new();
    for (place, letter) in letters.iter().enumerate() {
        let key = letter.message.ordering_key.as_deref();
        let group = key.map_or(groups.len(), |key| *group_of.entry(key).or_insert(groups.len()));
        match groups.get_mut(group) {
            Some(group) => group.push(place),
            None => groups.push(vec![place]),
        }
    }
    groups
}

impl fmt::Debug for SinkDeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkDeadLetters").field("sink", &self.sink.name()).finish()
    }
}

fn event_of(letter: &DeadLetter) -> OutgoingEvent {
    let message = &letter.message;
    let mut headers = Headers::default();
    for (name, value) in message.headers.iter() {
        let name = if is_reserved_header(name) { format!("Original-{}", bare_name(name)) } else { name.to_owned() };
        let is_text = std::str::from_utf8(value).is_ok_and(|text| !text.contains(char::is_control));
        let value = if is_text { value.clone() } else { percent_encoded(value) };
        headers.push(without_id(plain_name(&name)), without_id_field(value));
    }
    event_with(letter, headers, message.payload.clone())
}

fn without_headers(letter: &DeadLetter) -> OutgoingEvent {
    let mut headers = Headers::default();
    headers.push(LEFT_OUT, format!("headers; they have {} bytes", letter.message.headers.size()));
    event_with(letter, headers, letter.message.payload.clone())
}

/// Whether the broker of the message keeps it after its acknowledgement. A topic of Kafka does. A queue deletes it, and
/// whether a stream keeps it depends on its settings.
fn stays_at_broker(letter: &DeadLetter) -> bool {
    letter.message.coordinates.as_ref().is_some_and(|place| place.origin.starts_with("kafka/"))
}

/// A letter that only says where its message lies.
fn stub(letter: &DeadLetter) -> OutgoingEvent {
    let (headers_len, payload_len) = (letter.message.headers.size(), letter.message.payload.len());
    let mut headers = Headers::default();
    let what = format!("headers and payload; they have {headers_len} and {payload_len} bytes");
    headers.push(LEFT_OUT, what);
    event_with(letter, headers, Bytes::new())
}

/// The event of a letter, with its own headers behind these.
fn event_with(letter: &DeadLetter, mut headers: Headers, payload: Bytes) -> OutgoingEvent {
    headers.push("Hapax-Dead-Reason", letter.reason.as_str());
    headers.push("Hapax-Dead-Attempts", letter.attempts.to_string());
    headers.push("Hapax-Dead-Source", letter.source.to_string());
    headers.push("Hapax-Dead-At", rfc3339(letter.at));
    if let Some(cause) = &letter.cause {
        headers.push("Hapax-Dead-Cause", without_id_field(cause.as_str().to_owned().into()));
    }
    if let Some(operation) = letter.operation {
        headers.push("Hapax-Dead-Operation", operation.to_string());
    }
    if let Some(place) = &letter.message.coordinates {
        headers.push("Hapax-Dead-Place", place_of(place));
    }
    OutgoingEvent {
        namespace: letter.namespace.to_string(),
        ordering_key: letter.message.ordering_key.clone(),
        kind: Some(OutgoingEvent::DEAD_LETTER.into()),
        source: Some(letter.source.to_string()),
        headers,
        created_at: letter.at,
        ..OutgoingEvent::new(EventId::from_bytes(*letter.id.as_bytes()), TOPIC, payload)
    }
}

/// A name without the mark of the headers of NATS, which its server finds also inside of another name.
fn bare_name(name: &str) -> &str {
    match name.split_at_checked(5) {
        Some((mark, rest)) if mark.eq_ignore_ascii_case("nats-") => rest,
        Some(_) | None => name,
    }
}

/// A name without the words for the id of a message.
fn without_id(mut name: String) -> String {
    while let Some(place) = name.to_ascii_lowercase().find(NATS_ID) {
        // Leaves `msg-id`.
        name.replace_range(place..place + 5, "");
    }
    name
}

/// A value without the words for the id of a message and their colon, which is percent-encoded.
fn without_id_field(value: Bytes) -> Bytes {
    match std::str::from_utf8(&value) {
        Ok(text) if text.contains("Nats-Msg-Id:") => text.replace("Nats-Msg-Id:", "Nats-Msg-Id%3A").into(),
        Ok(_) | Err(_) => value,
    }
}

/// A name that every broker takes.
fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() && c != ':' { c } else { '-' };
    if name.is_empty() { "Original".into() } else { name.chars().map(plain).collect() }
}

fn place_of(place: &Coordinates) -> String {
    let position = match &place.position {
        Position::Number(number) => number.to_string(),
        Position::Id(id) => String::from_utf8_lossy(&percent_encoded(id)).into_owned(),
    };
    format!("{}/{}/{position}", place.origin, place.partition)
}

//! Dead letters at a sink that takes some of them, or takes long.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::broker::{
    Coordinates, DeadCause, DeadLetter, DeadLetterId, DeadLetters, DeadReason, Headers, Message, Position,
    SinkDeadLetters,
};
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use hapax_core::store::Finding;
use hapax_core::{ErrorKind, Fingerprint, Result, Timestamp};
use parking_lot::Mutex;

use crate::stepped::Stepped;

/// Refuses the key `bad`, and never answers for the key `silent`.
#[derive(Debug)]
struct PickySink {
    name: Arc<str>,
    tried: Mutex<Vec<Vec<u8>>>,
}

#[async_trait]
impl Sink for PickySink {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn max_len(&self) -> usize {
        1_000_000
    }

    fn window(&self) -> Option<Duration> {
        None
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn publish(&self, event: &Arc<OutgoingEvent>) -> Published {
        self.tried.lock().push(event.payload.to_vec());
        match event.ordering_key.as_deref() {
            Some(b"bad") => Published::Refused("never".into()),
            Some(b"silent") => std::future::pending().await,
            Some(_) | None => Published::Yes { caught: false },
        }
    }

    async fn close(&self) {}
}

fn letter(key: Option<&'static str>, number: u8) -> DeadLetter {
    let message = Message { payload: vec![number].into(), ordering_key: key.map(Into::into), ..Message::default() };
    DeadLetter {
        id: DeadLetterId::from_bytes([number; 16]),
        reason: DeadReason::AttemptsExhausted,
        attempts: 8,
        cause: None,
        namespace: "billing".into(),
        source: "memory/orders/billing".into(),
        operation: None,
        fingerprint: Fingerprint::NONE,
        message: Arc::new(message),
        at: Timestamp(1_700_000_000_000_000),
    }
}

#[tokio::test]
async fn a_letter_that_is_refused_or_late_holds_back_only_those_of_its_key() {
    let time = Stepped::new();
    let sink = Arc::new(PickySink { name: "picky".into(), tried: Mutex::default() });
    let letters = SinkDeadLetters::new(Arc::clone(&sink) as _, Arc::clone(&time) as _);
    let keys = [Some("silent"), Some("bad"), Some("good"), Some("bad"), None, Some("silent"), Some("good"), None];
    let all = keys.into_iter().zip(0..).map(|(key, number)| letter(key, number)).collect();
    let (results, ()) = tokio::join!(letters.put(all), time.pass(Duration::from_secs(29)));
    let kinds: Vec<Option<ErrorKind>> =
        results.into_iter().map(|result| result.err().map(|error| error.kind())).collect();
    let (open, unknown) = (Some(ErrorKind::NotApplied), Some(ErrorKind::Unknown));
    assert_eq!(kinds, [unknown, open, None, open, None, open, None, None]);
    // A letter of the key `bad` is tried again as a stub, which has no payload.
    let mut tried: Vec<u8> = sink.tried.lock().iter().filter_map(|payload| payload.first().copied()).collect();
    tried.sort_unstable();
    assert_eq!(tried, [0, 1, 2, 4, 6, 7]);
}

/// Takes events up to a size, in bytes of payload and headers.
#[derive(Debug)]
struct SmallSink {
    name: Arc<str>,
    takes: usize,
    /// The endpoint that decides what is taken, if a service does.
    endpoint: Option<Arc<str>>,
    taken: Mutex<Vec<Arc<OutgoingEvent>>>,
}

impl SmallSink {
    fn new(takes: usize, endpoint: Option<&str>) -> Arc<Self> {
        Arc::new(Self { name: "small".into(), takes, endpoint: endpoint.map(Into::into), taken: Mutex::default() })
    }
}

#[async_trait]
impl Sink for SmallSink {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn max_len(&self) -> usize {
        self.takes
    }

    fn window(&self) -> Option<Duration> {
        None
    }

    fn endpoint(&self, _event: &OutgoingEvent) -> Option<Arc<str>> {
        self.endpoint.clone()
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn publish(&self, event: &Arc<OutgoingEvent>) -> Published {
        if event.size() > self.takes {
            return Published::Refused("it is too large".into());
        }
        self.taken.lock().push(Arc::clone(event));
        Published::Yes { caught: false }
    }

    async fn close(&self) {}
}

/// A letter whose message has so many bytes of payload and of headers.
fn sized(payload: usize, header: usize) -> DeadLetter {
    let headers: Headers = [("trace", vec![b'x'; header])].into_iter().filter(|_| header > 0).collect();
    let coordinates = Coordinates { origin: "kafka/c/orders".into(), partition: 3, position: Position::Number(41) };
    let message =
        Message { payload: vec![b'x'; payload].into(), headers, coordinates: Some(coordinates), ..Message::default() };
    let cause = DeadCause::new("the target answered 503");
    DeadLetter { cause, message: Arc::new(message), ..letter(None, 7) }
}

async fn put_one(sink: &Arc<SmallSink>, letter: DeadLetter) -> Option<ErrorKind> {
    let letters = SinkDeadLetters::new(Arc::clone(sink) as _, Stepped::new());
    letters.put(vec![letter]).await.remove(0).err().map(|error| error.kind())
}

/// The payload, and the values of a header.
fn shown(event: &OutgoingEvent, name: &str) -> (usize, Vec<String>) {
    let values = event.headers.all(name).map(|value| String::from_utf8(value.to_vec()).unwrap());
    (event.payload.len(), values.collect())
}

#[tokio::test]
async fn a_letter_that_is_too_large_loses_its_headers_and_then_its_payload_and_says_where_its_message_lies() {
    let sink = SmallSink::new(1_000, None);
    for (payload, header) in [(100, 100), (600, 600), (2_000, 600), (2_000, 0)] {
        assert_eq!(put_one(&sink, sized(payload, header)).await, None, "{payload} and {header} bytes");
    }
    let taken = sink.taken.lock();
    let left_out: Vec<_> = taken.iter().map(|event| shown(event, "hapax-dead-left-out")).collect();
    let said = |text: &str| vec![text.to_owned()];
    assert_eq!(
        left_out,
        [
            (100, vec![]),
            (600, said("headers; they have 605 bytes")),
            (0, said("headers and payload; they have 605 and 2000 bytes")),
            (0, said("headers and payload; they have 0 and 2000 bytes")),
        ]
    );
    for event in &*taken {
        assert_eq!(shown(event, "hapax-dead-place").1, ["kafka/c/orders/3/41"]);
        assert_eq!(shown(event, "hapax-dead-cause").1, ["the target answered 503"]);
    }
}

#[tokio::test]
async fn no_payload_is_left_out_where_a_service_decides_what_it_takes() {
    let sink = SmallSink::new(1_000, Some("audit"));
    assert_eq!(put_one(&sink, sized(2_000, 0)).await, Some(ErrorKind::NotApplied));
    assert_eq!(put_one(&sink, sized(600, 600)).await, None);
    assert_eq!(sink.taken.lock().len(), 1);
}

#[tokio::test]
async fn no_payload_is_left_out_if_the_broker_deletes_the_message() {
    let places = [None, Some("sqs/eu-west-1/orders"), Some("nats/orders")];
    for origin in places {
        let place = |origin: &str| Coordinates { origin: origin.into(), partition: 0, position: Position::Number(1) };
        let message = Message { payload: vec![b'x'; 2_000].into(), ..Message::default() };
        let message = Message { coordinates: origin.map(place), ..message };
        let sink = SmallSink::new(1_000, None);
        let letter = DeadLetter { message: Arc::new(message), ..letter(None, 7) };
        assert_eq!(put_one(&sink, letter).await, Some(ErrorKind::NotApplied), "{origin:?}");
        assert_eq!(sink.taken.lock().len(), 0, "{origin:?}");
    }
}

#[tokio::test]
async fn a_letter_waits_if_even_its_stub_is_refused() {
    let sink = SmallSink::new(10, None);
    assert_eq!(put_one(&sink, sized(2_000, 600)).await, Some(ErrorKind::NotApplied));
}

//! Dead letters at a sink that takes some of them, or takes long.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::broker::{DeadLetter, DeadLetterId, DeadLetters, DeadReason, Message, SinkDeadLetters};
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
    let mut tried: Vec<u8> = sink.tried.lock().iter().map(|payload| payload[0]).collect();
    tried.sort_unstable();
    assert_eq!(tried, [0, 1, 2, 4, 6, 7]);
}

//! The other end: a worker with a ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::{
    DeadCause, DeadLetter, DeadLetterId, DeadLetters, DeadReason, Job, Message, Process, SinkDeadLetters, Verdict,
};
use hapax_core::outbox::TopicTemplate;
use hapax_core::runtime::timeout;
use hapax_core::worker::{MessageIdentity, Worker};
use hapax_core::{Fingerprint, OperationId, Timestamp};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::setup::SinkOptions;
use super::world::{LIMIT, SinkWorld, ordered, patient};
use crate::memory_dead_letters::MemoryDeadLetters;

/// Effects by operation, each once.
#[derive(Default)]
struct Inbox {
    state: Mutex<InboxState>,
}

#[derive(Default)]
struct InboxState {
    operations: BTreeSet<OperationId>,
    /// The keys of the operations, by ordering key, in the order of their effects.
    effects: BTreeMap<Option<Bytes>, Vec<String>>,
    deliveries: usize,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inbox")
    }
}

#[async_trait]
impl Process for Inbox {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let mut state = self.state.lock();
        let handle = |job: &Job| {
            state.deliveries += 1;
            let is_new = state.operations.insert(job.call.operation());
            if is_new {
                let key = String::from_utf8_lossy(job.key.as_bytes()).into_owned();
                state.effects.entry(job.message.ordering_key.clone()).or_default().push(key);
            }
            Verdict::Done { caught: !is_new }
        };
        jobs.iter().map(handle).collect()
    }
}

pub(super) async fn an_event_that_is_published_twice_is_handled_once(world: &SinkWorld) {
    let sink = world.open().await;
    let events: Vec<_> = (0..10).map(|number| ordered(world.event(number), "account-7")).collect();
    for event in &events {
        world.deliver(&*sink, event).await;
    }
    // A relay that took over and does not know that they were published.
    let other = world.open().await;
    for event in &events {
        world.deliver(&*other, event).await;
    }
    let inbox = Arc::new(Inbox::default());
    let dead = MemoryDeadLetters::new();
    let worker = Worker::builder(world.setup.source().await, Arc::clone(&inbox) as _, Arc::new(dead.clone()))
        .identity(MessageIdentity::new("consumer").expect("a valid namespace"))
        .runtime(world.setup.runtime())
        .build()
        .expect("valid settings");
    let (stop, stopped) = oneshot::channel::<()>();
    let runs = worker.run(async { drop(stopped.await) });
    let sends = if sink.window().is_some() { 10 } else { 20 };
    let watch = async {
        while inbox.state.lock().deliveries < sends {
            world.pause().await;
        }
        drop(stop);
    };
    let runtime = world.setup.runtime();
    let both = timeout(&*runtime, LIMIT, futures_util::future::join(runs, watch)).await;
    both.expect("everything is delivered in time").0.expect("the source can be used");
    let ids = events.iter().map(|event| event.id.to_string()).collect();
    assert_eq!(inbox.state.lock().effects, BTreeMap::from([(Some(Bytes::from_static(b"account-7")), ids)]));
    assert!(dead.letters().is_empty(), "{:?}", dead.letters());
}

/// As after a crash between the confirmation of a letter and the acknowledgement of its message.
pub(super) async fn a_dead_letter_is_repeated_under_one_id(world: &SinkWorld) {
    let sink = world.setup.open(SinkOptions { topic: constant(&world.setup.topic()), ..patient() }).await;
    let letters = SinkDeadLetters::new(Arc::clone(&sink), world.setup.runtime());
    let headers =
        [("Idempotency-Key", &b"order-7"[..]), ("Nats-Msg-Id", b"1"), ("X-Nats-Msg-Id", b"2"), ("x own", b"\xff\r\n")];
    let message = Message {
        payload: "body".into(),
        headers: headers.map(|(name, value)| (name, value.to_vec())).into_iter().collect(),
        ordering_key: Some("account-7".into()),
        ..Message::default()
    };
    let letter = DeadLetter {
        id: DeadLetterId::from_bytes([7; 16]),
        reason: DeadReason::AttemptsExhausted,
        attempts: 8,
        cause: DeadCause::new("the target answered 503"),
        namespace: "billing".into(),
        source: "memory/orders/billing".into(),
        operation: Some(OperationId::from_bytes([9; 16])),
        fingerprint: Fingerprint::NONE,
        message: Arc::new(message),
        at: Timestamp(1_700_000_000_000_000),
    };
    for _ in 0..2 {
        let results = letters.put(vec![letter.clone()]).await;
        assert!(results.len() == 1 && results[0].is_ok(), "{results:?}");
    }
    let copies = if sink.window().is_some() { 1 } else { 2 };
    assert_eq!(world.copies(copies).await, BTreeMap::from([(letter.id.to_string(), copies)]));
    let arrived = world.arrived(copies).await.remove(0);
    assert_eq!((&arrived.payload[..], arrived.ordering_key.as_deref()), (&b"body"[..], Some(&b"account-7"[..])));
    for (name, value) in [
        ("hapax-dead-cause", "the target answered 503"),
        ("original-idempotency-key", "order-7"),
        ("original-msg-id", "1"),
        ("x-msg-id", "2"),
        ("x-own", "%FF%0D%0A"),
        ("hapax-dead-reason", "attempts-exhausted"),
        ("hapax-dead-attempts", "8"),
        ("hapax-dead-source", "memory/orders/billing"),
        ("hapax-dead-at", "2023-11-14T22:13:20.000000Z"),
        ("hapax-dead-operation", "09090909-0909-0909-0909-090909090909"),
    ] {
        assert_eq!(arrived.headers.all(name).collect::<Vec<_>>(), [value], "{name}");
    }
}

fn constant(name: &str) -> TopicTemplate {
    name.parse().expect("a name without braces")
}

//! Relays on the outbox, with the claims in the store of the same database, and a sink that keeps what arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::outbox::{OutgoingEvent, Published, Sink, bucket_of};
use hapax_core::relay::{Relay, RelaySettings, bucket_records, member_records};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::{Finding, Swapped};
use hapax_core::{EventId, Millis, RecordKey, Result};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::world::{OutboxWorld, event};
use crate::{pause, yield_now};

/// Keeps the events in the order in which they arrive.
#[derive(Debug)]
struct ArrivalSink {
    name: Arc<str>,
    arrived: Mutex<Vec<Arc<OutgoingEvent>>>,
}

#[async_trait]
impl Sink for ArrivalSink {
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
        yield_now().await;
        self.arrived.lock().push(Arc::clone(event));
        yield_now().await;
        Published::Yes { caught: false }
    }

    async fn close(&self) {}
}

impl ArrivalSink {
    fn new() -> Arc<Self> {
        Arc::new(Self { name: "arrivals".into(), arrived: Mutex::default() })
    }

    /// The topics of each ordering key, each event once, in the order of their first arrivals.
    fn first_arrivals(&self) -> BTreeMap<Option<String>, Vec<String>> {
        let mut seen = BTreeSet::<EventId>::new();
        let mut arrivals = BTreeMap::<Option<String>, Vec<String>>::new();
        for event in &*self.arrived.lock() {
            if seen.insert(event.id) {
                let key = event.ordering_key.as_ref().map(|key| String::from_utf8_lossy(key).into_owned());
                arrivals.entry(key).or_default().push(event.topic.clone());
            }
        }
        arrivals
    }
}

/// A relay in a task of its own. It stops in order when the sender is dropped.
fn start(world: &OutboxWorld<'_>, sink: &Arc<ArrivalSink>) -> oneshot::Sender<()> {
    let mut settings = RelaySettings::default();
    settings.lease = Millis(2000);
    let relay = Relay::builder(Arc::clone(&world.outbox), world.store(), Arc::clone(sink) as _)
        .upkeep(Arc::clone(&world.upkeep))
        .settings(settings)
        .build()
        .expect("the settings are valid");
    let (sender, receiver) = oneshot::channel::<()>();
    let shutdown = async move { drop(receiver.await) };
    Tokio::current().spawn(Box::pin(async move {
        relay.run(shutdown).await.expect("the outbox can be used");
    }));
    sender
}

/// Polls until so many events have arrived.
async fn wait_for(sink: &ArrivalSink, count: usize) {
    let runtime = Tokio::current();
    let until = runtime.boottime_now() + Duration::from_secs(60);
    loop {
        let arrived: usize = sink.first_arrivals().values().map(Vec::len).sum();
        if arrived >= count {
            return;
        }
        assert!(runtime.boottime_now() < until, "{arrived} of {count} events have arrived within a minute");
        pause().await;
    }
}

/// Polls until a running relay holds all of these records.
async fn wait_until_claimed(world: &OutboxWorld<'_>, records: &[RecordKey]) {
    let (runtime, store) = (Tokio::current(), world.store());
    let until = runtime.boottime_now() + Duration::from_secs(60);
    for rk in records {
        while !store.read(rk).await.expect("the store answers").is_running() {
            assert!(runtime.boottime_now() < until, "no relay has claimed {rk:?} within a minute");
            pause().await;
        }
    }
}

/// Two relays, one of which stops while events are written.
pub(super) async fn relays_publish_every_event_in_the_order_of_its_key(world: &OutboxWorld<'_>) {
    let sink = ArrivalSink::new();
    let (first, _second) = (start(world, &sink), start(world, &sink));
    let mut expected = BTreeMap::<Option<String>, Vec<String>>::new();
    let mut first = Some(first);
    for number in 0..40 {
        let mut events = Vec::new();
        for key in 0..6 {
            let (key, topic) = (format!("key {key}"), format!("event {number}"));
            events.push(event(&topic, Some(&key)));
            expected.entry(Some(key)).or_default().push(topic);
        }
        world.emit(&events).await;
        let mut rolled_back = world.begin().await;
        rolled_back.emit(&event("undone", Some("key 1"))).await.expect("the event is within its limits");
        drop(rolled_back);
        if number == 20 {
            drop(first.take());
        }
    }
    wait_for(&sink, 240).await;
    assert_eq!(sink.first_arrivals(), expected);
}

/// An event of a slow transaction, and then one of the same key, whose transaction began when the slow one had ended.
pub(super) async fn a_slow_transaction_keeps_the_order_of_its_key(world: &OutboxWorld<'_>) {
    let sink = ArrivalSink::new();
    let _relay = start(world, &sink);
    let slow = world.begin_slow(&event("slow", Some("a"))).await;
    // The relay passes the row of the slow transaction in its bucket.
    let mut keys = (0..).map(|number| format!("other {number}"));
    let neighbour = keys.find(|key| bucket_of(key.as_bytes()) == bucket_of(b"a")).expect("there are 64 buckets");
    for number in 1..=5 {
        world.emit(&[event("other", Some(&neighbour))]).await;
        wait_for(&sink, number).await;
    }
    slow.commit().await.expect("nothing conflicts");
    world.emit(&[event("fast", Some("a"))]).await;
    wait_for(&sink, 7).await;
    assert_eq!(sink.first_arrivals()[&Some("a".to_owned())], ["slow", "fast"]);
}

/// The records of the claims are removed while their relay runs, as by a restore. The next relay would find its buckets
/// free, so this one must not go on as if it had them: it claims them again.
pub(super) async fn a_claim_whose_record_is_gone_is_lost(world: &OutboxWorld<'_>) {
    let sink = ArrivalSink::new();
    let _relay = start(world, &sink);
    let buckets = bucket_records().expect("the keys are valid");
    let place = member_records().expect("the keys are valid")[0];
    let claims: Vec<RecordKey> = buckets.into_iter().chain([place]).collect();
    wait_until_claimed(world, &claims).await;
    let (store, records) = (world.store(), world.records());
    for rk in &claims {
        loop {
            let seen = store.read(rk).await.expect("the store answers");
            // A renewal may come in between.
            if records.purge(rk, &seen).await.expect("the store answers") == Swapped::Yes {
                break;
            }
        }
    }
    wait_until_claimed(world, &claims).await;
    world.emit(&[event("after", Some("a"))]).await;
    wait_for(&sink, 1).await;
}

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::outbox::{OutgoingEvent, Published, Sink, TopicTemplate};
use hapax_core::runtime::timeout;
use hapax_core::{EventId, Timestamp};

use super::setup::{ArrivedEvent, SinkOptions, SinkSetup};

/// How long anything may take.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// How long a publication may take where the broker is there.
const PATIENT: Duration = Duration::from_secs(60);

/// How long a publication may take where a case waits for the end of this time.
pub(super) const SHORT: Duration = Duration::from_secs(2);

/// The time between two looks.
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct SinkWorld {
    pub(super) setup: Arc<dyn SinkSetup>,
}

impl SinkWorld {
    pub(super) async fn open(&self) -> Arc<dyn Sink> {
        self.setup.open(patient()).await
    }

    /// The `number`-th event of the case.
    pub(super) fn event(&self, number: u32) -> OutgoingEvent {
        let mut id = [0x5a; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        let mut event = OutgoingEvent::new(EventId::from_random(id), self.setup.topic(), format!("event {number}"));
        event.namespace = "suite".into();
        event.created_at = Timestamp(1_700_000_000_000_000);
        event
    }

    /// Publishes until the sink confirms it, as a relay does. Returns whether the broker recognized it as a copy.
    pub(super) async fn deliver(&self, sink: &dyn Sink, event: &Arc<OutgoingEvent>) -> bool {
        let runtime = self.setup.runtime();
        let until = runtime.boottime_now() + LIMIT;
        loop {
            let why = match self.publish(sink, event).await {
                Published::Yes { caught } => return caught,
                Published::Refused(reason) => panic!("the event is refused: {reason}"),
                Published::NotPublished { cause: error, .. } | Published::Unknown(error) => error,
            };
            assert!(runtime.boottime_now() < until, "the sink does not confirm an event: {why:?}");
            self.pause().await;
        }
    }

    /// Publishes once.
    pub(super) async fn publish(&self, sink: &dyn Sink, event: &Arc<OutgoingEvent>) -> Published {
        let published = timeout(&*self.setup.runtime(), LIMIT, sink.publish(event)).await;
        published.expect("a publication ends within the sink's own limit")
    }

    /// Waits until so many events have arrived, and returns everything.
    pub(super) async fn arrived(&self, count: usize) -> Vec<ArrivedEvent> {
        let runtime = self.setup.runtime();
        let until = runtime.boottime_now() + LIMIT;
        loop {
            let arrived = self.setup.arrived().await;
            if arrived.len() >= count {
                return arrived;
            }
            assert!(runtime.boottime_now() < until, "{} of {count} events have arrived", arrived.len());
            self.pause().await;
        }
    }

    /// How often each event has arrived, by its id, after `count` have.
    pub(super) async fn copies(&self, count: usize) -> BTreeMap<String, usize> {
        let mut copies = BTreeMap::new();
        for event in self.arrived(count).await {
            *copies.entry(event.id).or_default() += 1;
        }
        copies
    }

    /// The pause between two looks.
    pub(super) async fn pause(&self) {
        self.setup.runtime().sleep(LOOK).await;
    }
}

/// An event with this ordering key.
pub(super) fn ordered(mut event: OutgoingEvent, key: &str) -> Arc<OutgoingEvent> {
    event.ordering_key = Some(Bytes::copy_from_slice(key.as_bytes()));
    Arc::new(event)
}

pub(super) fn patient() -> SinkOptions {
    SinkOptions { topic: TopicTemplate::default(), address: None, timeout: PATIENT }
}

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use hapax_core::runtime::Runtime;
use hapax_core::store::Finding;
use hapax_core::{Error, ErrorKind, EventId, Result};
use hapax_testkit::Process;

use super::plan::OutboxFault;
use super::world::SimulatedRelays;

/// What the broker has, and what it does not take.
#[derive(Debug, Default)]
pub(super) struct Broker {
    /// In the order of their arrivals.
    pub(super) arrived: Vec<EventId>,
    /// Those that it has not lost.
    pub(super) has: BTreeSet<EventId>,
    /// The ids by which it recognizes a repetition. None if it recognizes none.
    pub(super) remembered: Option<BTreeSet<String>>,
    /// Events that it never takes.
    pub(super) refuses: BTreeSet<EventId>,
    /// Topics of which it takes nothing now.
    pub(super) dead_topics: BTreeSet<&'static str>,
}

impl Broker {
    /// Takes an event, unless it is recognized. Returns whether it is new.
    fn take(&mut self, event: &OutgoingEvent) -> bool {
        let is_new = self.remembered.as_mut().is_none_or(|ids| ids.insert(event.deduplication_id()));
        if is_new {
            self.arrived.push(event.id);
            self.has.insert(event.id);
        }
        is_new
    }

    /// Loses the last events, and remembers their ids.
    pub(super) fn lose(&mut self, count: usize) {
        for event in self.arrived.iter().rev().take(count) {
            self.has.remove(event);
        }
    }
}

/// The sink of one relay.
pub(super) struct BrokerSink {
    name: Arc<str>,
    world: Arc<SimulatedRelays>,
    process: Arc<Process>,
}

impl BrokerSink {
    pub(super) fn new(world: Arc<SimulatedRelays>, process: Arc<Process>) -> Self {
        Self { name: "broker".into(), world, process }
    }

    async fn travel(&self) {
        self.process.sleep(self.world.dice.up_to(Duration::from_millis(40))).await;
    }

    /// Why the broker does not take the event now.
    fn refusal(&self, event: &OutgoingEvent) -> Option<Published> {
        let failed = || Error::new(ErrorKind::NotApplied, "the broker does not take it now");
        let (dice, broker) = (&self.world.dice, self.world.broker.lock());
        if broker.refuses.contains(&event.id) {
            self.world.count(OutboxFault::Refused.name());
            return Some(Published::Refused("the broker never takes it".to_owned()));
        }
        let is_dead = broker.dead_topics.contains(&*event.topic);
        drop(broker);
        let after = if dice.percent(50) { Duration::ZERO } else { dice.up_to(Duration::from_secs(8)) };
        (is_dead || self.world.breaks(OutboxFault::Failed, 15))
            .then(|| Published::NotPublished { after, cause: failed() })
    }
}

#[async_trait]
impl Sink for BrokerSink {
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
        let unknown = || Published::Unknown(Error::new(ErrorKind::Unknown, "no reply"));
        self.travel().await;
        if let Some(refusal) = self.refusal(event) {
            return refusal;
        }
        if self.world.breaks(OutboxFault::Unknown, 10) {
            return unknown();
        }
        let is_new = self.world.broker.lock().take(event);
        self.travel().await;
        if self.world.breaks(OutboxFault::Unknown, 10) {
            return unknown();
        }
        Published::Yes { caught: !is_new }
    }

    async fn close(&self) {}
}

impl fmt::Debug for BrokerSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BrokerSink")
    }
}

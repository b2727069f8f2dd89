use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::outbox::{Outbox, OutboxUpkeep, OutgoingEvent};
use hapax_core::{BoxError, EventId, Inspect, Store};

/// An empty outbox. Its methods are called on one thread.
#[async_trait(?Send)]
pub trait OutboxSetup {
    /// The outbox of a relay.
    fn outbox(&self) -> Arc<dyn Outbox>;

    /// The outbox of an operator.
    fn upkeep(&self) -> Arc<dyn OutboxUpkeep>;

    /// The records of the same database, in which relays claim their buckets.
    fn store(&self) -> Arc<dyn Store>;

    /// The same records, as an operator sees and removes them.
    fn records(&self) -> Arc<dyn Inspect>;

    /// Begins a transaction of a writer.
    async fn begin(&self) -> Box<dyn OutboxWriter>;

    /// Begins a transaction that has drawn the row id of this event, and nothing else where the database lets it.
    async fn begin_slow(&self, event: &OutgoingEvent) -> Box<dyn OutboxWriter>;

    /// Makes everything older that was written until now.
    async fn age(&self, by: Duration);
}

/// A transaction of a writer. Dropped, it is rolled back.
#[async_trait(?Send)]
pub trait OutboxWriter {
    /// Writes an event by the means that the database offers to writers. Returns its id, which is derived if the event
    /// has an operation, and new otherwise: the id of the argument is ignored.
    async fn emit(&mut self, event: &OutgoingEvent) -> Result<EventId, BoxError>;

    /// Commits.
    async fn commit(self: Box<Self>) -> Result<(), BoxError>;
}

/// A property of an outbox that a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboxCapability {
    /// Two transactions can write at the same time.
    ConcurrentWriters,
    /// An event out of its limits, and one that was written before, are refused.
    Constraints,
}

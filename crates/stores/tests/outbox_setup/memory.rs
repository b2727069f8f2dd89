//! The outbox suite's setup of the outbox in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::outbox::{MemoryOutbox, MemoryTransaction, Outbox, OutboxUpkeep, OutgoingEvent};
use hapax_core::store::Memory;
use hapax_core::{BoxError, EventId, Inspect, Store};
use hapax_testkit::{ManualClock, OutboxBackend, OutboxCapability, OutboxSetup, OutboxWriter};

pub(crate) fn backend() -> OutboxBackend {
    OutboxBackend::new("memory", || async { Box::new(MemorySetup::new()) as Box<dyn OutboxSetup> })
        .lacking(&[(OutboxCapability::Constraints, "it is for tests")])
}

struct MemorySetup {
    outbox: MemoryOutbox,
    store: Arc<Memory>,
    clock: Arc<ManualClock>,
}

impl MemorySetup {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        Self { outbox: MemoryOutbox::new(Arc::clone(&clock) as Arc<_>), store: Arc::new(Memory::new()), clock }
    }
}

#[async_trait(?Send)]
impl OutboxSetup for MemorySetup {
    fn outbox(&self) -> Arc<dyn Outbox> {
        Arc::new(self.outbox.clone())
    }

    fn upkeep(&self) -> Arc<dyn OutboxUpkeep> {
        Arc::new(self.outbox.clone())
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    fn records(&self) -> Arc<dyn Inspect> {
        Arc::clone(&self.store) as Arc<dyn Inspect>
    }

    async fn begin(&self) -> Box<dyn OutboxWriter> {
        Box::new(MemoryWriter(self.outbox.begin()))
    }

    async fn begin_slow(&self, event: &OutgoingEvent) -> Box<dyn OutboxWriter> {
        let mut writer = self.begin().await;
        writer.emit(event).await.expect("it takes every event");
        writer
    }

    async fn age(&self, by: Duration) {
        self.clock.forward(by);
    }
}

struct MemoryWriter(MemoryTransaction);

#[async_trait(?Send)]
impl OutboxWriter for MemoryWriter {
    async fn emit(&mut self, event: &OutgoingEvent) -> Result<EventId, BoxError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let new = || EventId::from_random(u128::from(NEXT.fetch_add(1, Ordering::Relaxed)).to_be_bytes());
        let derived = event.operation.zip(event.number);
        let id = derived.map_or_else(new, |(operation, number)| operation.event(&event.namespace, number));
        self.0.insert(OutgoingEvent { id, ..event.clone() });
        Ok(id)
    }

    async fn commit(self: Box<Self>) -> Result<(), BoxError> {
        self.0.commit();
        Ok(())
    }
}

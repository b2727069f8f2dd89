use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::select;
use hapax_core::broker::{Capability, DeliveryId, Event, Lane, Room, Settle, Settlement, Source};
use hapax_core::{Error, ErrorKind, Result};

use super::SharedBroker;

/// A reader. If it is dropped without `close`, it is silent from then on, as after a crash.
pub(super) struct MemorySource {
    broker: Arc<SharedBroker>,
    member: u64,
}

impl MemorySource {
    pub(super) fn new(broker: Arc<SharedBroker>, member: u64) -> Self {
        Self { broker, member }
    }
}

impl fmt::Debug for MemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemorySource({})", self.member)
    }
}

#[async_trait]
impl Source for MemorySource {
    fn name(&self) -> &Arc<str> {
        &self.broker.name
    }

    fn capability(&self) -> Capability {
        self.broker.capability
    }

    fn settler(&self) -> Arc<dyn Settle> {
        Arc::new(MemorySettler { broker: Arc::clone(&self.broker), member: self.member })
    }

    async fn next(&mut self, room: Room) -> Result<Event> {
        loop {
            // Registered before the look, so that a change that comes in between is not missed.
            let changed = pin!(self.broker.changed.notified());
            let now = self.broker.runtime.boottime_now();
            let (event, change) = {
                let mut state = self.broker.state.lock();
                (state.poll(self.member, &room, now), state.next_change(now))
            };
            if let Some(event) = event {
                return Ok(event);
            }
            select(changed, self.broker.runtime.sleep(change - now)).await;
        }
    }

    async fn close(&mut self) -> Result<()> {
        self.broker.state.lock().leave_group(self.member, self.broker.runtime.boottime_now());
        self.broker.changed.notify_waiters();
        Ok(())
    }
}

struct MemorySettler {
    broker: Arc<SharedBroker>,
    member: u64,
}

impl fmt::Debug for MemorySettler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemorySettler({})", self.member)
    }
}

#[async_trait]
impl Settle for MemorySettler {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        let now = self.broker.runtime.boottime_now();
        let mut state = self.broker.state.lock();
        if state.failing_settlements > 0 {
            state.failing_settlements -= 1;
            let failed = || Err(Error::new(ErrorKind::NotApplied, "the test lets this settlement fail"));
            return settlements.iter().map(|_| failed()).collect();
        }
        for (id, settlement) in &settlements {
            state.settle(self.member, id, *settlement, now);
        }
        drop(state);
        self.broker.changed.notify_waiters();
        settlements.iter().map(|_| Ok(())).collect()
    }

    async fn leave(&self, lanes: &[Lane]) -> Result<()> {
        self.broker.state.lock().leave_lanes(self.member, lanes, self.broker.runtime.boottime_now());
        self.broker.changed.notify_waiters();
        Ok(())
    }

    async fn lag(&self) -> Result<Option<u64>> {
        Ok(Some(self.broker.state.lock().unfinished().len() as u64))
    }
}

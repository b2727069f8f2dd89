//! The letters that are marked for a redrive, as a source of messages.

use std::future::pending;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::{
    Acknowledges, Capability, DeadLetterId, Delivery, DeliveryId, Event, Lane, Room, Settle, Settlement, Source,
};
use hapax_core::{Error, ErrorKind, Result};

use super::MemoryDeadLetters;

/// A letter is delivered once for each mark. An acknowledgement removes it, unless it was written again meanwhile.
#[derive(Debug)]
pub(super) struct Redrives {
    pub(super) letters: MemoryDeadLetters,
    pub(super) name: Arc<str>,
}

#[async_trait]
impl Source for Redrives {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn capability(&self) -> Capability {
        Capability {
            acknowledges: Acknowledges::Each,
            redelivers: false,
            delays: false,
            lease: None,
            keeps_order: false,
            delivery_limit: None,
        }
    }

    fn settler(&self) -> Arc<dyn Settle> {
        Arc::new(self.letters.clone())
    }

    async fn next(&mut self, room: Room) -> Result<Event> {
        loop {
            let changed = self.letters.0.changed.notified();
            let deliveries = if room.messages == 0 { Vec::new() } else { self.letters.take_marked() };
            if !deliveries.is_empty() {
                return Ok(Event::Deliveries(deliveries));
            }
            match room.messages {
                0 => pending().await,
                _ => changed.await,
            }
        }
    }

    async fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

impl MemoryDeadLetters {
    fn take_marked(&self) -> Vec<Delivery> {
        let mut state = self.0.state.lock();
        let lane = Lane { topic: "redrives".into(), partition: 0, generation: 0 };
        let marked: Vec<DeadLetterId> = std::mem::take(&mut state.marked).into_iter().collect();
        let mut deliveries = Vec::new();
        for id in marked {
            let Some(message) = state.letters.get(&id).map(|letter| Arc::clone(&letter.message)) else { continue };
            state.redriven += 1;
            let number = state.redriven;
            let handle = Bytes::copy_from_slice(id.as_bytes());
            state.given.insert(id);
            let id = DeliveryId { lane: lane.clone(), number, handle };
            deliveries.push(Delivery { id, message, attempt: None, leased_until: None });
        }
        deliveries
    }
}

#[async_trait]
impl Settle for MemoryDeadLetters {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        let mut state = self.0.state.lock();
        let mut settle = |(id, settlement): (DeliveryId, Settlement)| match (settlement, id.handle.first_chunk()) {
            (Settlement::Ack, Some(handle)) => {
                let letter = DeadLetterId::from_bytes(*handle);
                // A letter that was written again is another one.
                if state.given.remove(&letter) {
                    state.letters.remove(&letter);
                }
                Ok(())
            }
            (Settlement::Ack | Settlement::Retry(_) | Settlement::Extend(_) | Settlement::UpTo, _) => {
                Err(Error::new(ErrorKind::Invalid, "letters can only be acknowledged"))
            }
        };
        settlements.into_iter().map(&mut settle).collect()
    }

    async fn leave(&self, _lanes: &[Lane]) -> Result<()> {
        Ok(())
    }

    async fn lag(&self) -> Result<Option<u64>> {
        Ok(Some(self.0.state.lock().marked.len() as u64))
    }
}

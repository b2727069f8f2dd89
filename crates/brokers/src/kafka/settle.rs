//! Stores offsets, which the driver commits every second.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::Result;
use hapax_core::broker::{DeliveryId, Lane, Settle, Settlement};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::lanes::{AssignedLane, SharedLanes};
use super::poller::WeakConsumer;
use super::rebalance::list;
use crate::url::{invalid, not_applied, unknown};

pub(super) struct KafkaSettle {
    /// Weak, because the thread that polls must drop the last one.
    consumer: WeakConsumer,
    lanes: Arc<SharedLanes>,
}

impl KafkaSettle {
    pub(super) fn new(consumer: WeakConsumer, lanes: Arc<SharedLanes>) -> Self {
        Self { consumer, lanes }
    }

    fn settle_one(&self, id: &DeliveryId, settlement: Settlement) -> Result<()> {
        match settlement {
            Settlement::UpTo => self.store(id),
            Settlement::Ack | Settlement::Retry(_) | Settlement::Extend(_) => {
                Err(invalid("Kafka acknowledges a prefix, and neither redelivers nor leases"))
            }
        }
    }

    fn store(&self, id: &DeliveryId) -> Result<()> {
        let partition = (Arc::clone(&id.lane.topic), i32::try_from(id.lane.partition).unwrap_or(i32::MAX));
        let next = i64::try_from(id.number).map_or(i64::MAX, |number| number.saturating_add(1));
        // Held until the driver has it: a lane that is being taken away is forgotten under the same lock.
        let mut state = self.lanes.state();
        if state.is_closed {
            return Err(not_applied("the source is closed"));
        }
        let Some(lane) = state.lanes.get_mut(&partition).filter(|lane| lane.lane == id.lane) else { return Ok(()) };
        if lane.settled.is_some_and(|settled| settled >= next) {
            return Ok(());
        }
        // The thread ends after the source was closed, so this is the last one only while it is being closed.
        let Some(consumer) = self.consumer.upgrade() else { return Err(not_applied("the source is closed")) };
        match consumer.store_offsets(&list(&[(partition, next)])) {
            // Another member has the partition; the driver knows it first.
            Err(KafkaError::StoreOffset(RDKafkaErrorCode::State)) => Ok(()),
            Err(error) => Err(not_applied("the Kafka driver does not take an offset").caused_by(error)),
            Ok(()) => {
                lane.settled = Some(next);
                Ok(())
            }
        }
    }
}

#[async_trait]
impl Settle for KafkaSettle {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        settlements.iter().map(|(id, settlement)| self.settle_one(id, *settlement)).collect()
    }

    async fn leave(&self, lanes: &[Lane]) -> Result<()> {
        let Some(result) = self.lanes.leave(lanes) else { return Ok(()) };
        result.await.unwrap_or_else(|_| Err(unknown("the Kafka source ended before it committed")))
    }

    async fn lag(&self) -> Result<Option<u64>> {
        let lag = |lane: &AssignedLane| {
            let done = lane.settled.or(lane.begun)?;
            u64::try_from(lane.end?.saturating_sub(done)).ok()
        };
        let state = self.lanes.state();
        Ok(state.lanes.values().map(lag).sum())
    }
}

impl fmt::Debug for KafkaSettle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSettle").field("lanes", &self.lanes).finish_non_exhaustive()
    }
}

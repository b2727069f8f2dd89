//! Notes settled offsets, which the thread commits every second.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::Result;
use hapax_core::broker::{DeliveryId, Lane, Settle, Settlement};

use super::lanes::SharedLanes;
use crate::errors::{invalid, not_applied, unknown};

pub(super) struct KafkaSettle {
    lanes: Arc<SharedLanes>,
}

impl KafkaSettle {
    pub(super) fn new(lanes: Arc<SharedLanes>) -> Self {
        Self { lanes }
    }

    fn settle_one(&self, id: &DeliveryId, settlement: Settlement) -> Result<()> {
        match settlement {
            Settlement::UpTo => self.settle_up_to(id),
            Settlement::Ack | Settlement::Retry(_) | Settlement::Extend(_) => {
                Err(invalid("Kafka acknowledges a prefix, and neither redelivers nor leases"))
            }
        }
    }

    fn settle_up_to(&self, id: &DeliveryId) -> Result<()> {
        let partition = (Arc::clone(&id.lane.topic), i32::try_from(id.lane.partition).unwrap_or(i32::MAX));
        let mut state = self.lanes.state();
        if state.is_closed {
            return Err(not_applied("the source is closed"));
        }
        if let Some(lane) = state.lanes.get_mut(&partition).filter(|lane| lane.lane == id.lane) {
            lane.progress.settle(i64::try_from(id.number).unwrap_or(i64::MAX));
        }
        Ok(())
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
        Ok(self.lanes.state().lag())
    }
}

impl fmt::Debug for KafkaSettle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSettle").field("lanes", &self.lanes).finish_non_exhaustive()
    }
}

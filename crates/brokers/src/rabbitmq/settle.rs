//! Acknowledges deliveries of the present channel, each by its own tag.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use hapax_core::Result;
use hapax_core::broker::{DeliveryId, Lane, Settle, Settlement};
use hapax_core::runtime::Runtime;
use lapin::Acker;
use lapin::Connection;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use parking_lot::Mutex;

use super::connect::find_again;
use crate::errors::{invalid, not_applied, unknown};

/// Settles the deliveries of a source.
pub(super) struct RabbitMqSettle {
    queue: Arc<str>,
    /// Whether messages have an order.
    is_ordered: bool,
    state: Mutex<SettleState>,
    runtime: Arc<dyn Runtime>,
}

#[derive(Default)]
struct SettleState {
    /// Of the present channel. The ones before have ended, and their deliveries arrive again.
    generation: u64,
    /// The deliveries that are not settled, by their tags.
    open: BTreeMap<u64, Acker>,
    connection: Option<Arc<Connection>>,
    is_closed: bool,
}

impl RabbitMqSettle {
    pub(super) fn new(queue: Arc<str>, is_ordered: bool, runtime: Arc<dyn Runtime>) -> Self {
        Self { queue, is_ordered, state: Mutex::default(), runtime }
    }

    /// A channel has begun. Returns the lane of its deliveries.
    pub(super) fn begin(&self, connection: Arc<Connection>) -> Lane {
        let mut state = self.state.lock();
        state.generation += 1;
        state.open.clear();
        state.connection = Some(connection);
        Lane { topic: Arc::clone(&self.queue), partition: 0, generation: state.generation }
    }

    /// The present channel has ended.
    pub(super) fn lose(&self) {
        let mut state = self.state.lock();
        state.generation += 1;
        state.open.clear();
        state.connection = None;
    }

    pub(super) fn arrived(&self, tag: u64, acker: Acker) {
        self.state.lock().open.insert(tag, acker);
    }

    /// Whether a delivery of the present channel is not settled.
    pub(super) fn has_open(&self) -> bool {
        !self.state.lock().open.is_empty()
    }

    pub(super) fn mark_closed(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.open.clear();
        state.connection = None;
    }

    /// The driver's handle to settle this delivery. None if it is settled, or its channel has ended.
    fn take(&self, id: &DeliveryId) -> Result<Option<Acker>> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(not_applied("the source is closed"));
        }
        let is_present = id.lane.topic == self.queue && id.lane.generation == state.generation;
        // A second acknowledgement of one tag would end the channel.
        Ok(if is_present { state.open.remove(&id.number) } else { None })
    }

    pub(super) async fn settle_one(&self, id: DeliveryId, settlement: Settlement) -> Result<()> {
        match settlement {
            Settlement::Ack | Settlement::Retry(Duration::ZERO) => {}
            Settlement::Retry(_) => return Err(invalid("RabbitMQ delivers again at once: the worker waits before")),
            Settlement::Extend(_) => return Err(invalid("a delivery of RabbitMQ has no lease")),
            Settlement::UpTo => return Err(invalid("deliveries of RabbitMQ are acknowledged one by one")),
        }
        let Some(acker) = self.take(&id)? else { return Ok(()) };
        if settlement != Settlement::Ack && self.is_ordered {
            // Another consumer would get what is given back one by one in that order. At the end of the channel, which
            // is near, the broker puts all back in the order of the queue.
            return Ok(());
        }
        let settled = match settlement == Settlement::Ack {
            true => acker.ack(BasicAckOptions { multiple: false }).await,
            false => acker.nack(BasicNackOptions { multiple: false, requeue: true }).await,
        };
        // The broker confirms none: it was handed to the connection. `false` is an ended channel, whose deliveries
        // arrive again.
        let ended = |error| unknown("the channel ended while a delivery was settled").caused_by(error);
        settled.map(|_| ()).map_err(ended)
    }
}

#[async_trait]
impl Settle for RabbitMqSettle {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        join_all(settlements.into_iter().map(|(id, settlement)| self.settle_one(id, settlement))).await
    }

    async fn leave(&self, _lanes: &[Lane]) -> Result<()> {
        // A queue is never taken away while its channel lives.
        Ok(())
    }

    fn is_ours(&self, delivery: &DeliveryId) -> bool {
        let state = self.state.lock();
        delivery.lane.generation == state.generation && state.open.contains_key(&delivery.number)
    }

    async fn lag(&self) -> Result<Option<u64>> {
        let (connection, open) = {
            let state = self.state.lock();
            (state.connection.clone(), state.open.len() as u64)
        };
        let connection = connection.ok_or_else(|| not_applied("the broker cannot be reached"))?;
        let ready = find_again(&connection, &self.queue, &*self.runtime).await?;
        Ok(Some(u64::from(ready) + open))
    }
}

impl fmt::Debug for RabbitMqSettle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqSettle").field("queue", &self.queue).finish_non_exhaustive()
    }
}

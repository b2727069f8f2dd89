//! Double acks and their relatives: each is sent as a request, so that the server confirms it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::RequestErrorKind;
use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::{self, Consumer, pull};
use async_trait::async_trait;
use futures_util::future::join_all;
use hapax_core::Result;
use hapax_core::broker::{Delivery, DeliveryId, Lane, Settle, Settlement};
use hapax_core::runtime::{self, Runtime};
use parking_lot::Mutex;

use super::connect;
use super::driver::Driver;
use super::hold::Here;
use super::message;
use crate::errors::{invalid, not_applied, unknown};

/// How long the server may take to confirm.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct NatsSettle {
    driver: Arc<Driver>,
    info: consumer::Info,
    here: Here,
    lane: Lane,
    lease: Duration,
    /// The numbers of deliveries that were handed out and are not settled.
    open: Mutex<BTreeSet<u64>>,
    is_closed: AtomicBool,
    runtime: Arc<dyn Runtime>,
}

impl NatsSettle {
    pub(super) fn new(driver: Arc<Driver>, info: consumer::Info, lane: Lane, runtime: Arc<dyn Runtime>) -> Self {
        let lease = connect::lease(&info.config);
        let (here, open, is_closed) = (Here::default(), Mutex::default(), AtomicBool::new(false));
        Self { driver, info, here, lane, lease, open, is_closed, runtime }
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    /// The messages that have arrived and are not settled.
    pub(super) fn here(&self) -> &Here {
        &self.here
    }

    /// Notes a delivery that has arrived.
    pub(super) fn arrived(&self, delivery: &Delivery) {
        self.here.lock().extend(message::sequence_of(&delivery.id.handle));
    }

    /// Notes that a delivery is not this worker's any more, or is about to be settled.
    pub(super) fn leaves(&self, id: &DeliveryId) {
        if let Some(sequence) = message::sequence_of(&id.handle) {
            self.here.lock().remove(&sequence);
        }
    }

    /// Notes deliveries that the worker gets now.
    pub(super) fn handed_out(&self, deliveries: &[Delivery]) {
        self.open.lock().extend(deliveries.iter().map(|delivery| delivery.id.number));
    }

    /// Extends the lease of a delivery that no worker has yet. Returns until when, if the server confirms it.
    pub(super) async fn extend_waiting(&self, id: DeliveryId) -> Option<Duration> {
        let until = self.runtime.boottime_now() + self.lease;
        self.send(id, AckKind::Progress).await.ok().map(|()| until)
    }

    /// Gives back deliveries that no worker got, in this order. `close` waits until the server has it.
    pub(super) async fn give_back(&self, waiting: impl IntoIterator<Item = Delivery>) {
        let client = self.driver.client();
        for delivery in waiting {
            let subject = String::from_utf8_lossy(&delivery.id.handle).into_owned();
            // Without a connection they arrive again after their lease.
            drop(client.publish(subject, AckKind::Nak(None).into()).await);
        }
    }

    pub(super) fn mark_closed(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Takes no settlement any more, and waits until the server has the last ones.
    pub(super) async fn close(&self) -> Result<()> {
        self.mark_closed();
        let client = self.driver.client();
        let flushed = runtime::timeout(&*self.runtime, PATIENCE, client.flush()).await;
        match flushed {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(unknown("the NATS server does not confirm the end of the connection")),
        }
    }

    async fn settle_one(&self, id: DeliveryId, settlement: Settlement) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(not_applied("the source is closed"));
        }
        if id.lane != self.lane {
            // A delivery of another source, or of an earlier generation: a late settlement does nothing.
            return Ok(());
        }
        let kind = match settlement {
            Settlement::Ack => AckKind::Ack,
            Settlement::Retry(Duration::ZERO) => AckKind::Nak(None),
            Settlement::Retry(after) => AckKind::Nak(Some(after)),
            Settlement::Extend(by) if by <= self.lease => AckKind::Progress,
            Settlement::Extend(_) => return Err(invalid("a NATS delivery is extended by its ack_wait at most")),
            Settlement::UpTo => return Err(invalid("NATS deliveries are acknowledged one by one")),
        };
        let number = id.number;
        if matches!(kind, AckKind::Progress) {
            // A delivery that was settled meanwhile has no lease to extend.
            return if self.open.lock().contains(&number) { self.send(id, kind).await } else { Ok(()) };
        }
        // Removed before the request, so that two settlements at once send one.
        if !self.open.lock().remove(&number) {
            return Ok(());
        }
        self.leaves(&id);
        let settled = self.send(id, kind).await;
        if settled.is_err() {
            // The worker tries again.
            self.open.lock().insert(number);
        }
        settled
    }

    async fn send(&self, id: DeliveryId, kind: AckKind) -> Result<()> {
        let subject = String::from_utf8_lossy(&id.handle).into_owned();
        let client = self.driver.alive().await?;
        let request = client.request(subject, kind.into());
        match runtime::timeout(&*self.runtime, PATIENCE, request).await {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) if error.kind() == RequestErrorKind::NoResponders => {
                Err(not_applied("JetStream does not take a settlement now").caused_by(error))
            }
            Some(Err(error)) => Err(unknown("the NATS server did not confirm a settlement").caused_by(error)),
            None => Err(unknown("the NATS server did not confirm a settlement in time")),
        }
    }
}

#[async_trait]
impl Settle for NatsSettle {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        join_all(settlements.into_iter().map(|(id, settlement)| self.settle_one(id, settlement))).await
    }

    async fn leave(&self, _lanes: &[Lane]) -> Result<()> {
        // A stream is never taken away.
        Ok(())
    }

    async fn lag(&self) -> Result<Option<u64>> {
        let context = self.driver.context().await?;
        let consumer: Consumer<pull::Config> = Consumer::new(pull::Config::default(), self.info.clone(), context);
        let info = runtime::timeout(&*self.runtime, PATIENCE, consumer.get_info()).await;
        let info = info.ok_or_else(|| not_applied("JetStream does not reply in time"))?;
        let info = info.map_err(|error| not_applied("JetStream does not reply").caused_by(error))?;
        Ok(Some(info.num_pending + info.num_ack_pending as u64))
    }
}

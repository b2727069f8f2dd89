//! Settles deliveries in batches.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use hapax_core::broker::{Delivery, DeliveryId, Lane, Settle, Settlement};
use hapax_core::runtime::{BoxFuture, Runtime};
use hapax_core::{Error, Result};
use parking_lot::Mutex;

use super::answers::CallFailure;
use super::queue::{Called, MAX_BYTES, MAX_ENTRIES, Queue};
use crate::batch::{BatchLimits, Batcher};
use crate::errors::{invalid, not_applied, unknown};
use crate::open::{DeliveryTurn, OpenDeliveries, OpenDelivery};

/// After this time since its receipt no lease can be extended.
pub(super) const LONGEST: Duration = Duration::from_secs(12 * 3600);

/// No lease ends later than so long before that. The service counts from a time before the arrival, and refuses an
/// extension beyond its limit.
const MARGIN: Duration = Duration::from_secs(5);

/// The largest batch.
const BATCH: BatchLimits = BatchLimits { entries: MAX_ENTRIES, bytes: MAX_BYTES };

/// A delivery that is to be deleted, or whose lease is to end in so many seconds. It keeps its turn until the service
/// has answered, also if its caller has gone.
struct SettledEntry {
    handle: String,
    seconds: u64,
    turn: DeliveryTurn,
}

/// The answer of the service, and the turn of the entry.
type AnsweredEntry = (Called<String>, DeliveryTurn);

/// Settles the deliveries of a queue.
pub(super) struct SqsSettle {
    name: Arc<str>,
    queue: Queue,
    lane: Lane,
    open: Mutex<OpenDeliveries>,
    deletes: Batcher<SettledEntry, AnsweredEntry>,
    changes: Batcher<SettledEntry, AnsweredEntry>,
    is_closed: AtomicBool,
    runtime: Arc<dyn Runtime>,
}

impl SqsSettle {
    pub(super) fn new(name: &str, queue: Queue, lane: Lane, runtime: Arc<dyn Runtime>) -> Self {
        let (deleting, changing) = (queue.clone(), queue.clone());
        let delete = move |entries: Vec<SettledEntry>| -> BoxFuture<'static, Vec<AnsweredEntry>> {
            let queue = deleting.clone();
            Box::pin(async move {
                let handles: Vec<&str> = entries.iter().map(|entry| &*entry.handle).collect();
                let called = queue.delete(&handles).await.map(|answer| answer.results(entries.len()));
                results(called, entries)
            })
        };
        let change = move |entries: Vec<SettledEntry>| -> BoxFuture<'static, Vec<AnsweredEntry>> {
            let queue = changing.clone();
            Box::pin(async move {
                let ends: Vec<(&str, u64)> = entries.iter().map(|entry| (&*entry.handle, entry.seconds)).collect();
                let called = queue.change_visibility(&ends).await.map(|answer| answer.results(entries.len()));
                results(called, entries)
            })
        };
        Self {
            name: name.into(),
            queue,
            lane,
            open: Mutex::default(),
            // Handles are short, so ten of them always fit.
            deletes: Batcher::start(&runtime, BATCH, |_| 0, Box::new(delete)),
            changes: Batcher::start(&runtime, BATCH, |_| 0, Box::new(change)),
            is_closed: AtomicBool::new(false),
            runtime,
        }
    }

    /// Notes a delivery that has arrived.
    pub(super) fn arrived(&self, delivery: &Delivery, received: Duration) {
        self.open.lock().add(delivery, received);
    }

    /// Forgets deliveries that no worker got.
    pub(super) fn forget(&self, deliveries: &[Delivery]) {
        let mut open = self.open.lock();
        for delivery in deliveries {
            open.remove(delivery.id.number);
        }
    }

    /// The message groups of deliveries whose lease has ended since the last call, also with a worker.
    pub(super) fn take_ended_groups(&self) -> BTreeSet<Bytes> {
        self.open.lock().take_ended_groups(self.runtime.boottime_now())
    }

    /// Extends the leases of deliveries that no worker has yet. One that fails is tried again before its lease ends.
    pub(super) async fn extend_waiting(&self, ids: Vec<DeliveryId>, by: Duration) {
        let _ = join_all(ids.into_iter().map(|id| self.settle_one(id, Settlement::Extend(by)))).await;
    }

    /// Until when a delivery belongs to this worker at least. None if it is settled, or not ours any more.
    pub(super) fn leased_until(&self, id: &DeliveryId) -> Option<Duration> {
        self.open.lock().get(id.number).map(|open| open.until)
    }

    /// Gives back deliveries that no worker got.
    pub(super) async fn give_back(&self, waiting: Vec<Delivery>) {
        let given = waiting.into_iter().map(|delivery| self.settle_one(delivery.id, Settlement::Retry(Duration::ZERO)));
        // Otherwise they arrive again after their lease.
        let _ = join_all(given.collect::<Vec<_>>()).await;
    }

    /// Takes no settlement any more.
    pub(super) fn mark_closed(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    async fn settle_one(&self, id: DeliveryId, settlement: Settlement) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(not_applied("the source is closed"));
        }
        if id.lane != self.lane {
            // A delivery of another source: a late settlement does nothing.
            return Ok(());
        }
        // One request of a delivery at a time.
        let Some(turns) = self.open.lock().get(id.number).map(|open| Arc::clone(&open.turns)) else { return Ok(()) };
        let turn = turns.lock_owned().await;
        // It may be settled by now.
        let Some(open) = self.open.lock().get(id.number).cloned() else { return Ok(()) };
        let handle = String::from_utf8_lossy(&id.handle).into_owned();
        match settlement {
            Settlement::Ack => {
                let ended = self.deletes.send(SettledEntry { handle, seconds: 0, turn }).await;
                self.note_end(id.number, ended)
            }
            Settlement::Retry(after) => {
                let seconds = self.seconds(after, &open);
                let ended = self.changes.send(SettledEntry { handle, seconds, turn }).await;
                self.note_end(id.number, ended)
            }
            Settlement::Extend(by) => {
                let (seconds, now) = (self.seconds(by, &open), self.runtime.boottime_now());
                // With 0 seconds, the service would deliver the message again.
                if open.has_left || seconds == 0 {
                    return Ok(());
                }
                let ended = self.changes.send(SettledEntry { handle, seconds, turn }).await;
                self.note_extension(id.number, now + Duration::from_secs(seconds), ended)
            }
            Settlement::UpTo => Err(invalid("deliveries of SQS are acknowledged one by one")),
        }
    }

    /// So long in whole seconds, but not beyond the longest lease.
    fn seconds(&self, length: Duration, open: &OpenDelivery) -> u64 {
        lease_seconds(length, self.runtime.boottime_now().saturating_sub(open.received))
    }

    /// The delivery stays open until the service has confirmed its end: the worker tries again.
    fn note_end(&self, number: u64, ended: Option<AnsweredEntry>) -> Result<()> {
        let (answer, _turn) = ended.ok_or_else(no_result)?;
        let settled = answer.map_or_else(CallFailure::settled, |_| Ok(()));
        if settled.is_ok() {
            self.open.lock().remove(number);
        }
        settled
    }

    fn note_extension(&self, number: u64, until: Duration, ended: Option<AnsweredEntry>) -> Result<()> {
        let (answer, _turn) = ended.ok_or_else(no_result)?;
        let mut open = self.open.lock();
        match &answer {
            Ok(_) => {
                if let Some(open) = open.get_mut(number) {
                    open.until = until;
                }
            }
            Err(failure) if failure.is_not_ours() => open.leave(number, self.runtime.boottime_now()),
            Err(_) => {}
        }
        answer.map_or_else(CallFailure::settled, |_| Ok(()))
    }
}

/// The seconds of a lease of at least this length, so long after the receipt.
fn lease_seconds(length: Duration, passed: Duration) -> u64 {
    let rounded_up = length.as_secs() + u64::from(length.subsec_nanos() > 0);
    rounded_up.min(LONGEST.saturating_sub(MARGIN + passed).as_secs())
}

/// One result for each entry, also where the whole request failed.
fn results(called: Called<Vec<Called<String>>>, entries: Vec<SettledEntry>) -> Vec<AnsweredEntry> {
    let results = called.unwrap_or_else(|failure| vec![Err(failure); entries.len()]);
    results.into_iter().zip(entries).map(|(result, entry)| (result, entry.turn)).collect()
}

fn no_result() -> Error {
    unknown("the request of a settlement ended without a result")
}

#[async_trait]
impl Settle for SqsSettle {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        join_all(settlements.into_iter().map(|(id, settlement)| self.settle_one(id, settlement))).await
    }

    async fn leave(&self, _lanes: &[Lane]) -> Result<()> {
        // A queue is never taken away.
        Ok(())
    }

    fn is_ours(&self, delivery: &DeliveryId) -> bool {
        let now = self.runtime.boottime_now();
        self.leased_until(delivery).is_some_and(|until| until > now)
    }

    async fn lag(&self) -> Result<Option<u64>> {
        let attributes = self.queue.attributes().await.map_err(|failure| failure.asked(&self.lane.topic))?;
        Ok(Some(attributes.messages()))
    }
}

impl fmt::Debug for SqsSettle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsSettle").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

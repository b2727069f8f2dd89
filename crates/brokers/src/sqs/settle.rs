//! Settles deliveries in batches.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use hapax_core::Result;
use hapax_core::broker::{Delivery, DeliveryId, Lane, Settle, Settlement};
use hapax_core::runtime::{BoxFuture, Runtime};
use parking_lot::Mutex;

use super::answers::CallFailure;
use super::batch::Batcher;
use super::queue::{Called, Queue};
use crate::errors::{invalid, not_applied, unknown};

/// After this time since its receipt no lease can be extended.
pub(super) const LONGEST: Duration = Duration::from_secs(12 * 3600);

/// A delivery whose lease is to end in so many seconds.
type LeaseEnd = (String, u64);

/// Settles the deliveries of a queue.
pub(super) struct SqsSettle {
    name: Arc<str>,
    queue: Queue,
    lane: Lane,
    /// The deliveries that have arrived and are not settled, by their number.
    open: Mutex<BTreeMap<u64, OpenDelivery>>,
    deletes: Batcher<String, Called<String>>,
    changes: Batcher<LeaseEnd, Called<String>>,
    is_closed: AtomicBool,
    runtime: Arc<dyn Runtime>,
}

#[derive(Clone, Copy)]
struct OpenDelivery {
    received: Duration,
    until: Duration,
}

impl SqsSettle {
    pub(super) fn new(name: &str, queue: Queue, lane: Lane, runtime: Arc<dyn Runtime>) -> Self {
        let (deleting, changing) = (queue.clone(), queue.clone());
        let delete = move |handles: Vec<String>| -> BoxFuture<'static, Vec<Called<String>>> {
            let queue = deleting.clone();
            Box::pin(async move {
                let handles: Vec<&str> = handles.iter().map(String::as_str).collect();
                results(queue.delete(&handles).await.map(|answer| answer.results(handles.len())), handles.len())
            })
        };
        let change = move |ends: Vec<LeaseEnd>| -> BoxFuture<'static, Vec<Called<String>>> {
            let queue = changing.clone();
            Box::pin(async move {
                let ends: Vec<(&str, u64)> = ends.iter().map(|(handle, seconds)| (&**handle, *seconds)).collect();
                results(queue.change_visibility(&ends).await.map(|answer| answer.results(ends.len())), ends.len())
            })
        };
        Self {
            name: name.into(),
            queue,
            lane,
            open: Mutex::default(),
            // Handles are short, so ten of them always fit.
            deletes: Batcher::start(&runtime, |_| 0, Box::new(delete)),
            changes: Batcher::start(&runtime, |_| 0, Box::new(change)),
            is_closed: AtomicBool::new(false),
            runtime,
        }
    }

    /// Notes a delivery that has arrived.
    pub(super) fn arrived(&self, delivery: &Delivery, received: Duration) {
        let until = delivery.leased_until.unwrap_or_default();
        self.open.lock().insert(delivery.id.number, OpenDelivery { received, until });
    }

    /// Forgets deliveries that no worker got.
    pub(super) fn forget(&self, deliveries: &[Delivery]) {
        let mut open = self.open.lock();
        for delivery in deliveries {
            open.remove(&delivery.id.number);
        }
    }

    /// Extends the leases of deliveries that no worker has yet. One that fails is tried again before its lease ends.
    pub(super) async fn extend_waiting(&self, ids: Vec<DeliveryId>, by: Duration) {
        let _ = join_all(ids.into_iter().map(|id| self.settle_one(id, Settlement::Extend(by)))).await;
    }

    /// Until when a delivery belongs to this worker at least. None if it is settled, or not ours any more.
    pub(super) fn leased_until(&self, id: &DeliveryId) -> Option<Duration> {
        self.open.lock().get(&id.number).map(|open| open.until)
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
        let Some(open) = self.open.lock().get(&id.number).copied() else { return Ok(()) };
        let handle = String::from_utf8_lossy(&id.handle).into_owned();
        match settlement {
            Settlement::Ack => {
                // Removed before the request, so that two settlements at once send one.
                self.open.lock().remove(&id.number);
                let ended = self.deletes.send(handle).await;
                self.note_end(id.number, open, ended)
            }
            Settlement::Retry(after) => {
                self.open.lock().remove(&id.number);
                let ended = self.changes.send((handle, self.seconds(after, open))).await;
                self.note_end(id.number, open, ended)
            }
            Settlement::Extend(by) => {
                let (seconds, now) = (self.seconds(by, open), self.runtime.boottime_now());
                let ended = self.changes.send((handle, seconds)).await;
                self.note_extension(id.number, now + Duration::from_secs(seconds), ended)
            }
            Settlement::UpTo => Err(invalid("deliveries of SQS are acknowledged one by one")),
        }
    }

    /// So long in whole seconds, but not beyond the longest lease.
    fn seconds(&self, length: Duration, open: OpenDelivery) -> u64 {
        lease_seconds(length, self.runtime.boottime_now().saturating_sub(open.received))
    }

    fn note_end(&self, number: u64, open: OpenDelivery, ended: Option<Called<String>>) -> Result<()> {
        let settled = settled(ended);
        if settled.is_err() {
            // The worker tries again.
            self.open.lock().insert(number, open);
        }
        settled
    }

    fn note_extension(&self, number: u64, until: Duration, ended: Option<Called<String>>) -> Result<()> {
        let mut open = self.open.lock();
        match &ended {
            // A delivery that was settled meanwhile has no lease.
            Some(Ok(_)) => {
                if let Some(open) = open.get_mut(&number) {
                    open.until = until;
                }
            }
            Some(Err(failure)) if failure.is_not_ours() => drop(open.remove(&number)),
            Some(Err(_)) | None => {}
        }
        settled(ended)
    }
}

/// The seconds of a lease of at least this length, so long after the receipt.
fn lease_seconds(length: Duration, passed: Duration) -> u64 {
    let rounded_up = length.as_secs() + u64::from(length.subsec_nanos() > 0);
    rounded_up.min(LONGEST.saturating_sub(passed).as_secs())
}

/// One result for each of so many entries, also where the whole request failed.
fn results(called: Called<Vec<Called<String>>>, count: usize) -> Vec<Called<String>> {
    called.unwrap_or_else(|failure: CallFailure| vec![Err(failure); count])
}

fn settled(ended: Option<Called<String>>) -> Result<()> {
    match ended {
        Some(Ok(_)) => Ok(()),
        Some(Err(failure)) => failure.settled(),
        None => Err(unknown("the request of a settlement ended without a result")),
    }
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
mod tests {
    use super::*;

    #[test]
    fn a_lease_has_whole_seconds_and_ends_twelve_hours_after_the_receipt() {
        let seconds = |millis, passed| lease_seconds(Duration::from_millis(millis), Duration::from_secs(passed));
        assert_eq!((seconds(0, 0), seconds(1, 0), seconds(1000, 0), seconds(1001, 7)), (0, 1, 1, 2));
        assert_eq!((seconds(30_000, 43_180), seconds(30_000, 43_200), seconds(30_000, 50_000)), (20, 0, 0));
        assert_eq!(seconds(86_400_000, 0), 43_200);
    }
}

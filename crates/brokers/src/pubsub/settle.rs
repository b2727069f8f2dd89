//! Settles deliveries in batches.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use hapax_core::broker::{Delivery, DeliveryId, Lane, Settle, Settlement};
use hapax_core::runtime::{BoxFuture, Runtime};
use hapax_core::{Error, Result};
use parking_lot::Mutex;

use super::answers::PubSubFailure;
use super::api::{NamedSubscription, PubSubResult};
use super::url::LONGEST_DEADLINE;
use crate::batch::{BatchLimits, Batcher};
use crate::errors::{invalid, not_applied, unknown};
use crate::open::{DeliveryTurn, EndedDelivery, OpenDeliveries};

/// The largest request. The service takes 512 KiB.
const BATCH: BatchLimits = BatchLimits { entries: 1000, bytes: 256 << 10 };

/// How long before its end a long delay is renewed.
const EARLY: Duration = Duration::from_secs(60);

/// The pause before a renewal that has failed is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// A delivery that is to be acknowledged, or whose lease is to end in so many seconds. It keeps its turn until the
/// service has answered, also if its caller has gone.
struct SettledAck {
    ack_id: String,
    seconds: u64,
    /// None for a delivery that is settled already, and waits for its time.
    turn: Option<DeliveryTurn>,
}

/// The answer of the service, and the turn of the entry.
type AnsweredAck = (PubSubResult<()>, Option<DeliveryTurn>);

type EntryBatcher = Batcher<SettledAck, AnsweredAck>;

/// Settles the deliveries of a subscription.
pub(super) struct PubSubSettle {
    name: Arc<str>,
    lane: Lane,
    open: Mutex<OpenDeliveries>,
    acknowledgements: EntryBatcher,
    changes: Arc<EntryBatcher>,
    is_closed: Arc<AtomicBool>,
    runtime: Arc<dyn Runtime>,
}

impl PubSubSettle {
    pub(super) fn new(name: &Arc<str>, subscription: NamedSubscription, lane: Lane, runtime: Arc<dyn Runtime>) -> Self {
        let changing = subscription.clone();
        let acknowledge = move |entries: Vec<SettledAck>| -> BoxFuture<'static, Vec<AnsweredAck>> {
            let subscription = subscription.clone();
            Box::pin(async move {
                let ack_ids = entries.iter().map(|entry| entry.ack_id.clone()).collect();
                let results = send_all(ack_ids, |ids| Box::pin(subscription.acknowledge(ids))).await;
                answered(results, entries)
            })
        };
        let change = move |entries: Vec<SettledAck>| -> BoxFuture<'static, Vec<AnsweredAck>> {
            let subscription = changing.clone();
            Box::pin(async move {
                let results = change_all(&subscription, &entries).await;
                answered(results, entries)
            })
        };
        let size = |entry: &SettledAck| entry.ack_id.len();
        Self {
            name: Arc::clone(name),
            lane,
            open: Mutex::default(),
            acknowledgements: Batcher::start(&runtime, BATCH, size, Box::new(acknowledge)),
            changes: Arc::new(Batcher::start(&runtime, BATCH, size, Box::new(change))),
            is_closed: Arc::default(),
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

    /// The deliveries with ordering keys whose lease has ended since the last call, also with a worker.
    pub(super) fn take_ended(&self) -> Vec<EndedDelivery> {
        self.open.lock().take_ended(self.runtime.boottime_now())
    }

    /// Extends the leases of deliveries that no worker has yet. One that fails is tried again before its lease ends.
    pub(super) async fn extend_waiting(&self, ids: Vec<DeliveryId>, by: Duration) {
        let _ = join_all(ids.into_iter().map(|id| self.settle_one(id, Settlement::Extend(by)))).await;
    }

    /// Until when a delivery belongs to this worker at least. None if it is settled, or not ours any more.
    pub(super) fn leased_until(&self, id: &DeliveryId) -> Option<Duration> {
        self.open.lock().get(id.number).map(|open| open.until)
    }

    /// Gives back deliveries that no worker got, each for so long.
    pub(super) async fn give_back(&self, waiting: Vec<(Delivery, Duration)>) {
        let given = waiting.into_iter().map(|(delivery, away)| self.settle_one(delivery.id, Settlement::Retry(away)));
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
        let turn = Some(turns.lock_owned().await);
        // It may be settled by now.
        let Some(has_left) = self.open.lock().get(id.number).map(|open| open.has_left) else { return Ok(()) };
        let ack_id = String::from_utf8_lossy(&id.handle).into_owned();
        match settlement {
            Settlement::Ack => {
                let ended = self.acknowledgements.send(SettledAck { ack_id, seconds: 0, turn }).await;
                self.note_end(id.number, ended)
            }
            Settlement::Retry(after) => self.retry(id.number, SettledAck { ack_id, seconds: 0, turn }, after).await,
            // With 0 seconds, the service would deliver the message again.
            Settlement::Extend(by) if has_left || by.is_zero() => Ok(()),
            Settlement::Extend(by) => {
                let (seconds, now) = (lease_seconds(by), self.runtime.boottime_now());
                let ended = self.changes.send(SettledAck { ack_id, seconds, turn }).await;
                self.note_extension(id.number, now + Duration::from_secs(seconds), ended)
            }
            Settlement::UpTo => Err(invalid("deliveries of Pub/Sub are acknowledged one by one")),
        }
    }

    /// Gives a delivery back. A delay that is longer than the longest lease is renewed in the background.
    async fn retry(&self, number: u64, entry: SettledAck, after: Duration) -> Result<()> {
        let (ack_id, until) = (entry.ack_id.clone(), self.runtime.boottime_now() + after);
        let ended = self.changes.send(SettledAck { seconds: lease_seconds(after), ..entry }).await;
        let is_applied = matches!(&ended, Some((Ok(()), _)));
        let settled = self.note_end(number, ended);
        if is_applied && after.as_secs() >= LONGEST_DEADLINE {
            let delay = LongDelay {
                ack_id,
                until,
                changes: Arc::clone(&self.changes),
                is_closed: Arc::clone(&self.is_closed),
                runtime: Arc::clone(&self.runtime),
            };
            self.runtime.spawn(Box::pin(delay.run()));
        }
        settled
    }

    /// The delivery stays open until the service has confirmed its end: the worker tries again.
    fn note_end(&self, number: u64, ended: Option<AnsweredAck>) -> Result<()> {
        let (answer, _turn) = ended.ok_or_else(no_result)?;
        let settled = answer.map_or_else(PubSubFailure::settled, Ok);
        if settled.is_ok() {
            self.open.lock().remove(number);
        }
        settled
    }

    fn note_extension(&self, number: u64, until: Duration, ended: Option<AnsweredAck>) -> Result<()> {
        let (answer, _turn) = ended.ok_or_else(no_result)?;
        let mut open = self.open.lock();
        match &answer {
            Ok(()) => {
                if let Some(open) = open.get_mut(number) {
                    open.until = until;
                }
            }
            Err(failure) if failure.is_not_ours() => open.leave(number, self.runtime.boottime_now()),
            Err(_) => {}
        }
        answer.map_or_else(PubSubFailure::settled, Ok)
    }
}

/// A delay that is longer than the longest lease: the lease is renewed again and again. If the process ends, the
/// message comes earlier.
struct LongDelay {
    ack_id: String,
    until: Duration,
    changes: Arc<EntryBatcher>,
    is_closed: Arc<AtomicBool>,
    runtime: Arc<dyn Runtime>,
}

impl LongDelay {
    async fn run(self) {
        let mut lease_end = self.runtime.boottime_now() + Duration::from_secs(LONGEST_DEADLINE);
        while let Some(pause) = pause_of(self.left()) {
            self.runtime.sleep(pause).await;
            let Some(end) = self.renew(lease_end).await else { return };
            lease_end = end;
        }
    }

    fn left(&self) -> Duration {
        self.until.saturating_sub(self.runtime.boottime_now())
    }

    /// Renews the lease, again and again until the present one ends. Returns the end of the new one. None if the
    /// message comes again.
    async fn renew(&self, lease_end: Duration) -> Option<Duration> {
        loop {
            let (now, left) = (self.runtime.boottime_now(), self.left());
            if left.is_zero() || now >= lease_end || self.is_closed.load(Ordering::Acquire) {
                return None;
            }
            let (ack_id, seconds) = (self.ack_id.clone(), lease_seconds(left));
            let (answer, _) = self.changes.send(SettledAck { ack_id, seconds, turn: None }).await?;
            match answer {
                Ok(()) => return Some(now + Duration::from_secs(seconds)),
                Err(failure) if failure.is_not_ours() => return None,
                Err(_) => self.runtime.sleep(AGAIN).await,
            }
        }
    }
}

/// How long to wait before the lease of a delay with so much left is renewed. None if its present lease is enough.
fn pause_of(left: Duration) -> Option<Duration> {
    let longest = Duration::from_secs(LONGEST_DEADLINE);
    (left > longest).then(|| longest - EARLY)
}

/// The seconds of a lease of at least this length, but not beyond the longest.
fn lease_seconds(length: Duration) -> u64 {
    let rounded_up = length.as_secs() + u64::from(length.subsec_nanos() > 0);
    rounded_up.min(LONGEST_DEADLINE)
}

/// Moves the ends of leases, with a request for each length.
async fn change_all(subscription: &NamedSubscription, entries: &[SettledAck]) -> Vec<PubSubResult<()>> {
    let mut by_seconds: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (place, entry) in entries.iter().enumerate() {
        by_seconds.entry(entry.seconds).or_default().push(place);
    }
    let requests = by_seconds.iter().map(|(seconds, places)| async move {
        let ack_ids = places.iter().map(|place| entries[*place].ack_id.clone()).collect();
        send_all(ack_ids, |ids| Box::pin(subscription.modify_deadline(ids, *seconds))).await
    });
    let results = join_all(requests).await;
    let mut ordered: Vec<PubSubResult<()>> = entries.iter().map(|_| Err(PubSubFailure::without_result())).collect();
    for (place, result) in by_seconds.values().flatten().zip(results.into_iter().flatten()) {
        ordered[*place] = result;
    }
    ordered
}

/// Sends a request about ack ids. If the service refuses it because of one that is none, it sends each alone.
async fn send_all<'s>(
    ack_ids: Vec<String>,
    send: impl Fn(Vec<String>) -> BoxFuture<'s, PubSubResult<()>> + Send + Sync,
) -> Vec<PubSubResult<()>> {
    let failure = match send(ack_ids.clone()).await {
        Ok(()) => return vec![Ok(()); ack_ids.len()],
        Err(failure) => failure,
    };
    if let Some(outcomes) = failure.by_ack_id(&ack_ids) {
        return outcomes;
    }
    if ack_ids.len() == 1 || !failure.is_about_content() {
        return vec![Err(failure); ack_ids.len()];
    }
    join_all(ack_ids.into_iter().map(|id| send(vec![id]))).await
}

fn answered(results: Vec<PubSubResult<()>>, entries: Vec<SettledAck>) -> Vec<AnsweredAck> {
    results.into_iter().zip(entries).map(|(result, entry)| (result, entry.turn)).collect()
}

fn no_result() -> Error {
    unknown("a settlement ended without a result")
}

#[async_trait]
impl Settle for PubSubSettle {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        join_all(settlements.into_iter().map(|(id, settlement)| self.settle_one(id, settlement))).await
    }

    async fn leave(&self, _lanes: &[Lane]) -> Result<()> {
        // A subscription is never taken away.
        Ok(())
    }

    fn is_ours(&self, delivery: &DeliveryId) -> bool {
        let now = self.runtime.boottime_now();
        self.leased_until(delivery).is_some_and(|until| until > now)
    }

    async fn lag(&self) -> Result<Option<u64>> {
        // Only Cloud Monitoring tells it.
        Ok(None)
    }
}

impl fmt::Debug for PubSubSettle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubSubSettle").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

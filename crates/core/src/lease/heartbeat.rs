//! Renews leases on a thread and a store handle of its own, so that a blocked executor does not lose a lease.
//!
//! The thread checks all leases several times per lease. Most attempts end before their first renewal is due and cost
//! no more than an entry in a map.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::cancellation::Cancellation;
use crate::lease::claim::deadline;
use crate::lease::{HeldLease, LeaseEngine, LeaseEvent, Renew};
use crate::machine::Renewed;
use crate::record::Millis;
use crate::runtime::{BoxFuture, Runtime, timeout};
use crate::store::Store;
use crate::telemetry;

/// How often the thread checks, in parts of the shortest lease. A renewal is due after a third of the lease.
const CHECKS_PER_LEASE: u32 = 12;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// All leases that the heartbeat renews.
pub(super) struct LeaseRegistry {
    leases: Mutex<RenewedLeases>,
    /// The shortest lease of any policy of the gate, in milliseconds.
    shortest_lease: AtomicU64,
}

#[derive(Default)]
struct RenewedLeases {
    by_number: BTreeMap<u64, Arc<AnyLease>>,
    next_number: u64,
}

impl Default for LeaseRegistry {
    fn default() -> Self {
        Self { leases: Mutex::default(), shortest_lease: AtomicU64::new(u64::MAX) }
    }
}

impl LeaseRegistry {
    pub(super) fn expect_lease(&self, lease: Millis) {
        self.shortest_lease.fetch_min(lease.0.into(), Ordering::AcqRel);
    }

    fn pause(&self) -> Duration {
        let lease = Duration::from_millis(self.shortest_lease.load(Ordering::Acquire));
        (lease / CHECKS_PER_LEASE).min(LONGEST_PAUSE)
    }

    fn insert(&self, lease: Arc<AnyLease>) -> u64 {
        let mut leases = self.leases.lock();
        let number = leases.next_number;
        leases.next_number += 1;
        leases.by_number.insert(number, lease);
        number
    }

    fn remove(&self, number: u64) {
        self.leases.lock().by_number.remove(&number);
    }

    /// The leases to renew now. Fires the cancellation of every holder that is past its deadline.
    fn start_due(&self, now: Duration) -> Vec<Arc<AnyLease>> {
        let leases = self.leases.lock();
        leases.by_number.values().filter(|lease| lease.start_if_due(now)).map(Arc::clone).collect()
    }
}

impl fmt::Debug for LeaseRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseRegistry({})", self.leases.lock().by_number.len())
    }
}

/// Starts the thread. The thread ends when the engine is dropped.
pub(super) fn start(engine: &Arc<LeaseEngine>) -> Result<()> {
    let (weak, runtime) = (Arc::downgrade(engine), Arc::clone(&engine.runtime));
    engine.runtime.thread("hapax-heartbeat", Box::pin(run(weak, runtime))).map_err(|source| {
        Error::new(ErrorKind::Unusable, "cannot start the heartbeat thread: the system has no thread left")
            .caused_by(source)
    })
}

async fn run(engine: Weak<LeaseEngine>, runtime: Arc<dyn Runtime>) {
    let mut handle: Option<Arc<dyn Store>> = None;
    let mut requests = FuturesUnordered::<BoxFuture<'static, RequestResult>>::new();
    let mut is_handle_requested = false;
    loop {
        let Some(engine) = engine.upgrade() else { return };
        let limit = engine.store_timeout;
        if handle.is_none() && !is_handle_requested {
            is_handle_requested = true;
            requests.push(Box::pin(request_handle(Arc::clone(&engine.store), Arc::clone(&runtime), limit)));
        }
        // The gate's own handle is used until the dedicated one is there: no renewal waits for a new connection.
        let store = handle.as_ref().unwrap_or(&engine.store);
        // All in flight at once: a slow reply must not delay other renewals.
        for lease in engine.leases.start_due(runtime.boottime_now()) {
            requests.push(Box::pin(lease.renew(Arc::clone(store), Arc::clone(&runtime), limit)));
        }
        let due = runtime.boottime_now() + engine.leases.pause();
        let mut pause = runtime.sleep(engine.leases.pause());
        // Dropped before the pause: a strong reference would keep the engine, and so this thread, alive for ever.
        drop(engine);
        while let Either::Right((result, rest)) = select(pause, pin!(next(&mut requests))).await {
            pause = rest;
            if let RequestResult::Handle(received) = result {
                // If the store gave none, the next check asks again.
                is_handle_requested = false;
                handle = received;
            }
        }
        telemetry::heartbeat_late(runtime.boottime_now().saturating_sub(due));
    }
}

/// A request of the thread to the store that has ended.
enum RequestResult {
    Renewal,
    Handle(Option<Arc<dyn Store>>),
}

async fn request_handle(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>, limit: Duration) -> RequestResult {
    RequestResult::Handle(timeout(&*runtime, limit, store.dedicated()).await.and_then(Result::ok))
}

/// The next request that ends; pending for ever without a request.
async fn next(requests: &mut FuturesUnordered<BoxFuture<'static, RequestResult>>) -> RequestResult {
    match requests.next().await {
        Some(result) => result,
        None => std::future::pending().await,
    }
}

/// The lease of one claim.
struct RenewedLease<C: ?Sized> {
    lease: Duration,
    /// When the holder exceeds `max_execution`, on the boot-time clock.
    max_execution_at: Option<Duration>,
    cancellation: Arc<Cancellation>,
    /// When the last request was sent after which no other holder had the claim, in microseconds on the boot-time
    /// clock.
    confirmed: AtomicU64,
    /// When the next renewal is due, likewise.
    due: AtomicU64,
    is_renewing: AtomicBool,
    /// The store forgot the record. Counted once for each claim.
    is_forgotten: AtomicBool,
    /// The record is damaged. Counted once, too.
    is_damaged: AtomicBool,
    /// The claim is lost, or the holder exceeded `max_execution`: the lease is not renewed any more.
    has_ended: AtomicBool,
    /// The answer is known, and only its record is missing: `max_execution` no longer applies.
    handler_has_ended: AtomicBool,
    renewal_ended: Notify,
    claim: C,
}

/// The lease of any claim.
type AnyLease = RenewedLease<dyn Renew>;

impl AnyLease {
    /// Whether a renewal is due. If so it is marked as started, and the caller must send it.
    fn start_if_due(&self, now: Duration) -> bool {
        // Checked even while a renewal is in progress: without its reply the lease may expire before the handler stops.
        if now >= deadline(self.confirmed(), self.lease) {
            self.cancellation.fire();
        }
        if Mutant::NoHeartbeat.is_on()
            || self.has_ended.load(Ordering::Acquire)
            || self.is_renewing.load(Ordering::Acquire)
            || micros(now) < self.due.load(Ordering::Acquire)
        {
            return false;
        }
        if self.exceeds_max_execution(now) {
            self.claim.report(LeaseEvent::RanTooLong);
            self.end();
            return false;
        }
        self.is_renewing.store(true, Ordering::Release);
        true
    }

    fn exceeds_max_execution(&self, now: Duration) -> bool {
        let is_past = self.max_execution_at.is_some_and(|end| now >= end);
        is_past && !self.handler_has_ended.load(Ordering::Acquire) && !Mutant::NeverTooLong.is_on()
    }

    fn confirmed(&self) -> Duration {
        Duration::from_micros(self.confirmed.load(Ordering::Acquire))
    }

    async fn renew(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        limit: Duration,
    ) -> RequestResult {
        let sent_at = runtime.boottime_now();
        match timeout(&*runtime, limit, self.claim.renew(&*store)).await {
            Some(Ok(Renewed::Yes)) => self.confirm(sent_at, &*runtime),
            Some(Ok(Renewed::Lost)) => self.lose_claim(),
            Some(Ok(Renewed::Gone)) if Mutant::ForgottenIsLost.is_on() => self.lose_claim(),
            Some(Ok(Renewed::Gone)) => {
                if !self.is_forgotten.swap(true, Ordering::AcqRel) {
                    self.claim.report(LeaseEvent::Forgotten);
                }
                self.confirm(sent_at, &*runtime);
            }
            // Stays due, so that the next check sends the renewal again.
            Some(Err(error)) => {
                self.claim.report(LeaseEvent::NotConfirmed(Some(&error)));
                self.note_damage(&error);
                // The lease of a damaged record protects nothing. While the handler runs, an operator may still repair
                // the record in time.
                if error.kind() == ErrorKind::Damaged && self.handler_has_ended.load(Ordering::Acquire) {
                    self.has_ended.store(true, Ordering::Release);
                }
            }
            None => self.claim.report(LeaseEvent::NotConfirmed(None)),
        }
        // Cleared before the notification, so that a waiter that wakes up sees it.
        self.is_renewing.store(false, Ordering::Release);
        self.renewal_ended.notify_waiters();
        RequestResult::Renewal
    }

    /// The store armed the lease at some instant after `sent_at`, so counting from `sent_at` is the safe side.
    fn confirm(&self, sent_at: Duration, runtime: &dyn Runtime) {
        let sent_at = if Mutant::DeadlineByReply.is_on() { runtime.boottime_now() } else { sent_at };
        self.confirmed.store(micros(sent_at), Ordering::Release);
        self.set_due(sent_at, runtime);
    }

    fn set_due(&self, sent_at: Duration, runtime: &dyn Runtime) {
        self.due.store(micros(sent_at + interval(runtime, self.lease)), Ordering::Release);
    }

    /// Counts a damaged record once.
    fn note_damage(&self, error: &Error) {
        if error.kind() == ErrorKind::Damaged && !self.is_damaged.swap(true, Ordering::AcqRel) {
            telemetry::damaged();
        }
    }

    fn lose_claim(&self) {
        // The answer may have been recorded since the renewal was sent. If another attempt has the key, the completion
        // reports it.
        if self.handler_has_ended.load(Ordering::Acquire) {
            self.has_ended.store(true, Ordering::Release);
            return;
        }
        self.claim.report(LeaseEvent::Lost);
        if !Mutant::LostGoesUnheard.is_on() {
            self.end();
        }
    }

    /// Waits until no renewal is in progress.
    async fn wait_for_renewal(&self) {
        loop {
            // Registered before the check, so that a renewal that ends in between is not missed.
            let renewal_ended = self.renewal_ended.notified();
            if !self.is_renewing.load(Ordering::Acquire) {
                return;
            }
            renewal_ended.await;
        }
    }

    fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.cancellation.fire();
    }
}

/// A third of the lease, plus or minus a tenth of it, so that attempts that began together are not renewed together.
fn interval(runtime: &dyn Runtime, lease: Duration) -> Duration {
    let mut byte = [0];
    runtime.fill_random(&mut byte);
    (lease / 3).mul_f64(0.9 + 0.2 * f64::from(byte[0]) / 255.0)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Keeps the lease of one claim renewed until it is stopped or dropped.
pub(crate) struct Heartbeat {
    lease: Arc<AnyLease>,
    number: u64,
    engine: Arc<LeaseEngine>,
}

impl Heartbeat {
    /// `cancellation` is fired when the holder should stop.
    pub(crate) fn start(
        engine: &Arc<LeaseEngine>,
        held: HeldLease<impl Renew>,
        cancellation: Arc<Cancellation>,
    ) -> Self {
        let lease: Arc<AnyLease> = Arc::new(RenewedLease {
            lease: held.lease,
            max_execution_at: held.max_execution.map(|longest| held.sent_at.saturating_add(longest)),
            cancellation,
            confirmed: AtomicU64::new(micros(held.sent_at)),
            due: AtomicU64::new(micros(held.sent_at + held.lease / 3)),
            is_renewing: AtomicBool::new(false),
            is_forgotten: AtomicBool::new(false),
            is_damaged: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            handler_has_ended: AtomicBool::new(false),
            renewal_ended: Notify::new(),
            claim: held.claim,
        });
        let number = engine.leases.insert(Arc::clone(&lease));
        Self { lease, number, engine: Arc::clone(engine) }
    }

    /// Notes that the handler has ended. From now on the lease is renewed until its answer is recorded.
    pub(crate) fn set_handler_ended(&self) {
        self.lease.handler_has_ended.store(true, Ordering::Release);
    }

    /// Counts the record of the attempt if it is damaged, unless a renewal has done so.
    pub(crate) fn note_damage(&self, error: &Error) {
        self.lease.note_damage(error);
    }

    /// When the lease expires in the store at the earliest, on the boot-time clock.
    pub(crate) fn lease_expires_at(&self) -> Duration {
        self.lease.confirmed() + self.lease.lease
    }

    /// Whether the holder may start something new: the claim is not lost, and its lease is far from its end.
    #[cfg(feature = "relay")]
    pub(crate) fn is_held(&self, now: Duration) -> bool {
        !self.lease.has_ended.load(Ordering::Acquire) && now < deadline(self.lease.confirmed(), self.lease.lease)
    }

    /// Stops renewing, and waits for the renewal in progress: it must not reach the store after the request that
    /// follows.
    pub(crate) async fn stop(self) {
        // Removed first. `start_due` starts renewals under the same lock, so none starts after this line.
        self.engine.leases.remove(self.number);
        if Mutant::AbandonRacesRenewal.is_on() {
            return;
        }
        // A renewal ends within one store timeout. The limit is for a heartbeat thread that died.
        let limit = 2 * self.engine.store_timeout;
        timeout(&*self.engine.runtime, limit, self.lease.wait_for_renewal()).await;
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.engine.leases.remove(self.number);
    }
}

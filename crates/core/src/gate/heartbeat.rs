//! Renewals, on a thread and a store handle of their own: a blocked executor must not lose a lease.
//!
//! The thread looks at all attempts a few times per lease. An attempt that ends before its first renewal is due, and nearly every
//! one does, costs an entry in a map.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use crate::chaos;
use crate::error::{Error, ErrorKind, Result};
use crate::gate::attempt::Cancellation;
use crate::gate::{Gate, Shared};
use crate::machine::{Claim, Grant, Renewed};
use crate::runtime::{BoxFuture, Runtime, timeout};
use crate::settings::Terms;
use crate::store::{Protocol, Store};
use crate::telemetry;

/// How often the thread looks, in parts of the shortest lease: a renewal is due after a third of it.
const LOOKS_PER_LEASE: u32 = 12;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// All attempts of a gate that hold a grant.
#[derive(Default)]
pub(super) struct Heartbeats {
    leases: Mutex<RenewedLeases>,
    /// The shortest lease of any policy of the gate, in milliseconds.
    shortest_lease: AtomicU64,
}

#[derive(Default)]
struct RenewedLeases {
    by_number: BTreeMap<u64, Arc<RenewedLease>>,
    next_number: u64,
}

impl Heartbeats {
    pub(super) fn new(terms: &Terms) -> Self {
        let heartbeats = Self { leases: Mutex::default(), shortest_lease: AtomicU64::new(u64::MAX) };
        heartbeats.expect(terms);
        heartbeats
    }

    /// Looks often enough for these terms, too.
    pub(super) fn expect(&self, terms: &Terms) {
        self.shortest_lease.fetch_min(terms.lease.0.into(), Ordering::AcqRel);
    }

    fn pause(&self) -> Duration {
        let lease = Duration::from_millis(self.shortest_lease.load(Ordering::Acquire));
        (lease / LOOKS_PER_LEASE).min(LONGEST_PAUSE)
    }

    fn lock(&self) -> MutexGuard<'_, RenewedLeases> {
        // Never left half-changed by a panic: each change is one call of the map.
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be renewed now. Fires the cancellation of every attempt that is past its deadline.
    fn due(&self, now: Duration) -> Vec<Arc<RenewedLease>> {
        let leases = self.lock();
        leases.by_number.values().filter(|lease| lease.look(now)).map(Arc::clone).collect()
    }
}

impl fmt::Debug for Heartbeats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Heartbeats({})", self.lock().by_number.len())
    }
}

/// Starts the thread. It ends when the gate is gone.
pub(super) fn start(shared: &Arc<Shared>) -> Result<()> {
    let (gate, runtime) = (Arc::downgrade(shared), Arc::clone(&shared.runtime));
    shared.runtime.thread("hapax-heartbeat", Box::pin(run_heartbeat(gate, runtime))).map_err(|source| {
        Error::new(ErrorKind::Unusable, "the system has no thread left for the heartbeat").caused_by(source)
    })
}

async fn run_heartbeat(gate: Weak<Shared>, runtime: Arc<dyn Runtime>) {
    let mut handle: Option<Arc<dyn Store>> = None;
    let mut asked = FuturesUnordered::<BoxFuture<'static, HeartbeatEvent>>::new();
    let mut asking_for_handle = false;
    loop {
        let Some(shared) = gate.upgrade() else { return };
        let limit = shared.store_timeout;
        if handle.is_none() && !asking_for_handle {
            asking_for_handle = true;
            asked.push(Box::pin(ask_for_handle(Arc::clone(&shared.store), Arc::clone(&runtime), limit)));
        }
        // Until there is a handle of its own the gate's must do: no renewal waits for a connection.
        let store = handle.as_ref().unwrap_or(&shared.store);
        for lease in shared.heartbeats.due(runtime.boottime_now()) {
            asked.push(Box::pin(lease.renew(Arc::clone(store), Arc::clone(&runtime), limit)));
        }
        let due = runtime.boottime_now() + shared.heartbeats.pause();
        let mut pause = runtime.sleep(shared.heartbeats.pause());
        drop(shared);
        while let Either::Right((event, rest)) = select(pause, pin!(next(&mut asked))).await {
            pause = rest;
            if let HeartbeatEvent::Handle(given) = event {
                asking_for_handle = false;
                handle = given;
            }
        }
        telemetry::heartbeat_late(runtime.boottime_now().saturating_sub(due));
    }
}

/// What the thread asked the store for has ended.
enum HeartbeatEvent {
    Renewal,
    Handle(Option<Arc<dyn Store>>),
}

async fn ask_for_handle(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>, limit: Duration) -> HeartbeatEvent {
    HeartbeatEvent::Handle(timeout(&*runtime, limit, store.dedicated()).await.and_then(Result::ok))
}

/// The next thing to be event; waits for ever when nothing was asked.
async fn next(asked: &mut FuturesUnordered<BoxFuture<'static, HeartbeatEvent>>) -> HeartbeatEvent {
    match asked.next().await {
        Some(event) => event,
        None => std::future::pending().await,
    }
}

/// One attempt that holds a grant.
struct RenewedLease {
    grant: Grant,
    lease: Duration,
    /// When it will have run for too long, on the boot clock.
    ends: Duration,
    cancellation: Arc<Cancellation>,
    /// When the last call was sent that the store confirmed, in microseconds on the boot clock.
    confirmed: AtomicU64,
    /// When the next renewal is due, likewise.
    due: AtomicU64,
    renewing: AtomicBool,
    /// Lost, or run for too long: not renewed any more.
    over: AtomicBool,
    renewed: Notify,
}

impl RenewedLease {
    /// Whether a renewal is to be sent; then the caller sends it.
    fn look(&self, now: Duration) -> bool {
        if now >= self.deadline() {
            self.cancellation.fire();
        }
        if chaos::on("no_heartbeat")
            || self.over.load(Ordering::Acquire)
            || self.renewing.load(Ordering::Acquire)
            || micros(now) < self.due.load(Ordering::Acquire)
        {
            return false;
        }
        if now >= self.ends && !chaos::on("never_too_long") {
            telemetry::ran_too_long(&self.grant);
            self.end();
            return false;
        }
        self.renewing.store(true, Ordering::Release);
        true
    }

    /// Past this the attempt must start nothing new: the lease, counted from when the last confirmed call was *sent*, less a margin.
    fn deadline(&self) -> Duration {
        deadline(Duration::from_micros(self.confirmed.load(Ordering::Acquire)), self.lease)
    }

    async fn renew(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        limit: Duration,
    ) -> HeartbeatEvent {
        let sent = runtime.boottime_now();
        let claim = Claim::from(&self.grant);
        let renewal = Protocol::over(&*store).renew(&self.grant.rk, &claim);
        match timeout(&*runtime, limit, renewal).await {
            Some(Ok(Renewed::Yes)) => {
                let sent = if chaos::on("deadline_by_reply") { runtime.boottime_now() } else { sent };
                self.confirmed.store(micros(sent), Ordering::Release);
                self.due.store(micros(sent + interval(&*runtime, self.lease)), Ordering::Release);
            }
            Some(Ok(Renewed::Lost)) => {
                telemetry::grant_lost(&self.grant);
                if !chaos::on("lost_goes_unheard") {
                    self.end();
                }
            }
            // The store forgot: nobody can be asked, so the attempt goes on and its answer recreates the record.
            Some(Ok(Renewed::Gone)) => {
                telemetry::forgotten(&self.grant);
                self.due.store(micros(sent + interval(&*runtime, self.lease)), Ordering::Release);
            }
            // Due again at the next look.
            Some(Err(error)) => telemetry::renewal_failed(&self.grant, Some(&error)),
            None => telemetry::renewal_failed(&self.grant, None),
        }
        self.renewing.store(false, Ordering::Release);
        self.renewed.notify_waiters();
        HeartbeatEvent::Renewal
    }

    /// Waits until no renewal is under way.
    async fn idle(&self) {
        loop {
            // Made before the look: it hears of a renewal that ends after it.
            let renewed = self.renewed.notified();
            if !self.renewing.load(Ordering::Acquire) {
                return;
            }
            renewed.await;
        }
    }

    fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.cancellation.fire();
    }
}

/// Until when a grant may be acted on whose confirmed call was sent then.
pub(super) fn deadline(sent: Duration, lease: Duration) -> Duration {
    sent + lease - lease / 10
}

/// A third of the lease, give or take a tenth of it, so that attempts begun together are not renewed together.
fn interval(runtime: &dyn Runtime, lease: Duration) -> Duration {
    let mut byte = [0];
    runtime.fill_random(&mut byte);
    (lease / 3).mul_f64(0.9 + 0.2 * f64::from(byte[0]) / 255.0)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Keeps one attempt's grant renewed until it is stopped or dropped.
pub(super) struct Heartbeat {
    lease: Arc<RenewedLease>,
    number: u64,
    shared: Arc<Shared>,
}

impl Heartbeat {
    /// `sent` is when the begin was sent that got the grant. `cancellation` is fired when the handler should stop.
    pub(super) fn start(gate: &Gate, grant: Grant, cancellation: Arc<Cancellation>, sent: Duration) -> Self {
        let (shared, lease) = (&gate.shared, Duration::from(gate.terms.lease));
        let lease = Arc::new(RenewedLease {
            grant,
            lease,
            ends: sent.saturating_add(gate.terms.max_execution),
            cancellation,
            confirmed: AtomicU64::new(micros(sent)),
            due: AtomicU64::new(micros(sent + lease / 3)),
            renewing: AtomicBool::new(false),
            over: AtomicBool::new(false),
            renewed: Notify::new(),
        });
        let mut leases = shared.heartbeats.lock();
        let number = leases.next_number;
        leases.next_number += 1;
        leases.by_number.insert(number, Arc::clone(&lease));
        drop(leases);
        Self { lease, number, shared: Arc::clone(shared) }
    }

    /// Until when, on the boot clock, the store is known to believe the grant.
    pub(super) fn believed_until(&self) -> Duration {
        Duration::from_micros(self.lease.confirmed.load(Ordering::Acquire)) + self.lease.lease
    }

    /// Stops it and waits for a renewal that is under way, so that none arrives after what follows.
    pub(super) async fn stop(self) {
        self.shared.heartbeats.lock().by_number.remove(&self.number);
        if chaos::on("abandon_races_renewal") {
            return;
        }
        // A renewal ends within one store timeout; a thread that died must not hold its attempts.
        let limit = 2 * self.shared.store_timeout;
        timeout(&*self.shared.runtime, limit, self.lease.idle()).await;
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.shared.heartbeats.lock().by_number.remove(&self.number);
    }
}

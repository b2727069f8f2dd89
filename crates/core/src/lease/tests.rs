//! The engine holds leases of claims that are no records.

use std::io;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use parking_lot::Mutex;

use super::*;
use crate::machine::Renewed;
use crate::record::Timestamp;
use crate::runtime::BoxFuture;
use crate::store::{Memory, MemorySettings};

const LEASE: Duration = Duration::from_secs(3);
const TIMEOUT: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(50);

/// A runtime whose clock is advanced by hand. It polls every task after each step.
#[derive(Default)]
struct ManualRuntime {
    now: Arc<Mutex<Duration>>,
    tasks: Mutex<Vec<BoxFuture<'static, ()>>>,
}

impl ManualRuntime {
    fn pass(&self, time: Duration) {
        let end = *self.now.lock() + time;
        while *self.now.lock() < end {
            *self.now.lock() += STEP;
            for _ in 0..3 {
                self.poll_all();
            }
        }
    }

    fn poll_all(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.retain_mut(|task| task.poll_unpin(&mut Context::from_waker(Waker::noop())).is_pending());
        self.tasks.lock().append(&mut tasks);
    }
}

impl fmt::Debug for ManualRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ManualRuntime")
    }
}

impl Runtime for ManualRuntime {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.tasks.lock().push(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let (now, end) = (Arc::clone(&self.now), *self.now.lock() + duration);
        Box::pin(std::future::poll_fn(move |_| match *now.lock() >= end {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }))
    }

    fn thread(&self, _name: &str, task: BoxFuture<'static, ()>) -> io::Result<()> {
        self.spawn(task);
        Ok(())
    }

    fn blocking(&self, _name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        body();
        Ok(())
    }

    fn boottime_now(&self) -> Duration {
        *self.now.lock()
    }

    fn wall_now(&self) -> Timestamp {
        Timestamp(0)
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

/// A message that a broker lends, and takes back if nobody asks to keep it.
#[derive(Default)]
struct LentMessage {
    reply: Mutex<Option<Renewed>>,
    renewals: Mutex<u32>,
    events: Mutex<Vec<String>>,
}

#[async_trait]
impl Renew for Arc<LentMessage> {
    async fn renew(&self, _store: &dyn Store) -> Result<Renewed> {
        *self.renewals.lock() += 1;
        self.reply.lock().ok_or_else(|| Error::new(ErrorKind::Unknown, "the broker did not reply"))
    }

    fn report(&self, event: LeaseEvent<'_>) {
        self.events.lock().push(format!("{event:?}"));
    }
}

/// A held message, whose broker gives this reply.
struct Held {
    runtime: Arc<ManualRuntime>,
    message: Arc<LentMessage>,
    cancellation: Arc<Cancellation>,
    heartbeat: Heartbeat,
}

impl Held {
    fn new(reply: Renewed, max_execution: Option<Duration>) -> Self {
        let (runtime, message) = (Arc::<ManualRuntime>::default(), Arc::<LentMessage>::default());
        *message.reply.lock() = Some(reply);
        let (store, lease) =
            (Arc::new(Memory::with(Arc::clone(&runtime) as Arc<dyn Runtime>, MemorySettings::default())), Millis(3000));
        let engine = LeaseEngine::start(store, Arc::clone(&runtime) as Arc<dyn Runtime>, TIMEOUT, lease).unwrap();
        let held = HeldLease { claim: Arc::clone(&message), sent_at: Duration::ZERO, lease: LEASE, max_execution };
        let cancellation = Arc::<Cancellation>::default();
        let heartbeat = Heartbeat::start(&engine, held, Arc::clone(&cancellation));
        Self { runtime, message, cancellation, heartbeat }
    }

    fn is_told_to_stop(&self) -> bool {
        self.cancellation.wait().now_or_never().is_some()
    }

    fn renewals(&self) -> u32 {
        *self.message.renewals.lock()
    }
}

#[test]
fn a_claim_that_is_no_record_is_renewed_without_a_longest_time() {
    let held = Held::new(Renewed::Yes, None);
    held.runtime.pass(Duration::from_hours(1));
    let expected = 3600 / 3 * 3;
    assert!((expected * 9 / 10..=expected * 5 / 4).contains(&held.renewals()), "{} renewals", held.renewals());
    assert!(!held.is_told_to_stop());
    assert!(held.heartbeat.lease_expires_at() > Duration::from_hours(1));

    held.heartbeat.stop().now_or_never().expect("no renewal is in progress");
    let renewals = *held.message.renewals.lock();
    held.runtime.pass(LEASE * 2);
    assert_eq!(*held.message.renewals.lock(), renewals, "a stopped heartbeat renews nothing");
    assert!(held.message.events.lock().is_empty());
}

#[test]
fn the_holder_of_a_lost_claim_is_told_to_stop() {
    let held = Held::new(Renewed::Lost, None);
    held.runtime.pass(LEASE / 2);
    assert!(held.is_told_to_stop());
    held.runtime.pass(LEASE * 2);
    assert_eq!(held.renewals(), 1, "a lost claim is not renewed again");
    assert_eq!(*held.message.events.lock(), ["Lost"]);
}

#[test]
fn a_holder_goes_on_after_its_claim_was_forgotten() {
    let held = Held::new(Renewed::Gone, None);
    held.runtime.pass(LEASE * 4);
    assert!(!held.is_told_to_stop() && held.renewals() > 4);
    assert_eq!(*held.message.events.lock(), ["Forgotten"]);
}

#[test]
fn a_holder_is_told_to_stop_before_its_unconfirmed_claim_lapses() {
    let held = Held::new(Renewed::Yes, None);
    *held.message.reply.lock() = None;
    held.runtime.pass(LEASE * 8 / 10);
    assert!(!held.is_told_to_stop());
    held.runtime.pass(LEASE * 2 / 10);
    assert!(held.is_told_to_stop());
    assert!(held.renewals() > 2, "it is still tried");
}

#[test]
fn a_holder_with_a_longest_time_is_told_to_stop_after_it() {
    let held = Held::new(Renewed::Yes, Some(LEASE * 2));
    held.runtime.pass(LEASE);
    assert!(!held.is_told_to_stop());
    held.runtime.pass(LEASE * 2);
    assert!(held.is_told_to_stop());
    assert_eq!(*held.message.events.lock(), ["RanTooLong"]);
}

#[test]
fn a_renewal_that_meets_the_recorded_answer_of_its_own_holder_loses_nothing() {
    let held = Held::new(Renewed::Lost, None);
    held.heartbeat.set_handler_ended();
    held.runtime.pass(LEASE / 2);
    assert_eq!((held.renewals(), held.is_told_to_stop()), (1, false));
    assert!(held.message.events.lock().is_empty(), "{:?}", held.message.events.lock());
}

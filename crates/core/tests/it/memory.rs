//! Tests of the memory store that the suite does not contain.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::machine::{Begin, Claim, Lapse, Renewed};
use hapax_core::runtime::{BoxFuture, Runtime, Tokio};
use hapax_core::store::{Inserted, Inspect, Memory, MemorySettings, Severity};
use hapax_core::{Call, ErrorKind, Millis, Owner, RecordKey, Result, Seconds, Store, Timestamp};
use hapax_testkit::ManualClock;

const LIFE: Seconds = Seconds(60);

fn small() -> (Memory, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    let settings = MemorySettings::default().max_bytes(64 << 10);
    (Memory::with(Arc::clone(&clock) as _, settings), clock)
}

async fn begin(store: &Memory, n: u32) -> Result<Inserted> {
    let mut rk = [0; 16];
    rk[12..].copy_from_slice(&n.to_be_bytes());
    let ask = Begin {
        call: Call::new(RecordKey::from_bytes(rk)),
        owner: Owner([1; 16]),
        lease: Millis(1_000),
        unknown_retention: LIFE,
        on_lapse: Lapse::Hold,
    };
    store.begin(&ask).await
}

/// The number of begins that are granted before the store is full.
async fn count_grants(store: &Memory, first: u32) -> u32 {
    for n in 0..10_000 {
        if let Err(error) = begin(store, first + n).await {
            assert_eq!(error.kind(), ErrorKind::Full);
            return n;
        }
    }
    panic!("the store is never full");
}

#[tokio::test]
async fn expired_records_make_room_for_new_ones() {
    let (store, clock) = small();
    let first = count_grants(&store, 0).await;
    assert!(first > 10, "{first} records in 64 KiB");
    assert_eq!(count_grants(&store, 100_000).await, 0, "it stays full");
    clock.forward(LIFE.into());
    // Each begin removes more expired records than it adds records, so no sweep is needed.
    let again = count_grants(&store, 200_000).await;
    assert!(again.abs_diff(first) <= 2, "{first}, then {again}");
}

#[tokio::test]
async fn a_sweep_removes_at_most_its_limit_of_expired_records() {
    let (store, clock) = small();
    for n in 0..30 {
        begin(&store, n).await.unwrap();
    }
    assert_eq!(store.sweep(100).await.unwrap(), 0, "no record is expired");
    clock.forward(Duration::from(LIFE) - Duration::from_micros(1));
    assert_eq!(store.sweep(100).await.unwrap(), 0, "no record is expired one microsecond before its end");
    clock.forward(Duration::from_micros(1));
    assert_eq!(store.sweep(20).await.unwrap(), 20);
    assert_eq!(store.sweep(20).await.unwrap(), 10);
    assert_eq!(store.sweep(20).await.unwrap(), 0);
}

#[tokio::test]
async fn a_check_warns_that_records_are_lost_with_the_process() {
    let (store, _) = small();
    let findings = store.check().await.unwrap();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].severity, Severity::Warn);
    assert!(findings[0].message.contains("forgets every key when this process ends"), "{findings:?}");
}

/// A runtime whose wall clock advances by one microsecond with every reading.
#[derive(Debug)]
struct Ticking {
    inner: Tokio,
    ticks: AtomicU64,
}

impl Runtime for Ticking {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.inner.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Runtime::sleep(&self.inner, duration)
    }

    fn thread(&self, name: &str, task: BoxFuture<'static, ()>) -> io::Result<()> {
        self.inner.thread(name, task)
    }

    fn blocking(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        self.inner.blocking(name, body)
    }

    fn boottime_now(&self) -> Duration {
        self.inner.boottime_now()
    }

    fn wall_now(&self) -> Timestamp {
        let now = Timestamp(self.ticks.fetch_add(1, Ordering::SeqCst));
        // Lets the other thread in between the reading and its use.
        std::thread::yield_now();
        now
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.inner.fill_random(bytes);
    }
}

#[tokio::test]
async fn a_read_returns_the_record_and_the_clock_of_one_instant() {
    let clock = Arc::new(Ticking { inner: Tokio::current(), ticks: AtomicU64::new(1_000_000) });
    let store = Memory::with(Arc::clone(&clock) as _, MemorySettings::default());
    let Inserted::Granted(grant) = begin(&store, 0).await.unwrap() else { panic!("the store was empty") };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let renewed = store.renew(&grant.rk, &Claim::from(&grant)).now_or_never().unwrap();
                assert_eq!(renewed.unwrap(), Renewed::Yes);
            }
        });
        let longest = (0..20_000).map(|_| store.read(&grant.rk).now_or_never().unwrap().unwrap().life_left).max();
        is_over.store(true, Ordering::SeqCst);
        // A clock that was read before the last renewal would show more life than a record can have.
        assert!(longest.unwrap() <= Duration::from(LIFE), "{longest:?} of life are left");
    });
}

//! The comparison of a store with the memory store sees a difference that shows only once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use hapax_core::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::store::{Inserted, Inspect, Memory, MemorySettings, Swapped};
use hapax_core::{RecordKey, Result, Store};
use hapax_testkit::{ClockStep, ManualClock, Setup, StoredPart, differential};

/// A memory store. Its first renewal replies what is not true, if it is asked to lie.
#[derive(Debug)]
struct Liar {
    inner: Arc<Memory>,
    lies: AtomicBool,
}

#[async_trait]
impl Store for Liar {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        self.inner.begin(ask).await
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        let renewed = self.inner.renew(rk, claim).await?;
        let lies = renewed == Renewed::Yes && self.lies.swap(false, Ordering::Relaxed);
        Ok(if lies { Renewed::Lost } else { renewed })
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        self.inner.complete(rk, ask).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.inner.read(rk).await
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        self.inner.swap(rk, seen, next).await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(self)
    }
}

struct LiarSetup {
    clock: Arc<ManualClock>,
    store: Arc<Liar>,
}

impl LiarSetup {
    fn new(lies: bool) -> Self {
        let clock = Arc::new(ManualClock::new());
        let inner = Arc::new(Memory::with(Arc::clone(&clock) as _, MemorySettings::default()));
        Self { clock, store: Arc::new(Liar { inner, lies: AtomicBool::new(lies) }) }
    }
}

#[async_trait]
impl Setup for LiarSetup {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    fn inspect(&self) -> Arc<dyn Inspect> {
        Arc::clone(&self.store.inner) as _
    }

    async fn lapse(&self, _rk: &RecordKey) {
        unreachable!("the comparison moves the clock itself");
    }

    async fn expire(&self, _rk: &RecordKey) {
        unreachable!("the comparison moves the clock itself");
    }

    async fn step_clock(&self, step: ClockStep) {
        match step {
            ClockStep::Forward(by) => self.clock.forward(by),
            ClockStep::Back(by) => self.clock.back(by),
        }
    }

    async fn corrupt(&self, _rk: &RecordKey, _part: StoredPart) {
        unreachable!("the comparison damages no record");
    }

    async fn put_golden(&self) {
        unreachable!("the comparison reads no golden record");
    }
}

/// Enough sequences for several renewals.
const SEEDS: std::ops::Range<u64> = 0..50;

#[tokio::test]
async fn a_store_that_agrees_has_no_difference() {
    assert!(differential(&LiarSetup::new(false), SEEDS).await > 500);
}

#[tokio::test]
async fn a_difference_that_shows_only_once_is_reported() {
    let setup = LiarSetup::new(true);
    let store = Arc::clone(&setup.store);
    let compared = tokio::spawn(async move { differential(&setup, SEEDS).await }).await;
    assert!(!store.lies.load(Ordering::Relaxed), "no sequence renewed a lease");
    let panic = compared.expect_err("the wrong reply was forgiven").into_panic();
    let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(message.contains("Lost") && message.contains("Renew"), "{message}");
}

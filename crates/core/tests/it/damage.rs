//! Damaged records are counted wherever they are found.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hapax_core::gate::Failure;
use hapax_core::journal::MemoryJournal;
use hapax_core::{Error, ErrorKind, telemetry};
use hapax_testkit::StoreMethod;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tokio::sync::Notify;

use crate::world::{CallFault, GateWorld, LEASE, run_beside, with_journal};

/// Counts the damaged records that this thread reports.
#[derive(Default)]
struct DamageRecorder(Arc<AtomicU64>);

impl DamageRecorder {
    fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Recorder for DamageRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let is_damage = key.name() == telemetry::names::DAMAGED;
        if is_damage { Counter::from_arc(Arc::clone(&self.0)) } else { Counter::noop() }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[tokio::test]
async fn damage_that_a_begin_finds_is_counted() {
    let recorder = DamageRecorder::default();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let world = GateWorld::new();
    world.store.inject(StoreMethod::Begin, CallFault::Fail(ErrorKind::Damaged));
    assert!(world.run_with_answer("never").await.is_err());
    assert_eq!(recorder.count(), 1);
}

#[tokio::test]
async fn damage_that_a_completion_finds_is_counted_once() {
    let recorder = DamageRecorder::default();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let (mut world, journal) = (GateWorld::new(), Arc::new(MemoryJournal::new()));
    world.gate = with_journal(&world, &journal);
    world.store.inject(StoreMethod::Complete, CallFault::Fail(ErrorKind::Damaged));
    run_beside(world.run_with_answer("the answer"), world.time.pass(LEASE)).await.expect("the journal has the answer");
    // The journal is tried every second.
    world.time.pass(LEASE * 5).await;
    assert_eq!(recorder.count(), 1);
}

#[tokio::test]
async fn damage_that_a_renewal_finds_is_counted_once() {
    let recorder = DamageRecorder::default();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let world = GateWorld::new();
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    for method in [StoreMethod::Renew, StoreMethod::Complete] {
        world.store.inject(method, CallFault::Fail(ErrorKind::Damaged));
    }
    world.time.pass(LEASE / 2).await;
    assert_eq!(recorder.count(), 1);
    world.time.pass(LEASE).await;
    go.notify_one();
    world.time.pass(LEASE).await;
    assert_eq!(recorder.count(), 1, "the completion finds the same damage");
}

#[tokio::test]
async fn damage_that_a_release_finds_is_counted() {
    let recorder = DamageRecorder::default();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let world = GateWorld::new();
    world.store.inject(StoreMethod::Swap, CallFault::Fail(ErrorKind::Damaged));
    let declined = || Failure::not_applied(Error::new(ErrorKind::NotApplied, "declined"));
    assert!(world.run(move |_| async move { Err(declined()) }).await.is_err());
    world.time.pass(LEASE).await;
    assert_eq!(recorder.count(), 1);
}

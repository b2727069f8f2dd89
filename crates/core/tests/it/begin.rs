//! Begins: ambiguous ones, other processes, a store that is down, and probes.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::gate::{Failure, Provenance, Reason, Refused};
use hapax_core::machine::{
    Begin, Begun, Cancelled, Change, Claim, Complete, Completed, Lapse, Observed, Renewed, Verdict,
};
use hapax_core::store::{Inserted, Protocol, Swapped};
use hapax_core::{
    BoxError, Error, ErrorKind, Found, Gate, Millis, OnBusy, OnLapse, OperationId, Owner, Phase, Probe, RecordKey,
    Result, Seconds, State, Store,
};
use hapax_testkit::StoreMethod;
use tokio::sync::Notify;

use crate::stepped::{Stepped, settle};
use crate::world::{
    CallFault, FaultyStore, GateWorld, LEASE, assert_answer, call, call_of, count_begins, retry, run_beside,
    run_call_with_answer, run_on, settings,
};

#[tokio::test]
async fn a_begin_whose_reply_is_lost_runs_once() {
    let world = GateWorld::new();
    world.store.lose_begins.store(1, Ordering::SeqCst);
    let run = world.run(|attempt| async move {
        assert_eq!(attempt.number(), 1);
        Ok(String::from("the answer"))
    });
    assert_answer(run.await, "the answer", Provenance::Fresh);
    assert_answer(world.run_with_answer("another").await, "the answer", Provenance::Replayed);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_begin_that_stays_ambiguous_runs_nothing_and_is_cancelled() {
    let world = GateWorld::new();
    // Both begins of the attempt are carried out, and both replies are lost.
    world.store.lose_begins.store(2, Ordering::SeqCst);
    let result = world.run_with_answer("never").await;
    let Err(refused) = result else { panic!("a store error was expected, not {result:?}") };
    assert_eq!(refused.reason, Reason::Store(ErrorKind::Unknown));
    settle().await;
    assert!(matches!(world.state().await, State::Open(Phase::Released, _)));
    assert_answer(world.run_with_answer("the answer").await, "the answer", Provenance::Fresh);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_begin_carried_out_after_its_cancellation_is_cancelled_again() {
    let world = GateWorld::new();
    // Both begins of the attempt are still on their way.
    world.store.delay_begins.store(2, Ordering::SeqCst);
    assert!(matches!(world.run_with_answer("never").await, Err(Refused { reason: Reason::Store(_), .. })));
    // The last request of a begin is sent up to one store timeout after the begin, and may arrive up to one lease
    // later.
    world.time.pass(LEASE * 3 / 2).await;
    world.store.carry_out_delayed().await;
    assert!(matches!(world.state().await, State::Open(Phase::InProgress, _)));
    world.time.pass(LEASE / 2).await;
    assert!(matches!(world.state().await, State::Open(Phase::Released, _)));
    assert_answer(world.run_with_answer("the answer").await, "the answer", Provenance::Fresh);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_store_that_never_answers_runs_nothing() {
    let time = Stepped::new();
    let builder = Gate::builder(Arc::new(SilentStore), settings(OnLapse::Hold)).runtime(Arc::clone(&time) as _);
    let gate = builder.build().unwrap();
    let runs = Arc::<AtomicU32>::default();
    let answer = |_| async { Ok(String::from("never")) };
    let run = run_on(gate, Arc::clone(&runs), answer);
    // Two begins with a timeout of one second each, and a second to spare.
    let result = run_beside(run, time.pass(Duration::from_secs(3))).await;
    let Err(refused) = result else { panic!("a store error was expected, not {result:?}") };
    assert_eq!(refused.reason, Reason::Store(ErrorKind::Unknown));
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

/// A store that never answers.
#[derive(Debug)]
struct SilentStore;

#[async_trait]
impl Store for SilentStore {
    async fn begin(&self, _: &Begin) -> Result<Inserted> {
        pending().await
    }

    async fn renew(&self, _: &RecordKey, _: &Claim) -> Result<Renewed> {
        pending().await
    }

    async fn complete(&self, _: &RecordKey, _: &Complete) -> Result<Completed> {
        pending().await
    }

    async fn read(&self, _: &RecordKey) -> Result<Observed> {
        pending().await
    }

    async fn swap(&self, _: &RecordKey, _: &Observed, _: &Change) -> Result<Swapped> {
        pending().await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(self)
    }
}

#[tokio::test]
async fn a_call_waits_for_another_process_and_gets_its_answer() {
    let world = GateWorld::new();
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    let (store, time) = (Arc::clone(&world.store), Arc::clone(&world.time));
    let mut patient = settings(OnLapse::Hold);
    // Longer than the first attempt, which ends after one lease.
    patient.policy.on_busy = OnBusy::Wait(LEASE * 3);
    let other = Gate::builder(store as _, patient).runtime(time as _).build().unwrap();
    let meanwhile = async {
        world.time.pass(LEASE).await;
        go.notify_one();
        world.time.pass(LEASE).await;
    };
    assert_answer(
        run_beside(run_call_with_answer(&other, call()), meanwhile).await,
        "the answer",
        Provenance::Replayed,
    );
}

#[tokio::test]
async fn a_copy_in_another_process_waits_no_longer_once_waits_end() {
    let world = GateWorld::new();
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    let mut patient = settings(OnLapse::Hold);
    patient.policy.on_busy = OnBusy::Wait(LEASE * 3);
    let (store, time) = (Arc::clone(&world.store), Arc::clone(&world.time));
    let other = Gate::builder(store as _, patient).runtime(time as _).build().unwrap();
    let end = async {
        settle().await;
        other.end_waits();
    };
    let refused = run_beside(run_call_with_answer(&other, call()), end).await;
    assert!(matches!(refused, Err(Refused { reason: Reason::Busy { .. }, .. })), "{refused:?}");
    assert_eq!((world.runs(), count_begins(&world)), (1, 2), "it begins nothing at the end of its wait");
}

#[tokio::test]
async fn a_store_that_is_down_gets_one_begin_a_second() {
    let world = GateWorld::new();
    world.store.down.store(true, Ordering::SeqCst);
    for number in 0..20 {
        let result = run_call_with_answer(&world.gate, call_of("acme", &number.to_string())).await;
        assert!(matches!(result, Err(Refused { reason: Reason::Store(_), .. })), "{result:?}");
    }
    // The stepped clock stands still, so no probe is due during the 20 calls.
    assert_eq!(count_begins(&world), 5, "after five failures the breaker must be open");
    // One begin probes the store and fails. It must leave the breaker open.
    world.time.pass(Duration::from_secs(1)).await;
    for _ in 0..5 {
        assert!(world.run_with_answer("never").await.is_err());
    }
    assert_eq!(count_begins(&world), 6);
    world.store.down.store(false, Ordering::SeqCst);
    // The store answers again, but no probe is due yet.
    assert!(world.run_with_answer("too early").await.is_err());
    world.time.pass(Duration::from_secs(1)).await;
    assert_answer(world.run_with_answer("the answer").await, "the answer", Provenance::Fresh);
    assert_answer(run_call_with_answer(&world.gate, call_of("acme", "1")).await, "the answer", Provenance::Fresh);
}

#[tokio::test]
async fn a_full_store_still_replays_its_answers() {
    let world = GateWorld::new();
    assert_answer(world.run_with_answer("the answer").await, "the answer", Provenance::Fresh);
    world.store.full.store(true, Ordering::SeqCst);
    for number in 0..20 {
        let result = run_call_with_answer(&world.gate, call_of("acme", &format!("new-{number}"))).await;
        assert!(matches!(result, Err(Refused { reason: Reason::Store(ErrorKind::Full), .. })));
    }
    assert_answer(world.run_with_answer("a second run").await, "the answer", Provenance::Replayed);
}

fn begin_of_another_process() -> Begin {
    Begin {
        call: call(),
        owner: Owner([9; 16]),
        lease: Millis(1000),
        unknown_retention: Seconds(3600),
        on_lapse: Lapse::Hold,
    }
}

/// Begins as another process, which gets the grant.
async fn grant_to_another_process(protocol: &Protocol<'_>) -> Claim {
    let begun = protocol.begin(&begin_of_another_process()).await.unwrap();
    let Begun::Granted(grant) = begun else { panic!("a grant was expected, not {begun:?}") };
    Claim::from(&grant)
}

#[tokio::test]
async fn an_ambiguous_begin_is_cancelled_whatever_the_second_one_returns() {
    let world = GateWorld::new();
    let other = grant_to_another_process(&Protocol::over(&world.store.inner)).await;
    world.store.delay_begins.store(1, Ordering::SeqCst);
    let result = world.run_with_answer("never").await;
    assert!(matches!(result, Err(Refused { reason: Reason::Busy { .. }, .. })), "{result:?}");
    settle().await;
    let protocol = Protocol::over(&world.store.inner);
    let rk = call().record_key();
    let cancelled = protocol.cancel(&rk, other.owner, Seconds(60)).await.unwrap();
    assert_eq!(cancelled, Cancelled::Yes, "the other process must be able to cancel");

    world.store.carry_out_delayed_by_protocol().await;
    assert!(
        matches!(world.state().await, State::Open(Phase::InProgress, _)),
        "the late begin is granted, and no attempt owns it"
    );
    world.time.pass(LEASE * 2).await;
    assert!(matches!(world.state().await, State::Open(Phase::Released, _)));
}

#[tokio::test]
async fn a_begin_that_arrives_after_its_attempt_was_abandoned_grants_nothing() {
    let world = GateWorld::with_on_lapse(retry());
    world.store.delay_begins.store(1, Ordering::SeqCst);
    let result = world.run(|_| async { Err(Failure::unknown(Error::new(ErrorKind::Unknown, "who knows"))) }).await;
    assert!(matches!(result, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{result:?}");
    settle().await;
    let abandoned = world.state().await;
    assert!(matches!(abandoned, State::Open(Phase::InProgress, holding) if holding.is_abandoned()), "{abandoned:?}");
    world.store.carry_out_delayed().await;
    assert_eq!(world.state().await, abandoned);
    // The next copy runs at once, and does not wait for a lease.
    assert_answer(world.run_with_answer("the answer").await, "the answer", Provenance::Fresh);
}

#[tokio::test]
async fn a_begin_that_arrives_after_its_attempt_was_released_is_cancelled() {
    let world = GateWorld::new();
    world.store.delay_begins.store(1, Ordering::SeqCst);
    let result =
        world.run(|_| async { Err(Failure::not_applied(Error::new(ErrorKind::NotApplied, "declined"))) }).await;
    assert!(matches!(result, Err(Refused { reason: Reason::NotApplied { .. }, .. })), "{result:?}");
    settle().await;
    world.store.carry_out_delayed_by_protocol().await;
    assert!(
        matches!(world.state().await, State::Open(Phase::InProgress, _)),
        "the late begin is granted, and no attempt owns it"
    );
    world.time.pass(LEASE * 2).await;
    assert!(matches!(world.state().await, State::Open(Phase::Released, _)));
}

#[derive(Debug)]
struct FixedProbe {
    found: Found,
    asked: AtomicU32,
}

#[async_trait]
impl Probe for FixedProbe {
    async fn probe(&self, operation: OperationId) -> Result<Found, BoxError> {
        assert_eq!(operation, call().record_key().operation());
        self.asked.fetch_add(1, Ordering::SeqCst);
        Ok(self.found.clone())
    }
}

/// A gate with a probe, and a call whose outcome is unknown.
async fn unknown_outcome_with_probe(found: Found) -> (GateWorld, Arc<FixedProbe>) {
    let probe = Arc::new(FixedProbe { found, asked: AtomicU32::new(0) });
    let policy = Arc::clone(&probe);
    let world = GateWorld::new().with_settings(|settings| settings.policy.on_lapse = OnLapse::Resolve(policy));
    let result = world.run(|_| async { Err(Failure::unknown(Error::new(ErrorKind::Unknown, "cut off"))) }).await;
    assert!(matches!(result, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{result:?}");
    (world, probe)
}

#[tokio::test]
async fn a_probe_that_finds_the_effect_gives_every_copy_its_answer() {
    let (world, probe) = unknown_outcome_with_probe(Found::Done(Bytes::from_static(b"the answer"))).await;
    for _ in 0..2 {
        assert_answer(world.run_with_answer("a second run").await, "the answer", Provenance::Replayed);
    }
    assert_eq!((world.runs(), probe.asked.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_probe_that_finds_no_effect_lets_the_call_run_again() {
    let (world, _) = unknown_outcome_with_probe(Found::NotDone).await;
    assert_answer(world.run_with_answer("the answer").await, "the answer", Provenance::Fresh);
    assert_eq!(world.runs(), 2);
}

#[tokio::test]
async fn a_probe_that_finds_unknown_leaves_the_outcome_unknown() {
    let (world, probe) = unknown_outcome_with_probe(Found::Unknown).await;
    let result = world.run_with_answer("a second run").await;
    assert!(matches!(result, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{result:?}");
    assert_eq!((world.runs(), probe.asked.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_call_that_waits_ignores_failed_reads() {
    let world = GateWorld::new();
    let go = Arc::new(Notify::new());
    world.start_and_leave(&go, "the answer").await;
    let mut patient = settings(OnLapse::Hold);
    patient.policy.on_busy = OnBusy::Wait(LEASE * 3);
    let (store, time) = (Arc::clone(&world.store), Arc::clone(&world.time));
    let other = Gate::builder(store as _, patient).runtime(time as _).build().unwrap();
    world.store.inject(StoreMethod::Read, CallFault::Fail(ErrorKind::Unknown));
    let meanwhile = async {
        world.time.pass(LEASE).await;
        world.store.heal(StoreMethod::Read);
        go.notify_one();
        world.time.pass(LEASE).await;
    };
    let waiting = run_call_with_answer(&other, call());
    assert_answer(run_beside(waiting, meanwhile).await, "the answer", Provenance::Replayed);
}

/// Finds that the first attempt had no effect. Meanwhile an operator resolves that attempt, and a second one begins and
/// ends with an unknown outcome.
#[derive(Debug)]
struct OvertakenProbe {
    store: Arc<FaultyStore>,
}

#[async_trait]
impl Probe for OvertakenProbe {
    async fn probe(&self, _: OperationId) -> Result<Found, BoxError> {
        let (protocol, rk) = (Protocol::over(&self.store.inner), call().record_key());
        let first = self.store.inner.read(&rk).await?.record.expect("the first attempt has a record").token;
        protocol.resolve(&rk, first, &Verdict::NotDone { lifetime: Seconds(600) }).await?;
        let second = grant_to_another_process(&protocol).await;
        protocol.abandon(&rk, &second).await?;
        let begun = protocol.begin(&begin_of_another_process()).await?;
        assert!(matches!(begun, Begun::Indeterminate(_)), "{begun:?}");
        Ok(Found::NotDone)
    }
}

#[tokio::test]
async fn what_a_probe_finds_applies_only_to_the_attempt_it_was_asked_about() {
    let mut world = GateWorld::new();
    let result = world.run(|_| async { Err(Failure::unknown(Error::new(ErrorKind::Unknown, "cut off"))) }).await;
    assert!(matches!(result, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{result:?}");
    let store = Arc::clone(&world.store);
    world =
        world.with_settings(|settings| settings.policy.on_lapse = OnLapse::Resolve(Arc::new(OvertakenProbe { store })));
    let result = world.run_with_answer("a third run").await;
    assert!(matches!(result, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{result:?}");
    assert!(matches!(world.state().await, State::Open(Phase::Indeterminate, _)), "the second outcome is unknown");
    assert_eq!(world.runs(), 1);
}

//! What the gate does around one attempt: permits, twins, the breaker, probes, the journal and deadlines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use hapax_core::gate::{Detail, Failure, Provenance, Reason, Recorded, Refused};
use hapax_core::journal::MemoryJournal;
use hapax_core::machine::{Begin, Cancelled, Lapse};
use hapax_core::runtime::Runtime;
use hapax_core::store::{Inserted, Memory, Protocol};
use hapax_core::{
    BoxError, Call, Error, ErrorKind, Found, Gate, Identity, Journal, Key, Millis, OnBusy, OnLapse, OnStoreDown,
    OperationId, Owner, Phase, Probe, Repeatable, Rule, Scope, Seconds, State, Store,
};
use tokio::sync::Notify;

use crate::gate::{LEASE, Run, World, beside, call, gave, retry, settings};
use crate::stepped::settle;

fn call_of(tenant: &str, key: &str) -> Call {
    let identity = Identity::plain();
    let fingerprint = identity.fingerprint(Rule(1), &[b"the payload"]);
    identity.call(&Scope::tenant("tests", tenant).unwrap(), &Key::new(key).unwrap()).fingerprint(fingerprint)
}

async fn answers_to(gate: &Gate, call: Call) -> Run {
    gate.run(call, |_| async { Ok(String::from("the answer")) }).await
}

fn begins(world: &World) -> u32 {
    world.store.begins.load(Ordering::SeqCst)
}

#[tokio::test]
async fn no_more_attempts_run_than_there_are_permits() {
    let world = World::new().set(|settings| settings.max_in_flight = 1);
    let go = Arc::new(Notify::new());
    world.leave(&go, "the first").await;
    let told = answers_to(&world.gate, call_of("acme", "another")).await;
    assert!(matches!(told, Err(Refused { reason: Reason::Overloaded, .. })), "{told:?}");
    assert_eq!(begins(&world), 1, "the store was not asked");
    go.notify_one();
    settle().await;
    gave(answers_to(&world.gate, call_of("acme", "another")).await, "the answer", Provenance::Fresh);
}

#[tokio::test]
async fn a_tenant_that_fills_its_share_leaves_room_for_others() {
    let world = World::new().set(|settings| settings.max_in_flight_per_tenant = 1);
    world.leave(&Arc::new(Notify::new()), "the first").await;
    let told = answers_to(&world.gate, call_of("acme", "another")).await;
    assert!(matches!(told, Err(Refused { reason: Reason::Overloaded, .. })), "{told:?}");
    gave(answers_to(&world.gate, call_of("other", "another")).await, "the answer", Provenance::Fresh);
}

#[tokio::test]
async fn twins_that_wait_share_one_begin_and_one_answer() {
    let world = World::new().set(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE));
    let go = Arc::new(Notify::new());
    world.leave(&go, "the answer").await;
    let twins = join_all((0..20).map(|_| world.answers("a second run")));
    let release = async {
        settle().await;
        go.notify_one();
    };
    let (twins, ()) = futures_util::future::join(twins, release).await;
    for twin in twins {
        gave(twin, "the answer", Provenance::Replayed);
    }
    assert_eq!((world.runs(), begins(&world)), (1, 1));
}

#[tokio::test]
async fn a_twin_waits_no_longer_than_its_budget() {
    let world = World::new().set(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE));
    world.leave(&Arc::new(Notify::new()), "the answer").await;
    let told = beside(world.answers("a second run"), world.time.pass(LEASE)).await;
    assert!(matches!(told, Err(Refused { reason: Reason::Busy { .. }, .. })), "{told:?}");
}

#[tokio::test]
async fn a_twin_that_is_not_to_wait_costs_the_store_nothing() {
    let world = World::new();
    world.leave(&Arc::new(Notify::new()), "the answer").await;
    for _ in 0..3 {
        let told = world.answers("a second run").await;
        assert!(matches!(told, Err(Refused { reason: Reason::Busy { .. }, .. })), "{told:?}");
    }
    assert_eq!((world.runs(), begins(&world)), (1, 1));
}

#[tokio::test]
async fn after_a_leader_that_applied_nothing_a_twin_begins_for_itself() {
    let world = World::new().set(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE));
    let (go, inside) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (door, entered) = (Arc::clone(&go), Arc::clone(&inside));
    let leader = world.run(move |_| async move {
        entered.notify_one();
        door.notified().await;
        Err(Failure::not_applied(Error::new(ErrorKind::NotApplied, "declined")))
    });
    let twin = async {
        inside.notified().await;
        go.notify_one();
        world.answers("the answer").await
    };
    let (leader, twin) = futures_util::future::join(leader, twin).await;
    assert!(matches!(leader, Err(Refused { reason: Reason::NotApplied { .. }, .. })), "{leader:?}");
    gave(twin, "the answer", Provenance::Fresh);
}

#[tokio::test]
async fn after_a_leader_whose_outcome_is_unknown_a_twin_hears_so() {
    let world = World::new().set(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE));
    let (go, inside) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (door, entered) = (Arc::clone(&go), Arc::clone(&inside));
    let leader = world.run(move |_| async move {
        entered.notify_one();
        door.notified().await;
        Err(Failure::unknown(Error::new(ErrorKind::Unknown, "cut off")))
    });
    let twin = async {
        inside.notified().await;
        let twin = world.answers("a second run");
        let release = async {
            settle().await;
            go.notify_one();
        };
        futures_util::future::join(twin, release).await.0
    };
    let (leader, twin) = futures_util::future::join(leader, twin).await;
    assert!(matches!(leader, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{leader:?}");
    assert!(matches!(twin, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{twin:?}");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn one_twin_too_many_is_told_to_come_back() {
    let world = World::new().set(|settings| {
        settings.policy.on_busy = OnBusy::Wait(LEASE * 10);
        settings.max_twins_per_key = 2;
    });
    let go = Arc::new(Notify::new());
    world.leave(&go, "the answer").await;
    let waiting = join_all((0..2).map(|_| world.answers("a second run")));
    let third = async {
        settle().await;
        let third = world.answers("a second run").await;
        go.notify_one();
        third
    };
    let (waiting, third) = futures_util::future::join(waiting, third).await;
    assert!(matches!(third, Err(Refused { reason: Reason::Busy { .. }, .. })), "{third:?}");
    for twin in waiting {
        gave(twin, "the answer", Provenance::Replayed);
    }
}

#[tokio::test]
async fn another_payload_while_the_first_runs_is_refused_without_a_word_to_the_store() {
    let world = World::new();
    world.leave(&Arc::new(Notify::new()), "the answer").await;
    let other = call().fingerprint(Identity::plain().fingerprint(Rule(1), &[b"another payload"]));
    let told = answers_to(&world.gate, other).await;
    assert!(matches!(told, Err(Refused { reason: Reason::Mismatch, .. })), "{told:?}");
    assert_eq!(begins(&world), 1);
}

#[tokio::test]
async fn a_call_waits_for_another_process_and_gets_its_answer() {
    let world = World::new();
    let go = Arc::new(Notify::new());
    world.leave(&go, "the answer").await;
    let (store, time) = (Arc::clone(&world.store), Arc::clone(&world.time));
    let mut patient = settings(OnLapse::Hold);
    patient.policy.on_busy = OnBusy::Wait(LEASE * 3);
    let other = Gate::builder(store as _, patient).runtime(time as _).build().unwrap();
    let meanwhile = async {
        world.time.pass(LEASE).await;
        go.notify_one();
        world.time.pass(LEASE).await;
    };
    gave(beside(answers_to(&other, call()), meanwhile).await, "the answer", Provenance::Replayed);
}

#[tokio::test]
async fn a_store_that_is_down_is_asked_once_a_second() {
    let world = World::new();
    world.store.down.store(true, Ordering::SeqCst);
    for number in 0..20 {
        let told = answers_to(&world.gate, call_of("acme", &number.to_string())).await;
        assert!(matches!(told, Err(Refused { reason: Reason::Store(_), .. })), "{told:?}");
    }
    assert_eq!(begins(&world), 5, "then the breaker opens");
    world.store.down.store(false, Ordering::SeqCst);
    assert!(world.answers("too early").await.is_err());
    world.time.pass(Duration::from_secs(1)).await;
    gave(world.answers("the answer").await, "the answer", Provenance::Fresh);
    gave(answers_to(&world.gate, call_of("acme", "1")).await, "the answer", Provenance::Fresh);
}

#[tokio::test]
async fn a_store_without_room_still_replays_what_it_has() {
    let world = World::new();
    gave(world.answers("the answer").await, "the answer", Provenance::Fresh);
    world.store.full.store(true, Ordering::SeqCst);
    for number in 0..20 {
        let told = answers_to(&world.gate, call_of("acme", &format!("new-{number}"))).await;
        assert!(matches!(told, Err(Refused { reason: Reason::Store(ErrorKind::Full), .. })));
    }
    gave(world.answers("a second run").await, "the answer", Provenance::Replayed);
}

#[tokio::test]
async fn the_breaker_never_blocks_a_completion() {
    let world = World::new();
    let go = Arc::new(Notify::new());
    world.leave(&go, "the answer").await;
    world.store.down.store(true, Ordering::SeqCst);
    for number in 0..10 {
        assert!(answers_to(&world.gate, call_of("acme", &number.to_string())).await.is_err());
    }
    go.notify_one();
    settle().await;
    assert!(matches!(world.state().await, State::Completed(_)));
}

#[tokio::test]
async fn while_the_store_is_down_a_route_may_let_calls_pass() {
    let world = World::new().set(|settings| {
        settings.policy.on_store_down = OnStoreDown::Pass(Repeatable::declared("the handler only counts"));
    });
    world.store.down.store(true, Ordering::SeqCst);
    let ran = world.run(|attempt| async move {
        assert!(attempt.grant().is_none() && attempt.operation() == call().record_key().operation());
        Ok(String::from("the answer"))
    });
    let ran = ran.await.unwrap();
    assert_eq!((ran.provenance, ran.recorded), (Provenance::Fresh, Recorded::No));
    world.store.down.store(false, Ordering::SeqCst);
    assert!(world.read().await.live().is_none(), "nothing was recorded");
}

#[tokio::test]
async fn what_ended_badly_says_whether_it_ran_without_a_record() {
    let world = World::new().set(|settings| {
        settings.policy.on_store_down = OnStoreDown::Pass(Repeatable::declared("the handler only counts"));
    });
    for down in [true, false] {
        world.store.down.store(down, Ordering::SeqCst);
        let told = world.run(|_| async { Err(Failure::NotApplied(Detail::Answer(String::from("later")))) }).await;
        assert!(
            matches!(told, Err(Refused { reason: Reason::NotApplied { unrecorded }, .. }) if unrecorded == down),
            "{told:?}"
        );
        let told = world.run(|_| async { Err(Failure::Unknown(Detail::Answer(String::from("perhaps")))) }).await;
        assert!(
            matches!(told, Err(Refused { reason: Reason::Unknown { unrecorded }, .. }) if unrecorded == down),
            "{told:?}"
        );
    }
}

#[tokio::test]
async fn a_copy_of_a_call_without_a_record_hears_that_there_is_none() {
    let world = World::new().set(|settings| {
        settings.policy.on_store_down = OnStoreDown::Pass(Repeatable::declared("the handler only counts"));
    });
    world.store.down.store(true, Ordering::SeqCst);
    let go = Arc::new(Notify::new());
    world.leave(&go, "the answer").await;
    let release = async {
        settle().await;
        go.notify_one();
    };
    let ran = beside(world.answers("a second run"), release).await.unwrap();
    assert_eq!((ran.answer.as_str(), ran.provenance, ran.recorded), ("the answer", Provenance::Replayed, Recorded::No));
    assert_eq!(world.runs(), 1);
}

#[derive(Debug)]
struct Knows {
    found: Found,
    asked: AtomicU32,
}

#[async_trait]
impl Probe for Knows {
    async fn probe(&self, operation: OperationId) -> Result<Found, BoxError> {
        assert_eq!(operation, call().record_key().operation());
        self.asked.fetch_add(1, Ordering::SeqCst);
        Ok(self.found.clone())
    }
}

/// A world with an attempt of unknown outcome, whose policy is to ask.
async fn asks(found: Found) -> (World, Arc<Knows>) {
    let probe = Arc::new(Knows { found, asked: AtomicU32::new(0) });
    let policy = Arc::clone(&probe);
    let world = World::new().set(|settings| settings.policy.on_lapse = OnLapse::Resolve(policy));
    let told = world.run(|_| async { Err(Failure::unknown(Error::new(ErrorKind::Unknown, "cut off"))) }).await;
    assert!(matches!(told, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{told:?}");
    (world, probe)
}

#[tokio::test]
async fn a_probe_that_finds_the_effect_gives_every_copy_its_answer() {
    let (world, probe) = asks(Found::Done(Bytes::from_static(b"the answer"))).await;
    for _ in 0..2 {
        gave(world.answers("a second run").await, "the answer", Provenance::Replayed);
    }
    assert_eq!((world.runs(), probe.asked.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test]
async fn a_probe_that_finds_nothing_lets_it_run_again() {
    let (world, _) = asks(Found::NotDone).await;
    gave(world.answers("the answer").await, "the answer", Provenance::Fresh);
    assert_eq!(world.runs(), 2);
}

#[tokio::test]
async fn a_probe_that_does_not_know_leaves_it_unknown() {
    let (world, probe) = asks(Found::Unknown).await;
    let told = world.answers("a second run").await;
    assert!(matches!(told, Err(Refused { reason: Reason::Indeterminate { .. }, .. })), "{told:?}");
    assert_eq!((world.runs(), probe.asked.load(Ordering::SeqCst)), (1, 1));
}

/// A gate with a journal over the world's store and time.
fn with_journal(world: &World, journal: &Arc<MemoryJournal>) -> Gate {
    let (store, time) = (Arc::clone(&world.store), Arc::clone(&world.time));
    let builder = Gate::builder(store as _, settings(OnLapse::Hold)).runtime(time as _);
    builder.journal(Arc::clone(journal) as _).build().unwrap()
}

#[tokio::test]
async fn an_answer_that_the_store_does_not_take_is_given_from_the_journal_and_recorded_later() {
    let (mut world, journal) = (World::new(), Arc::new(MemoryJournal::new()));
    world.gate = with_journal(&world, &journal);
    world.store.refuse_all_after_begin(true);
    let ran = beside(world.answers("the answer"), world.time.pass(LEASE * 2)).await.unwrap();
    assert_eq!(
        (ran.answer.as_str(), ran.provenance, ran.recorded),
        ("the answer", Provenance::Fresh, Recorded::Pending)
    );
    assert_eq!(journal.replay().await.unwrap().len(), 1);

    world.store.refuse_all_after_begin(false);
    world.time.pass(Duration::from_secs(2)).await;
    assert!(matches!(world.state().await, State::Completed(_)));
    assert!(journal.replay().await.unwrap().is_empty(), "the journal has forgotten it");
    gave(world.answers("a second run").await, "the answer", Provenance::Replayed);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_twin_is_told_that_the_answer_is_not_recorded_yet() {
    let mut world = World::new();
    let mut wait = settings(OnLapse::Hold);
    wait.policy.on_busy = OnBusy::Wait(LEASE * 5);
    world.gate = with_journal(&world, &Arc::new(MemoryJournal::new())).with(&wait.policy).unwrap();
    world.store.refuse_all_after_begin(true);
    let go = Arc::new(Notify::new());
    world.leave(&go, "the answer").await;
    let meanwhile = async {
        settle().await;
        go.notify_one();
        world.time.pass(LEASE * 3).await;
    };
    let twin = beside(world.answers("a second run"), meanwhile).await.expect("there is an answer");
    assert_eq!(
        (twin.answer.as_str(), twin.provenance, twin.recorded),
        ("the answer", Provenance::Replayed, Recorded::Pending)
    );
}

#[tokio::test]
async fn while_an_answer_is_in_the_journal_its_lease_is_kept() {
    let (mut world, journal) = (World::new(), Arc::new(MemoryJournal::new()));
    world.gate = with_journal(&world, &journal);
    world.store.refuse_completes.store(true, Ordering::SeqCst);
    beside(world.answers("the answer"), world.time.pass(LEASE * 2)).await.unwrap();
    world.time.pass(LEASE * 3).await;
    let told = world.answers("a second run").await;
    assert!(matches!(told, Err(Refused { reason: Reason::Busy { .. }, .. })), "{told:?}");
}

#[tokio::test]
async fn what_a_process_left_in_its_journal_the_next_one_records() {
    let (mut world, journal) = (World::new(), Arc::new(MemoryJournal::new()));
    world.gate = with_journal(&world, &journal);
    world.store.refuse_all_after_begin(true);
    beside(world.answers("the answer"), world.time.pass(LEASE * 2)).await.unwrap();
    world.time.abort_all().await;

    world.store.refuse_all_after_begin(false);
    world.gate = with_journal(&world, &journal);
    settle().await;
    gave(world.answers("a second run").await, "the answer", Provenance::Replayed);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn an_answer_past_its_retention_does_not_come_back_from_the_journal() {
    let (mut world, journal) = (World::new(), Arc::new(MemoryJournal::new()));
    world.gate = with_journal(&world, &journal);
    world.store.refuse_all_after_begin(true);
    beside(world.answers("the answer"), world.time.pass(LEASE * 2)).await.unwrap();
    world.time.abort_all().await;
    let mut spilled = journal.replay().await.unwrap().remove(0).1;
    spilled.complete.retention = Seconds(1);
    spilled.rk = call_of("acme", "forgotten by the store").record_key();
    let left = Arc::new(MemoryJournal::new());
    left.append(&spilled).await.unwrap();

    world.store.refuse_all_after_begin(false);
    world.gate = with_journal(&world, &left);
    settle().await;
    let forgotten = world.store.inner.read(&spilled.rk).await.unwrap();
    assert!(forgotten.live().is_none(), "{forgotten:?}");
    assert!(left.replay().await.unwrap().is_empty(), "and it is not tried for ever");
}

#[tokio::test]
async fn a_handler_is_told_to_stop_before_its_lease_can_be_over() {
    let world = World::new();
    world.store.refuse_renewals.store(true, Ordering::SeqCst);
    let (time, stopped) = (Arc::clone(&world.time), Arc::new(std::sync::Mutex::new(None)));
    let noted = Arc::clone(&stopped);
    let run = world.run(move |attempt| async move {
        attempt.cancelled().await;
        *noted.lock().unwrap() = Some(time.boottime_now());
        Ok(String::from("the answer"))
    });
    gave(beside(run, world.time.pass(LEASE)).await, "the answer", Provenance::Fresh);
    let stopped = stopped.lock().unwrap().expect("it was told");
    assert!(stopped < LEASE && stopped > LEASE / 2, "{stopped:?}");
}

#[tokio::test]
async fn a_lease_is_counted_from_when_its_renewal_was_sent() {
    let world = World::new();
    world.store.hold_renewals.store(true, Ordering::SeqCst);
    let (time, stopped) = (Arc::clone(&world.time), Arc::new(std::sync::Mutex::new(None)));
    let noted = Arc::clone(&stopped);
    let run = world.run(move |attempt| async move {
        attempt.cancelled().await;
        *noted.lock().unwrap() = Some(time.boottime_now());
        Ok(String::from("the answer"))
    });
    let the_only_reply_is_late = async {
        world.time.pass(LEASE * 4 / 5).await;
        world.store.hold_renewals.store(false, Ordering::SeqCst);
        world.store.go_on.notify_one();
        settle().await;
        world.store.refuse_renewals.store(true, Ordering::SeqCst);
        world.time.pass(LEASE).await;
    };
    gave(beside(run, the_only_reply_is_late).await, "the answer", Provenance::Fresh);
    let stopped = stopped.lock().unwrap().expect("it was told");
    assert!(stopped > LEASE && stopped < LEASE * 7 / 5, "{stopped:?}");
}

#[tokio::test]
async fn a_twin_is_not_given_an_answer_that_is_not_recorded() {
    let world = World::new().set(|settings| settings.policy.on_busy = OnBusy::Wait(LEASE * 5));
    world.store.refuse_all_after_begin(true);
    let go = Arc::new(Notify::new());
    world.leave(&go, "the answer").await;
    let meanwhile = async {
        settle().await;
        go.notify_one();
        world.time.pass(LEASE * 3).await;
    };
    let twin = beside(world.answers("a second run"), meanwhile).await;
    assert!(matches!(twin, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{twin:?}");
    assert_eq!(world.runs(), 1);
}

/// A begin of another process, which holds the key.
async fn held_by_another(world: &World) -> Begin {
    let ask = Begin {
        call: call(),
        owner: Owner([9; 16]),
        lease: Millis(1000),
        unknown_retention: Seconds(3600),
        on_lapse: Lapse::Hold,
    };
    let begun = world.store.inner.begin(&ask).await.unwrap();
    assert!(matches!(begun, Inserted::Granted(_)));
    ask
}

#[tokio::test]
async fn a_begin_that_may_still_arrive_is_cancelled_whatever_the_next_one_heard() {
    let world = World::new();
    let other = held_by_another(&world).await;
    world.store.delay_begins.store(1, Ordering::SeqCst);
    let told = world.answers("never").await;
    assert!(matches!(told, Err(Refused { reason: Reason::Busy { .. }, .. })), "{told:?}");
    settle().await;
    let protocol = Protocol::over(&world.store.inner);
    let rk = call().record_key();
    let cancelled = protocol.cancel(&rk, other.owner, Seconds(60)).await.unwrap();
    assert_eq!(cancelled, Cancelled::Yes, "the other process gives the key back");

    world.store.carry_out_delayed_by_protocol().await;
    assert!(matches!(world.state().await, State::Open(Phase::InProgress, _)), "the late begin was granted, to nobody");
    world.time.pass(LEASE * 2).await;
    assert!(matches!(world.state().await, State::Open(Phase::Released, _)));
}

#[tokio::test]
async fn a_begin_that_arrives_after_its_attempt_was_released_is_cancelled() {
    let world = World::new();
    world.store.delay_begins.store(1, Ordering::SeqCst);
    let told = world.run(|_| async { Err(Failure::not_applied(Error::new(ErrorKind::NotApplied, "declined"))) }).await;
    assert!(matches!(told, Err(Refused { reason: Reason::NotApplied { .. }, .. })), "{told:?}");
    settle().await;
    world.store.carry_out_delayed_by_protocol().await;
    assert!(matches!(world.state().await, State::Open(Phase::InProgress, _)), "the late begin was granted, to nobody");
    world.time.pass(LEASE * 2).await;
    assert!(matches!(world.state().await, State::Open(Phase::Released, _)));
}

#[tokio::test]
async fn a_takeover_that_applied_nothing_leaves_the_key_unknown() {
    let world = World::under(retry());
    let told = world.run(|_| async { Err(Failure::unknown(Error::new(ErrorKind::Unknown, "cut off"))) }).await;
    assert!(matches!(told, Err(Refused { reason: Reason::Unknown { .. }, .. })), "{told:?}");
    let told = world.run(|_| async { Err(Failure::not_applied(Error::new(ErrorKind::NotApplied, "declined"))) }).await;
    assert!(matches!(told, Err(Refused { reason: Reason::NotApplied { .. }, .. })), "{told:?}");
    let State::Open(Phase::InProgress, holding) = world.state().await else { panic!("it was released") };
    assert!(holding.takeover && holding.is_abandoned(), "{holding:?}");
}

#[expect(clippy::disallowed_methods, reason = "the one test in real time, and on threads of its own")]
/// The one test in real time: a handler that blocks the only thread of its executor for longer than its lease.
#[test]
fn a_blocked_executor_does_not_lose_its_lease() {
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    executor.block_on(async {
        let store = Arc::new(Memory::new());
        let gate = Gate::builder(Arc::clone(&store) as _, settings(OnLapse::Hold)).build().unwrap();
        let ran = gate.run(call(), |_| async {
            let started = Instant::now();
            while started.elapsed() < LEASE * 2 {
                std::hint::spin_loop();
            }
            Ok(String::from("the answer"))
        });
        let other = std::thread::spawn({
            let store = Arc::clone(&store);
            move || lapsed_within(&store, LEASE * 2)
        });
        gave(ran.await, "the answer", Provenance::Fresh);
        assert!(!other.join().unwrap(), "the lease ran out while the executor was blocked");
    });
}

#[expect(clippy::disallowed_methods, reason = "looks on in real time")]
/// Whether the lease of the call's record runs out within this time, as another process sees it.
fn lapsed_within(store: &Memory, time: Duration) -> bool {
    let started = Instant::now();
    while started.elapsed() < time {
        let seen = futures_util::FutureExt::now_or_never(store.read(&call().record_key())).unwrap().unwrap();
        if matches!(seen.live().map(|record| &record.state), Some(State::Open(Phase::InProgress, _)))
            && !seen.is_running()
        {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

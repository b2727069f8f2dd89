//! The gate over a real server, where each store call in turn fails, gets no reply, or is late.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hapax_core::gate::{Failure, Reason, Refused, RunResult};
use hapax_core::runtime::Tokio;
use hapax_core::{Error, ErrorKind, Gate, Phase, Settings, State, Store};
use hapax_stores::Redis;
use hapax_testkit::servers::RedisKind;
use hapax_testkit::{Faulty, StoreFault};
use libtest_mimic::Trial;

use crate::support::{Operation, start, store, test, until};

/// The gate's timeout of a store call.
const TIMEOUT: Duration = Duration::from_millis(150);

const LEASE: Duration = Duration::from_secs(1);

const FAULTS: [StoreFault; 6] = [
    StoreFault::FailBefore(ErrorKind::NotApplied),
    StoreFault::FailBefore(ErrorKind::Unknown),
    StoreFault::FailAfter(ErrorKind::Unknown),
    StoreFault::SwallowBefore,
    StoreFault::SwallowAfter,
    StoreFault::AnswerLate(Duration::from_millis(50)),
];

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("a_fault_at_every_call_of_the_gate", RedisKind::Redis.name(), every_call)]
}

type GateResult = Result<RunResult<String>, Refused<String>>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum HandlerOutcome {
    Applied,
    NotApplied,
    Unknown,
}

async fn every_call() {
    let server = start(RedisKind::Redis, &[]).await;
    let store = store(&server.url());
    let mut points = 0;
    for outcome in [HandlerOutcome::Applied, HandlerOutcome::NotApplied, HandlerOutcome::Unknown] {
        let calls = run(&store, outcome, None).await;
        let runs = (0..calls).flat_map(|call| FAULTS.map(|fault| run(&store, outcome, Some((call, fault)))));
        futures_util::future::join_all(runs).await;
        points += calls;
    }
    println!("a fault at every call of the gate: {points} calls, {} faults each", FAULTS.len());
    assert!(points >= 5, "{points}");
}

/// Runs one operation with the fault, then again without. Returns the number of store calls of the first run.
async fn run(store: &Arc<Redis>, outcome: HandlerOutcome, injected: Option<(usize, StoreFault)>) -> usize {
    let name = format!("{outcome:?} {injected:?}");
    let operation = Operation::new(&name);
    let faulty = Faulty::new(Arc::clone(store) as Arc<dyn Store>, Arc::new(Tokio::current()), LEASE);
    if let Some((call, fault)) = injected {
        faulty.inject(call, fault);
    }
    let mut settings = Settings::default();
    settings.store_timeout = TIMEOUT;
    settings.policy.lease = LEASE;
    let gate = Gate::builder(Arc::clone(&faulty) as _, settings).build().unwrap();
    let effects = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&effects);
    let ran = gate.run(operation.0, move |_| async move { handle(outcome, &counted) }).await;
    let calls = faulty.calls().len();
    let rk = operation.0.record_key();
    // The gate repeats a write that timed out in the background: wait until the record is no longer in progress.
    // After an unknown outcome the record may stay in progress for the rest of its lease.
    let is_held = matches!(ran, Err(Refused { reason: Reason::Unknown { .. }, .. }));
    until(&name, || async { is_held || !store.read(&rk).await.unwrap().is_running() }).await;
    let seen = store.read(&rk).await.unwrap();
    let happened = effects.load(Ordering::SeqCst);
    let state = seen.live().map(|record| record.state.clone());
    let context = format!("{name}: {ran:?}, {happened} effects, {state:?}");
    assert!(happened <= 1, "{context}");
    assert_result_fits(&ran, state.as_ref(), happened, &context);
    faulty.heal();
    let again = Arc::clone(&effects);
    let copy = gate.run(operation.0, move |_| async move { handle(HandlerOutcome::Applied, &again) }).await;
    let total = effects.load(Ordering::SeqCst);
    assert_copy_fits(&copy, state.as_ref(), (happened, total), &context);
    calls
}

/// The result of the first run fits the stored state and the number of effects.
fn assert_result_fits(ran: &GateResult, state: Option<&State>, happened: usize, context: &str) {
    match (ran, state) {
        (Ok(ran), Some(State::Completed(completion))) => assert_eq!(completion.answer, ran.answer, "{context}"),
        // The handler did not run or had no effect, and the next attempt is not blocked.
        (
            Err(Refused { reason: Reason::NotApplied { .. } | Reason::Store(_), .. }),
            Some(State::Open(Phase::Released, _)) | None,
        ) => assert_eq!(happened, 0, "{context}"),
        (
            Err(Refused { reason: Reason::Unknown { .. }, .. }),
            Some(State::Open(Phase::InProgress | Phase::Indeterminate, _)),
        ) => {}
        _ => panic!("{context}"),
    }
}

/// A copy after the fault replays or runs once; while the outcome is unknown, it is refused.
fn assert_copy_fits(copy: &GateResult, state: Option<&State>, (before, total): (usize, usize), context: &str) {
    match state {
        Some(State::Completed(_) | State::Open(Phase::Released, _)) | None => {
            assert!(copy.is_ok() && total == 1, "{context}, then {copy:?}");
        }
        Some(State::Open(Phase::InProgress | Phase::Indeterminate | Phase::Dead, _)) => {
            assert!(
                matches!(copy, Err(Refused { reason: Reason::Indeterminate { .. } | Reason::Busy { .. }, .. })),
                "{context}, then {copy:?}"
            );
            assert_eq!(total, before, "{context}: it ran again");
        }
    }
}

fn handle(outcome: HandlerOutcome, effects: &AtomicUsize) -> Result<String, Failure<String>> {
    let error = || Error::new(ErrorKind::Invalid, "an error of the handler");
    if outcome == HandlerOutcome::NotApplied {
        return Err(Failure::not_applied(error()));
    }
    effects.fetch_add(1, Ordering::SeqCst);
    if outcome == HandlerOutcome::Unknown { Err(Failure::unknown(error())) } else { Ok("done".into()) }
}

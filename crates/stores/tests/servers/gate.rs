//! The gate over a real server, with each of its calls failing, answered to nobody, or late.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hapax_core::gate::{Failure, Reason, Refused};
use hapax_core::runtime::Tokio;
use hapax_core::{Error, ErrorKind, Gate, Phase, Settings, State, Store};
use hapax_stores::Redis;
use hapax_testkit::servers::Kind;
use hapax_testkit::{Fault, Faulty};
use libtest_mimic::Trial;

use crate::world::{Operation, start, store, test, until};

/// How long the gate waits for the store here.
const TIMEOUT: Duration = Duration::from_millis(150);

const LEASE: Duration = Duration::from_secs(1);

const FAULTS: [Fault; 6] = [
    Fault::FailBefore(ErrorKind::NotApplied),
    Fault::FailBefore(ErrorKind::Unknown),
    Fault::FailAfter(ErrorKind::Unknown),
    Fault::SwallowBefore,
    Fault::SwallowAfter,
    Fault::AnswerLate(Duration::from_millis(50)),
];

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("a_fault_at_every_call_of_the_gate", Kind::Redis.name(), every_call)]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    Applied,
    NotApplied,
    Unknown,
}

async fn every_call() {
    let server = start(Kind::Redis, &[]).await;
    let store = store(&server.url());
    let mut points = 0;
    for says in [Says::Applied, Says::NotApplied, Says::Unknown] {
        let calls = run(&store, says, None).await;
        let runs = (0..calls).flat_map(|call| FAULTS.map(|fault| run(&store, says, Some((call, fault)))));
        futures_util::future::join_all(runs).await;
        points += calls;
    }
    println!("a fault at every call of the gate: {points} calls, {} faults each", FAULTS.len());
    assert!(points >= 5, "{points}");
}

/// Runs one operation to its end, once with the fault and once more; how many calls the first took.
async fn run(store: &Arc<Redis>, says: Says, mishap: Option<(usize, Fault)>) -> usize {
    let name = format!("{says:?} {mishap:?}");
    let operation = Operation::new(&name);
    let faulty = Faulty::over(Arc::clone(store) as Arc<dyn Store>, Arc::new(Tokio::current()), LEASE);
    if let Some((call, fault)) = mishap {
        faulty.meet(call, fault);
    }
    let mut settings = Settings::default();
    settings.store_timeout = TIMEOUT;
    settings.policy.lease = LEASE;
    let gate = Gate::builder(Arc::clone(&faulty) as _, settings).build().unwrap();
    let effects = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&effects);
    let ran = gate.run(operation.0, move |_| async move { handle(says, &counted) }).await;
    let calls = faulty.calls().len();
    let rk = operation.0.record_key();
    // What the gate could not say in time it goes on saying.
    let is_held = matches!(ran, Err(Refused { reason: Reason::Unknown { .. }, .. }));
    until(&name, || async { is_held || !store.read(&rk).await.unwrap().runs() }).await;
    let seen = store.read(&rk).await.unwrap();
    let happened = effects.load(Ordering::SeqCst);
    let state = seen.live().map(|record| record.state.clone());
    let context = format!("{name}: {ran:?}, {happened} effects, {state:?}");
    assert!(happened <= 1, "{context}");
    match (&ran, &state) {
        (Ok(ran), Some(State::Completed(completion))) => assert_eq!(completion.answer, ran.answer, "{context}"),
        (Err(Refused { reason: Reason::NotApplied { .. }, .. }), Some(State::Open(Phase::Released, _)) | None) => {
            assert_eq!(happened, 0, "{context}");
        }
        (
            Err(Refused { reason: Reason::Unknown { .. }, .. }),
            Some(State::Open(Phase::InProgress | Phase::Indeterminate, _)),
        ) => {}
        // It was not run, and nothing stands in the way of the next.
        (Err(Refused { reason: Reason::Store(_), .. }), Some(State::Open(Phase::Released, _)) | None) => {
            assert_eq!(happened, 0, "{context}")
        }
        _ => panic!("{context}"),
    }
    faulty.heal();
    let again = Arc::clone(&effects);
    let copy = gate.run(operation.0, move |_| async move { handle(Says::Applied, &again) }).await;
    let total = effects.load(Ordering::SeqCst);
    match state {
        Some(State::Completed(_)) => assert!(copy.is_ok() && total == 1, "{context}, then {copy:?}"),
        Some(State::Open(Phase::Released, _)) | None => assert!(copy.is_ok() && total == 1, "{context}, then {copy:?}"),
        Some(State::Open(Phase::InProgress | Phase::Indeterminate | Phase::Dead, _)) => {
            assert!(
                matches!(copy, Err(Refused { reason: Reason::Indeterminate { .. } | Reason::Busy { .. }, .. })),
                "{context}, {copy:?}"
            );
            assert_eq!(total, happened, "{context}: it ran again");
        }
    }
    calls
}

fn handle(says: Says, effects: &AtomicUsize) -> Result<String, Failure<String>> {
    let told = || Error::new(ErrorKind::Invalid, "the handler says so");
    if says == Says::NotApplied {
        return Err(Failure::not_applied(told()));
    }
    effects.fetch_add(1, Ordering::SeqCst);
    if says == Says::Unknown { Err(Failure::unknown(told())) } else { Ok("done".into()) }
}

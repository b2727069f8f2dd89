//! A ledger behind a gate: whatever the gate loses, the ledger gives the same answer, and the gate records it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use hapax_core::gate::{Attempt, Failure, Provenance, Reason, Refused, RunResult};
use hapax_core::ledger::{self, Claimed, Terms, Work};
use hapax_core::store::{Memory, MemorySettings};
use hapax_core::{
    Call, Error, ErrorKind, Gate, Identity, Key, OnLapse, OnStoreDown, Repeatable, Rule, Scope, Settings, State, Store,
};
use hapax_stores::SqliteLedger;
use hapax_testkit::{Faulty, Process, ProcessPart, StoreFault, VirtualTime};
use metrics::{Counter, Gauge, Histogram, KeyName, Metadata, Recorder, SharedString, Unit};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::sync::Notify;

const LEASE: Duration = Duration::from_secs(1);

type Handled = Result<String, Failure<String>>;
type Ran = Result<RunResult<String>, Refused<String>>;

fn call(payload: &[u8]) -> Call {
    let identity = Identity::plain();
    let fingerprint = identity.fingerprint(Rule(1), &[payload]);
    identity.call(&Scope::tenant("bank", "acme").unwrap(), &Key::new("order-7").unwrap()).fingerprint(fingerprint)
}

/// Processes with gates over one store, and a file with effects and their ledger.
struct World {
    time: VirtualTime,
    store: Arc<Memory>,
    file: PathBuf,
    _directory: TempDir,
}

impl World {
    fn new() -> Self {
        let time = VirtualTime::new(1);
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bank.db");
        let mut bank = Connection::open(&file).unwrap();
        SqliteLedger::migrate(&mut bank).unwrap();
        bank.execute_batch("create table effect (attempt integer)").unwrap();
        let store = empty_store(&time);
        Self { time, store, file, _directory: directory }
    }

    fn gate(&self, process: &Arc<Process>) -> Gate {
        gate(Arc::clone(&self.store) as _, process)
    }

    /// Runs the call in a process that lives until the call has ended.
    fn run(&self, gate: &Gate, process: &Process) -> RunResult<String> {
        let (gate, file) = (gate.clone(), self.file.clone());
        let run = process
            .start(async move { gate.run(call(b"5"), move |attempt| async move { transfer(&file, &attempt) }).await });
        self.time.run_until(LEASE * 10, || run.output()).expect("the call ends").expect("the call has an answer")
    }

    fn effects(&self) -> u32 {
        let bank = Connection::open(&self.file).unwrap();
        bank.query_row("select count(*) from effect", [], |row| row.get(0)).unwrap()
    }

    fn ledger_bytes(&self) -> Bytes {
        let bank = Connection::open(&self.file).unwrap();
        bank.query_row("select answer from hapax_ledger", [], |row| row.get::<_, Vec<u8>>(0)).unwrap().into()
    }

    /// The bytes of the completed record.
    fn recorded_bytes(&self) -> Bytes {
        let seen = self.store.read(&call(b"5").record_key()).now_or_never().unwrap().unwrap();
        match &seen.live().expect("the record lives").state {
            State::Completed(completion) => completion.answer.clone(),
            State::Open(..) => panic!("the record is open: {seen:?}"),
        }
    }
}

fn empty_store(time: &VirtualTime) -> Arc<Memory> {
    Arc::new(Memory::with(time.process(), MemorySettings::default()))
}

fn terms() -> Terms {
    Terms::new("bank").unwrap()
}

fn gate(store: Arc<dyn Store>, process: &Arc<Process>) -> Gate {
    let ledger = SqliteLedger::new(terms());
    let mut settings = Settings::default();
    settings.policy.lease = LEASE;
    settings.policy.on_lapse = OnLapse::Retry(Repeatable::behind(&ledger));
    settings.policy.on_store_down = OnStoreDown::Pass(Repeatable::behind(&ledger));
    Gate::builder(store, settings).runtime(Arc::clone(process) as _).build().unwrap()
}

/// The handler of a service: the answer would differ in each attempt.
fn transfer(file: &PathBuf, attempt: &Attempt) -> Handled {
    let mut bank = Connection::open(file)?;
    bank.pragma_update(None, "foreign_keys", true)?;
    let result = SqliteLedger::new(terms()).run(&mut bank, ledger::Call::from(attempt), |transaction, _| {
        transaction.execute("insert into effect values (?1)", [attempt.number()])?;
        Ok(format!("transferred in attempt {}", attempt.number()))
    });
    result.map(|result| result.answer).map_err(Refused::into_failure)
}

#[test]
fn after_a_crash_between_commit_and_completion_a_copy_gets_the_answer_of_the_ledger_and_records_it() {
    let world = World::new();
    let (first, second) = (world.time.process(), world.time.process());
    let (dying, file, committed) = (world.gate(&first), world.file.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&committed);
    first.start(async move {
        let handler = move |attempt| async move {
            let answer = transfer(&file, &attempt);
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
            answer
        };
        dying.run(call(b"5"), handler).await
    });
    let has_committed = || (committed.load(Ordering::SeqCst) > 0).then_some(());
    world.time.run_until(LEASE, has_committed).expect("the handler runs");
    first.crash();
    let committed = world.ledger_bytes();
    assert_eq!(committed, "transferred in attempt 1");

    world.time.run_for(LEASE * 2);
    let copy = world.run(&world.gate(&second), &second);
    assert_eq!((copy.answer.as_str(), copy.provenance), ("transferred in attempt 1", Provenance::Fresh));
    assert_eq!((world.recorded_bytes(), world.effects()), (committed, 1));
    let replay = world.run(&world.gate(&second), &second);
    assert_eq!((replay.answer, replay.provenance), (copy.answer, Provenance::Replayed));
}

#[test]
fn a_late_completion_after_a_takeover_finds_its_own_bytes_recorded() {
    let world = World::new();
    let (slow, fast) = (world.time.process(), world.time.process());
    let (gate, file, go) = (world.gate(&slow), world.file.clone(), Arc::new(Notify::new()));
    let released = Arc::clone(&go);
    let late = slow.start(async move {
        let handler = move |attempt| async move {
            let answer = transfer(&file, &attempt);
            released.notified().await;
            answer
        };
        gate.run(call(b"5"), handler).await
    });
    world.time.run_for(Duration::from_millis(1));
    // Without heartbeat the lease lapses, although the handler still runs.
    slow.pause(ProcessPart::Threads);
    world.time.run_for(LEASE * 2);
    let taken_over = world.run(&world.gate(&fast), &fast);
    assert_eq!(taken_over.answer, "transferred in attempt 1");
    let recorded = world.recorded_bytes();
    slow.resume(ProcessPart::Threads);
    go.notify_one();
    let late = world.time.run_until(LEASE * 10, || late.output()).expect("the call ends").expect("it has an answer");
    assert_eq!((late.answer, late.provenance), (taken_over.answer, Provenance::Canonical));
    assert_eq!((world.recorded_bytes(), world.ledger_bytes(), world.effects()), (recorded.clone(), recorded, 1));
}

#[test]
fn a_store_that_forgot_everything_records_the_same_bytes_again() {
    let mut world = World::new();
    let process = world.time.process();
    let first = world.run(&world.gate(&process), &process);
    let recorded = world.recorded_bytes();
    world.store = empty_store(&world.time);
    let again = world.run(&world.gate(&process), &process);
    assert_eq!((again.answer, world.recorded_bytes(), world.effects()), (first.answer, recorded, 1));
}

#[test]
fn a_payload_is_compared_also_while_the_store_of_the_gate_is_down() {
    let world = World::new();
    let process = world.time.process();
    world.run(&world.gate(&process), &process);
    let run = |payload: &'static [u8]| -> Ran {
        let down = Faulty::new(Arc::clone(&world.store) as _, Arc::clone(&process) as _, LEASE);
        (0..8).for_each(|begin| down.inject(begin, StoreFault::FailBefore(ErrorKind::NotApplied)));
        let (gate, file) = (gate(down as _, &process), world.file.clone());
        let handler = move |attempt: Attempt| async move {
            assert!(attempt.grant().is_none(), "the store is down");
            transfer(&file, &attempt)
        };
        let run = process.start(async move { gate.run(call(payload), handler).await });
        world.time.run_until(LEASE * 10, || run.output()).expect("the call ends")
    };
    assert_eq!(run(b"5").unwrap().answer, "transferred in attempt 1");
    let refused = run(b"6").unwrap_err();
    assert_eq!(refused.reason, Reason::NotApplied { unrecorded: true });
    assert_eq!(world.effects(), 1);
}

/// Counts the copies that a ledger caught.
#[derive(Default)]
struct CaughtCounter(Arc<AtomicU64>);

impl Recorder for CaughtCounter {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &metrics::Key, _: &Metadata<'_>) -> Counter {
        let is_of_ledger = key.labels().any(|label| (label.key(), label.value()) == ("layer", "ledger"));
        match key.name() == "hapax_caught_total" && is_of_ledger {
            true => Counter::from_arc(Arc::clone(&self.0)),
            false => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &metrics::Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &metrics::Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn copies_that_the_gate_let_through_are_counted_once_each() {
    let (world, caught) = (World::new(), CaughtCounter::default());
    let counted = || caught.0.load(Ordering::SeqCst);
    let _guard = metrics::set_default_local_recorder(&caught);
    let (ledger, call) = (SqliteLedger::new(terms()), ledger::Call::from(call(b"5")));
    let mut bank = Connection::open(&world.file).unwrap();
    SqliteLedger::migrate(&mut bank).unwrap();

    let process = world.time.process();
    world.run(&world.gate(&process), &process);
    assert_eq!(counted(), 0, "the first copy");
    world.run(&world.gate(&process), &process);
    assert_eq!(counted(), 0, "the gate caught it");
    ledger.run::<String, _>(&mut bank, call, |_, _| panic!("the handler must not run")).unwrap();
    assert_eq!(counted(), 1, "by `run`");
    let work = || Work { call, ordering_key: None, is_redelivered: false };
    let copies = ledger.run_batch::<String, _>(&mut bank, vec![work(), work()], |_, _| panic!("it must not run"));
    assert!(copies.iter().all(Result::is_ok));
    assert_eq!(counted(), 3, "by `run_batch`");
    let transaction = bank.transaction().unwrap();
    let claimed = ledger.claim::<String>(&transaction, &call).unwrap();
    assert!(matches!(claimed, Claimed::Replay(answer) if answer == "transferred in attempt 1"));
    drop(transaction);
    assert_eq!(counted(), 4, "by `claim`");
    let other = call.fingerprint(Identity::plain().fingerprint(Rule(1), &[b"6"]));
    let claimed = ledger.claim::<String>(&bank.transaction().unwrap(), &other).unwrap();
    assert!(matches!(claimed, Claimed::Mismatch));
    assert_eq!(counted(), 4, "another payload is no copy");
}

#[test]
fn a_gate_frees_its_key_only_if_the_ledger_knows_that_nothing_was_applied() {
    let is_unknown = |reason: Reason| matches!(Refused::<String>::from(reason).into_failure(), Failure::Unknown(_));
    for reason in Reason::ALL {
        let expected = matches!(reason, Reason::Unknown { .. } | Reason::Indeterminate { .. } | Reason::Unrecorded);
        assert_eq!(is_unknown(reason), expected, "{reason:?}");
    }
    for kind in [ErrorKind::Unknown, ErrorKind::Damaged] {
        assert!(is_unknown(Reason::Store(kind)), "{kind:?}");
    }
    for kind in [ErrorKind::NotApplied, ErrorKind::Unusable, ErrorKind::Invalid, ErrorKind::Full] {
        assert!(!is_unknown(Reason::Store(kind)), "{kind:?}");
    }
    let mut bank = Connection::open_in_memory().unwrap();
    let call = ledger::Call::from(call(b"5"));
    let missing = SqliteLedger::new(terms()).run::<String, _>(&mut bank, call, |_, _| panic!("it must not run"));
    let missing = missing.unwrap_err();
    assert_eq!(missing.reason, Reason::Store(ErrorKind::Unusable), "tables are missing");
    let Failure::NotApplied(detail) = missing.into_failure() else { panic!("nothing was applied") };
    let hapax_core::gate::Detail::Error(error) = detail else { panic!("there is no answer") };
    assert!(error.downcast_ref::<Error>().is_some_and(|error| error.to_string() == "the store cannot be used"));
}

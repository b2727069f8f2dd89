//! Each operation of the protocol, in each state that it can change: with each fault at each of its store calls, and
//! dropped at each of its steps. Then the operation is repeated. Its reply and the record are the same as without a
//! fault.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use hapax_core::machine::{Begin, Claim, Complete, Lapse, Verdict};
use hapax_core::store::{Memory, MemorySettings, Protocol};
use hapax_core::{Millis, Owner, Record, Result, Seconds, Store, Timestamp, Token};
use hapax_sweeps::Sweep;
use hapax_testkit::{Faulty, Process, StoreFault, TaskHandle, VirtualTime};

use crate::faults::{HOLD, LEASE, faults};
use crate::world::call;

const LIFETIME: Seconds = Seconds(3600);
const ME: Owner = Owner([1; 16]);
const ANOTHER: Owner = Owner([2; 16]);

/// An operation, or a lapse. Each operation uses the newest grant, except `CompleteFirst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestedOperation {
    Begin(Owner, Lapse),
    Renew,
    Complete,
    /// A completion with the first grant.
    CompleteFirst,
    Release,
    Cancel,
    Abandon,
    Bury,
    Hold,
    Done,
    NotDone,
    Reopen,
    Lapse,
}

use TestedOperation::{Abandon, Bury, Cancel, CompleteFirst, Done, Hold, NotDone, Release, Renew, Reopen};

const GRANT: TestedOperation = TestedOperation::Begin(ME, Lapse::Retry);
const GRANT_ANOTHER: TestedOperation = TestedOperation::Begin(ANOTHER, Lapse::Retry);
const HOLD_LAPSED: TestedOperation = TestedOperation::Begin(ANOTHER, Lapse::Hold);
const COMPLETE: TestedOperation = TestedOperation::Complete;
const LAPSE: TestedOperation = TestedOperation::Lapse;

/// The operations that bring the record to a state, and the operation under test.
const CASES: [(&[TestedOperation], TestedOperation); 36] = [
    (&[], GRANT),
    (&[GRANT], GRANT),
    (&[GRANT], GRANT_ANOTHER),
    (&[GRANT, LAPSE], GRANT_ANOTHER),
    (&[GRANT, LAPSE], HOLD_LAPSED),
    (&[GRANT, LAPSE, HOLD_LAPSED], HOLD_LAPSED),
    (&[GRANT, Abandon], GRANT),
    (&[GRANT, Abandon], HOLD_LAPSED),
    (&[GRANT, Release], GRANT_ANOTHER),
    (&[GRANT, COMPLETE], GRANT_ANOTHER),
    (&[GRANT], Renew),
    (&[GRANT, LAPSE], Renew),
    (&[], COMPLETE),
    (&[GRANT], COMPLETE),
    (&[GRANT, LAPSE], COMPLETE),
    (&[GRANT, LAPSE, HOLD_LAPSED], COMPLETE),
    (&[GRANT, Release], COMPLETE),
    (&[GRANT, LAPSE, GRANT_ANOTHER], CompleteFirst),
    (&[GRANT, Release, GRANT_ANOTHER, Release], CompleteFirst),
    (&[GRANT, LAPSE, GRANT_ANOTHER, LAPSE, HOLD_LAPSED], CompleteFirst),
    (&[GRANT, Release, GRANT_ANOTHER, Bury], CompleteFirst),
    (&[GRANT], Release),
    (&[GRANT, LAPSE, HOLD_LAPSED], Release),
    (&[GRANT_ANOTHER, LAPSE, GRANT], Release),
    (&[GRANT], Cancel),
    (&[GRANT, LAPSE, HOLD_LAPSED], Cancel),
    (&[GRANT_ANOTHER, LAPSE, GRANT], Cancel),
    (&[GRANT], Abandon),
    (&[GRANT, LAPSE, HOLD_LAPSED], Abandon),
    (&[GRANT], Bury),
    (&[GRANT, LAPSE, HOLD_LAPSED], Bury),
    (&[GRANT, LAPSE], Hold),
    (&[GRANT, LAPSE, HOLD_LAPSED], Done),
    (&[GRANT, LAPSE, HOLD_LAPSED], NotDone),
    (&[GRANT, Bury], Reopen),
    (&[GRANT, LAPSE, Hold], Done),
];

impl TestedOperation {
    async fn run(self, store: Arc<dyn Store>, first: Claim, newest: Claim) -> Result<String> {
        let (protocol, rk) = (Protocol::over(&*store), call().record_key());
        let token = newest.token;
        Ok(match self {
            Self::Begin(owner, on_lapse) => {
                let lease = Millis(10_000);
                let ask = Begin { call: call(), owner, lease, unknown_retention: LIFETIME, on_lapse };
                format!("{:?}", protocol.begin(&ask).await?)
            }
            Self::Renew => format!("{:?}", protocol.renew(&rk, &newest).await?),
            Self::Complete => format!("{:?}", protocol.complete(&rk, &complete(newest)).await?),
            CompleteFirst => format!("{:?}", protocol.complete(&rk, &complete(first)).await?),
            Self::Release => format!("{:?}", protocol.release(&rk, &newest, LIFETIME).await?),
            Self::Cancel => format!("{:?}", protocol.cancel(&rk, newest.owner, LIFETIME).await?),
            Self::Abandon => format!("{:?}", protocol.abandon(&rk, &newest).await?),
            Self::Bury => format!("{:?}", protocol.bury(&rk, &newest, LIFETIME).await?),
            Self::Hold => format!("{:?}", protocol.hold(&rk, token, LIFETIME).await?),
            Self::Done => {
                let verdict = Verdict::Done { answer: Bytes::from_static(b"found out"), retention: LIFETIME };
                format!("{:?}", protocol.resolve(&rk, token, &verdict).await?)
            }
            Self::NotDone => {
                let verdict = Verdict::NotDone { lifetime: LIFETIME };
                format!("{:?}", protocol.resolve(&rk, token, &verdict).await?)
            }
            Self::Reopen => format!("{:?}", protocol.reopen(&rk, token, LIFETIME).await?),
            Self::Lapse => unreachable!("a lapse is not an operation"),
        })
    }
}

fn complete(claim: Claim) -> Complete {
    let fingerprint = call().newest_fingerprint();
    Complete {
        claim,
        fingerprint,
        answer: Bytes::from_static(b"done"),
        retention: LIFETIME,
        ended: Timestamp(0),
        age: Duration::ZERO,
    }
}

/// A record in some state, and a faulty store before it.
struct Fixture {
    time: VirtualTime,
    client: Arc<Process>,
    memory: Arc<Memory>,
    faulty: Arc<Faulty>,
    first: Claim,
    newest: Claim,
}

impl Fixture {
    fn after(steps: &[TestedOperation]) -> Self {
        let time = VirtualTime::new(1);
        let (server, client) = (time.process(), time.process());
        let memory = Arc::new(Memory::with(Arc::clone(&server) as _, MemorySettings::default()));
        let faulty = Faulty::new(Arc::clone(&memory) as _, server, LEASE);
        let no_claim = Claim { owner: ME, token: Token(7) };
        let mut fixture = Self { time, client, memory, faulty, first: no_claim, newest: no_claim };
        for step in steps {
            fixture.prepare(*step);
        }
        fixture
    }

    fn prepare(&mut self, step: TestedOperation) {
        if step == TestedOperation::Lapse {
            return self.time.run_for(LEASE);
        }
        let done = step.run(Arc::clone(&self.memory) as _, self.first, self.newest).now_or_never();
        done.expect("memory answers at once").expect("no fault has happened yet");
        let Some(record) = self.record() else { return };
        if let Some(holding) = record.state.holding() {
            self.newest = Claim { owner: holding.owner, token: record.token };
            if self.first.token == Token(7) {
                self.first = self.newest;
            }
        }
    }

    fn record(&self) -> Option<Record> {
        let seen = self.memory.read(&call().record_key()).now_or_never();
        seen.expect("memory answers at once").expect("memory always answers").record
    }

    fn start(&self, step: TestedOperation) -> TaskHandle<Result<String>> {
        let store = Arc::clone(&self.faulty) as Arc<dyn Store>;
        self.client.start(step.run(store, self.first, self.newest))
    }

    /// Repeats the operation without faults, lets late requests arrive, and returns the reply and the record.
    fn finish(self, operation: TestedOperation) -> ReplyAndRecord {
        self.faulty.heal();
        let repeated = self.start(operation);
        while self.time.step() {}
        let reply = repeated.output().expect("the operation ends").expect("the faults have ended");
        let faulty = Arc::clone(&self.faulty);
        self.client.start(async move { faulty.apply_late().await });
        self.time.run_for(LEASE - Duration::from_millis(1));
        // A repeated operation may report that its first execution already succeeded.
        let reply = reply.replace("Mine(", "Granted(").replace("Already", "Done").replace("Recreated", "Done");
        (reply, self.record())
    }
}

/// The reply of an operation and the record after it.
type ReplyAndRecord = (String, Option<Record>);

/// Compares a run with the run without a fault.
fn compare(fault: &str, good: &ReplyAndRecord, faulty: &ReplyAndRecord) -> Result<(), String> {
    if good == faulty { Ok(()) } else { Err(format!("{fault}\n  leads to   {faulty:?}\n  instead of {good:?}")) }
}

#[test]
fn every_operation_with_a_fault_at_every_store_call_is_repeated() {
    let mut sweep = Sweep::new("every operation with a fault at every store call, repeated");
    for (before, operation) in CASES {
        let good = Fixture::after(before);
        let started = good.start(operation);
        while good.time.step() {}
        assert!(matches!(started.output(), Some(Ok(_))), "{operation:?} after {before:?} succeeds");
        let calls = good.faulty.calls().len();
        let good = good.finish(operation);
        sweep.add_points(calls);
        for (call, fault) in (0..calls).flat_map(|call| faults(HOLD).into_iter().map(move |fault| (call, fault))) {
            let fixture = Fixture::after(before);
            fixture.faulty.inject(call, fault);
            let started = fixture.start(operation);
            while fixture.time.step() {}
            started.cancel();
            let what = format!("{operation:?} after {before:?}, call {call} meets {fault:?}");
            sweep.add_run(compare(&what, &good, &fixture.finish(operation)));
        }
    }
    sweep.finish(36, 1000);
}

#[test]
fn every_operation_dropped_at_every_step_is_repeated() {
    let mut sweep = Sweep::new("every operation dropped at every step, repeated");
    for (before, operation) in CASES {
        let good = Fixture::after(before).finish(operation);
        for steps in 0.. {
            let fixture = Fixture::after(before);
            let started = fixture.start(operation);
            let taken = (0..steps).take_while(|_| fixture.time.step()).count();
            if taken < steps {
                break;
            }
            started.cancel();
            sweep.add_points(1);
            let what = format!("{operation:?} after {before:?}, dropped after {steps} steps");
            sweep.add_run(compare(&what, &good, &fixture.finish(operation)));
        }
    }
    sweep.finish(100, 100);
}

/// The operation itself succeeds; a copy of one of its requests arrives after it.
#[test]
fn a_late_copy_of_every_store_call_changes_nothing() {
    let mut sweep = Sweep::new("a late copy of every store call");
    for (before, operation) in CASES {
        let good = Fixture::after(before).finish(operation);
        for call in 0..4 {
            let fixture = Fixture::after(before);
            fixture.faulty.inject(call, StoreFault::ApplyTwice(hapax_testkit::CopyDelay::Calls(usize::MAX / 2)));
            let started = fixture.start(operation);
            while fixture.time.step() {}
            assert!(started.output().is_some_and(|reply| reply.is_ok()));
            sweep.add_points(1);
            let what = format!("{operation:?} after {before:?}, a copy of call {call} is late");
            sweep.add_run(compare(&what, &good, &fixture.finish(operation)));
        }
    }
    sweep.finish(100, 100);
}

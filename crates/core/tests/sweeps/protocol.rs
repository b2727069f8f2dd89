//! Every operation of the protocol, in every state it is made for: with each fault at each of its calls and dropped at each of its
//! steps, then repeated. The record is the same as if nothing had gone wrong, and so is the reply.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use hapax_core::machine::{Begin, Claim, Complete, Lapse, Verdict};
use hapax_core::store::{Memory, MemorySettings, Protocol};
use hapax_core::{Millis, Owner, Record, Result, Seconds, Store, Token};
use hapax_testkit::{Fault, Faulty, Process, Started, VirtualTime};

use crate::faults::{HOLD, LEASE, faults};
use crate::world::call;

const LIFETIME: Seconds = Seconds(3600);
const ME: Owner = Owner([1; 16]);
const ANOTHER: Owner = Owner([2; 16]);

/// An operation, or a lapse. What names a claim is made under the newest token, but for `CompleteFirst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Begin(Owner, Lapse),
    Renew,
    Complete,
    /// By the owner of the first grant, under its token.
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

use Step::{Abandon, Bury, Cancel, CompleteFirst, Done, Hold, NotDone, Release, Renew, Reopen};

const GRANT: Step = Step::Begin(ME, Lapse::Retry);
const GRANT_ANOTHER: Step = Step::Begin(ANOTHER, Lapse::Retry);
const MARK: Step = Step::Begin(ANOTHER, Lapse::Hold);
const COMPLETE: Step = Step::Complete;
const LAPSE: Step = Step::Lapse;

/// What brings the record to its state, and the operation that finds it there.
const ROWS: [(&[Step], Step); 36] = [
    (&[], GRANT),
    (&[GRANT], GRANT),
    (&[GRANT], GRANT_ANOTHER),
    (&[GRANT, LAPSE], GRANT_ANOTHER),
    (&[GRANT, LAPSE], MARK),
    (&[GRANT, LAPSE, MARK], MARK),
    (&[GRANT, Abandon], GRANT),
    (&[GRANT, Abandon], MARK),
    (&[GRANT, Release], GRANT_ANOTHER),
    (&[GRANT, COMPLETE], GRANT_ANOTHER),
    (&[GRANT], Renew),
    (&[GRANT, LAPSE], Renew),
    (&[], COMPLETE),
    (&[GRANT], COMPLETE),
    (&[GRANT, LAPSE], COMPLETE),
    (&[GRANT, LAPSE, MARK], COMPLETE),
    (&[GRANT, Release], COMPLETE),
    (&[GRANT, LAPSE, GRANT_ANOTHER], CompleteFirst),
    (&[GRANT, Release, GRANT_ANOTHER, Release], CompleteFirst),
    (&[GRANT, LAPSE, GRANT_ANOTHER, LAPSE, MARK], CompleteFirst),
    (&[GRANT, Release, GRANT_ANOTHER, Bury], CompleteFirst),
    (&[GRANT], Release),
    (&[GRANT, LAPSE, MARK], Release),
    (&[GRANT_ANOTHER, LAPSE, GRANT], Release),
    (&[GRANT], Cancel),
    (&[GRANT, LAPSE, MARK], Cancel),
    (&[GRANT_ANOTHER, LAPSE, GRANT], Cancel),
    (&[GRANT], Abandon),
    (&[GRANT, LAPSE, MARK], Abandon),
    (&[GRANT], Bury),
    (&[GRANT, LAPSE, MARK], Bury),
    (&[GRANT, LAPSE], Hold),
    (&[GRANT, LAPSE, MARK], Done),
    (&[GRANT, LAPSE, MARK], NotDone),
    (&[GRANT, Bury], Reopen),
    (&[GRANT, LAPSE, Hold], Done),
];

impl Step {
    async fn carry_out(self, store: Arc<dyn Store>, first: Claim, newest: Claim) -> Result<String> {
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
            Self::Lapse => unreachable!("a lapse is no operation"),
        })
    }
}

fn complete(claim: Claim) -> Complete {
    let fingerprint = call().newest_fingerprint();
    Complete { claim, fingerprint, answer: Bytes::from_static(b"done"), retention: LIFETIME, age: Duration::ZERO }
}

/// A record in some state, and an operation on it.
struct Bench {
    time: VirtualTime,
    client: Arc<Process>,
    memory: Arc<Memory>,
    faulty: Arc<Faulty>,
    first: Claim,
    newest: Claim,
}

impl Bench {
    fn after(steps: &[Step]) -> Self {
        let time = VirtualTime::new(1);
        let (server, client) = (time.process(), time.process());
        let memory = Arc::new(Memory::new(Arc::clone(&server) as _, MemorySettings::default()));
        let faulty = Faulty::over(Arc::clone(&memory) as _, server, LEASE);
        let nobody = Claim { owner: ME, token: Token(7) };
        let mut bench = Self { time, client, memory, faulty, first: nobody, newest: nobody };
        for step in steps {
            bench.prepare(*step);
        }
        bench
    }

    fn prepare(&mut self, step: Step) {
        if step == Step::Lapse {
            return self.time.run_for(LEASE);
        }
        let done = step.carry_out(Arc::clone(&self.memory) as _, self.first, self.newest).now_or_never();
        done.expect("memory answers at once").expect("nothing is wrong as yet");
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

    fn start(&self, step: Step) -> Started<Result<String>> {
        let store = Arc::clone(&self.faulty) as Arc<dyn Store>;
        self.client.start(step.carry_out(store, self.first, self.newest))
    }

    /// Repeats the operation without further faults, and lets what is late arrive; the reply, and the record in the end.
    fn ends(self, operation: Step) -> (String, Option<Record>) {
        self.faulty.heal();
        let repeated = self.start(operation);
        while self.time.step() {}
        let reply = repeated.output().expect("it ends").expect("nothing is wrong any more");
        let faulty = Arc::clone(&self.faulty);
        self.client.start(async move { faulty.apply_late().await });
        self.time.run_for(LEASE - Duration::from_millis(1));
        // To be repeated is all the difference.
        let reply = reply.replace("Mine(", "Granted(").replace("Already", "Done").replace("Recreated", "Done");
        (reply, self.record())
    }
}

#[derive(Default)]
struct Tally {
    points: usize,
    runs: usize,
    found: Vec<String>,
}

impl Tally {
    /// Holds a run to its end when nothing goes wrong.
    fn compare(&mut self, what: String, good: &(String, Option<Record>), ended: &(String, Option<Record>)) {
        self.runs += 1;
        if good != ended {
            self.found.push(format!("{what}\n  ends with  {ended:?}\n  instead of {good:?}"));
        }
    }

    fn ends(self, name: &str, least_runs: usize) {
        let Self { points, runs, found } = self;
        println!("sweep: {name}: {} operations, {points} points, {runs} runs", ROWS.len());
        assert!(found.is_empty(), "{} of {runs} runs end otherwise:\n{}", found.len(), found.join("\n"));
        assert!(runs >= least_runs, "only {runs} runs");
    }
}

#[test]
fn every_operation_with_a_fault_at_every_call_and_repeated() {
    let mut tally = Tally::default();
    for (before, operation) in ROWS {
        let good = Bench::after(before);
        let started = good.start(operation);
        while good.time.step() {}
        assert!(matches!(started.output(), Some(Ok(_))), "{operation:?} after {before:?} goes through");
        let calls = good.faulty.calls().len();
        let good = good.ends(operation);
        tally.points += calls;
        for (call, fault) in (0..calls).flat_map(|call| faults(HOLD).into_iter().map(move |fault| (call, fault))) {
            let bench = Bench::after(before);
            bench.faulty.meet(call, fault);
            let started = bench.start(operation);
            while bench.time.step() {}
            started.cancel();
            tally.compare(
                format!("{operation:?} after {before:?}, call {call} meets {fault:?}"),
                &good,
                &bench.ends(operation),
            );
        }
    }
    tally.ends("every operation with a fault at every call and repeated", 1000);
}

#[test]
fn every_operation_dropped_at_every_step_and_repeated() {
    let mut tally = Tally::default();
    for (before, operation) in ROWS {
        let good = Bench::after(before).ends(operation);
        for steps in 0.. {
            let bench = Bench::after(before);
            let started = bench.start(operation);
            let went = (0..steps).take_while(|_| bench.time.step()).count();
            if went < steps {
                break;
            }
            started.cancel();
            tally.points += 1;
            tally.compare(
                format!("{operation:?} after {before:?}, dropped after {steps} steps"),
                &good,
                &bench.ends(operation),
            );
        }
    }
    tally.ends("every operation dropped at every step and repeated", 100);
}

/// A fault that the operation itself outlives changes nothing, either.
#[test]
fn a_late_copy_of_every_call_changes_nothing_after_the_operation() {
    let mut tally = Tally::default();
    for (before, operation) in ROWS {
        let good = Bench::after(before).ends(operation);
        let calls = 4;
        for call in 0..calls {
            let bench = Bench::after(before);
            bench.faulty.meet(call, Fault::ApplyTwice(hapax_testkit::When::Calls(usize::MAX / 2)));
            let started = bench.start(operation);
            while bench.time.step() {}
            assert!(started.output().is_some_and(|reply| reply.is_ok()));
            tally.points += 1;
            tally.compare(
                format!("{operation:?} after {before:?}, a copy of call {call} is late"),
                &good,
                &bench.ends(operation),
            );
        }
    }
    tally.ends("a late copy of every call", 100);
}

//! Two thousand worlds, on all cores. No world breaks a rule, and every kind of event happens in some of them.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use hapax_sim::{FailedSeed, FaultClass, RunTotals, run, run_all};

const SEEDS: u64 = 2000;

/// Seeds that found a bug, with the bug. A seed means the same world only until the simulation or the engine changes,
/// so a test of the core covers each of these bugs too.
const REGRESSIONS: &[(u64, &str)] = &[
    (36, "a follower of a call that ran without a record received its answer as recorded"),
    (91, "an attempt that lost against the answer to another payload gave that answer to its caller"),
];

/// Runs these seeds on all cores, up to the first failure.
fn run_on_all_cores(seeds: Range<u64>) -> Result<RunTotals, FailedSeed> {
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let sum = Mutex::new(Ok(RunTotals::default()));
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let ran = run_all(seed..seed + 1);
            let mut sum = sum.lock().expect("no thread panics with it");
            match (&mut *sum, ran) {
                (Ok(sum), Ok(tally)) => sum.merge(&tally),
                (Ok(_), Err(failure)) => {
                    failed.store(true, Ordering::Relaxed);
                    *sum = Err(failure);
                }
                (Err(_), _) => return,
            }
        }
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        (0..cores).for_each(|_| drop(scope.spawn(work)));
    });
    sum.into_inner().expect("no thread panics with it")
}

#[test]
fn no_world_breaks_a_rule_and_every_event_happens() {
    for (seed, found) in REGRESSIONS {
        let violation = run(*seed, false).violation;
        assert_eq!(violation, None, "seed {seed} once found this bug: {found}");
    }
    let tally = match run_on_all_cores(0..SEEDS) {
        Ok(tally) => tally,
        Err(failure) => panic!("seed {} breaks a rule: {}\n  {}", failure.seed, failure.rule, failure.command()),
    };
    println!("{tally:#?}");
    assert_eq!(tally.runs, SEEDS);
    assert_eq!(tally.compared, SEEDS / 100);
    let is_rare = |what: &&str| tally.count(what) < 5;
    let rare: Vec<_> =
        EVENTS.iter().copied().chain(FaultClass::ALL.iter().map(|(_, name)| *name)).filter(is_rare).collect();
    assert!(rare.is_empty(), "these events are too rare: {rare:?}");
}

/// The events that must happen besides every fault: each outcome of handlers and callers, and each way through the
/// gate.
const EVENTS: &[&str] = &[
    "handler applied",
    "handler final",
    "handler not applied",
    "handler unknown",
    "handler broke off",
    "answer: fresh",
    "answer: replayed",
    "answer: canonical",
    "answer: pending",
    "answer: unprotected",
    "refused: busy",
    "refused: mismatch",
    "refused: indeterminate",
    "refused: overloaded",
    "error: not applied",
    "error: outcome unknown",
    "error: outcome unrecorded",
    "error: store unavailable",
    "error: store full",
    "error: store unusable",
    "error: record damaged",
    "refused: dead",
    "buried",
    "reopened",
    "hold: yes",
    "ended dead",
    "begin while the store is down",
    "last try of a spilled answer",
    "granted",
    "granted after a release",
    "granted by takeover",
    "takeover",
    "held",
    "abandoned",
    "released",
    "cancelled",
    "late begin cancelled",
    "recreated",
    "healed or resolved",
    "indeterminate, then released",
    "armed anew after a step back",
    "renewed",
    "lease kept",
    "journal adopted",
    "ledger replayed",
    "run without a record",
    "probe: done",
    "probe: not done",
    "probe: unknown",
    "ended with an answer",
    "ended indeterminate",
    "renewal refused",
];

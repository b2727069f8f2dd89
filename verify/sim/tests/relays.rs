//! Many worlds of relays, on all cores. In each one everything arrives, in the order of its key, and every kind of
//! event happens in some of them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use hapax_sim::{OutboxFault, run_relays};

const SEEDS: u64 = 400;

#[test]
fn every_committed_event_arrives_and_the_first_arrivals_of_each_key_are_in_order() {
    let next = AtomicU64::new(0);
    let sums = Mutex::new((BTreeMap::<&str, u64>::new(), BTreeMap::<u64, String>::new()));
    let work = || {
        while sums.lock().expect("no thread panics with it").1.is_empty() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return;
            }
            let run = run_relays(seed);
            let mut sums = sums.lock().expect("no thread panics with it");
            run.counts.iter().for_each(|(what, count)| *sums.0.entry(what).or_default() += count);
            sums.1.extend(run.violation.map(|rule| (seed, rule)));
        }
    };
    thread::scope(|scope| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        (0..cores).for_each(|_| drop(scope.spawn(work)));
    });
    let (counts, broken) = sums.into_inner().expect("no thread panics with it");
    assert_eq!(broken, BTreeMap::new(), "cargo run -p hapax-sim -- relays SEED");
    println!("{counts:#?}");
    let faults = OutboxFault::ALL.iter().map(|(_, name)| *name);
    let rare: Vec<_> = faults.chain(["resumed", "dropped"]).filter(|what| counts.get(what) < Some(&20)).collect();
    assert!(rare.is_empty(), "these events are too rare: {rare:?}");
}

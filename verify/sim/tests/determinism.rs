//! One seed always gives the same run.

use hapax_sim::run;

#[test]
fn a_seed_runs_the_same_each_time_with_a_trace_or_without() {
    for seed in [1, 36, 91] {
        let (first, second) = (run(seed, false), run(seed, true));
        assert_eq!((first.hash, first.steps, first.time), (second.hash, second.steps, second.time), "seed {seed}");
        assert_eq!(first.counts, second.counts);
    }
}

#[test]
fn two_seeds_give_different_runs() {
    let mut hashes: Vec<_> = (0..200).map(|seed| run(seed, false).hash).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 200);
}

#[test]
fn a_trace_has_the_events_of_a_run() {
    let run = run(36, true);
    for what in ["Plan {", "calls process", "its handler starts", "receives", "all faults end", "its final outcome is"]
    {
        assert!(run.trace.contains(what), "{what}");
    }
}

//! Counts points and runs, and collects violations.

use std::collections::BTreeMap;

/// One sweep in progress.
#[derive(Debug)]
pub struct Sweep {
    name: &'static str,
    points: usize,
    runs: usize,
    violations: Vec<String>,
}

impl Sweep {
    /// A sweep that has covered nothing yet.
    pub fn new(name: &'static str) -> Self {
        Self { name, points: 0, runs: 0, violations: Vec::new() }
    }

    /// Counts points at which something can go wrong.
    pub fn add_points(&mut self, points: usize) {
        self.points += points;
    }

    /// Counts a run. An error is a violation; its first line is the rule.
    pub fn add_run<T>(&mut self, result: Result<T, String>) -> Option<T> {
        self.runs += 1;
        match result {
            Ok(value) => Some(value),
            Err(violation) => {
                self.violations.push(violation);
                None
            }
        }
    }

    /// Prints what the sweep covered.
    ///
    /// # Panics
    /// If a run broke a rule, or if the sweep covered fewer points or runs than these.
    pub fn finish(self, least_points: usize, least_runs: usize) {
        let Self { name, points, runs, violations } = self;
        println!("sweep: {name}: {points} points, {runs} runs");
        let mut by_rule: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for violation in &violations {
            by_rule.entry(violation.lines().next().unwrap_or_default()).or_default().push(violation);
        }
        // One example for each rule: many runs break the same one.
        let examples: Vec<_> = by_rule.values().map(|same| format!("{} times: {}", same.len(), same[0])).collect();
        let (count, examples) = (violations.len(), examples.join("\n"));
        assert!(violations.is_empty(), "{name}: {count} of {runs} runs broke a rule\n{examples}");
        assert!(points >= least_points && runs >= least_runs, "{name}: only {points} points, {runs} runs");
    }
}

/// How a process is interrupted in the middle of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The caller's future is dropped, as a server does when its client disconnects.
    HangUp,
    /// All tasks of the process are dropped while the process lives on.
    Abort,
    /// The process ends.
    Crash,
}

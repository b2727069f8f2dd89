//! Goes through points, counts them, and tells what was found.

use std::collections::BTreeMap;

use crate::scenario::{Covered, Mishap, Scenario, run};

/// A sweep under way.
pub(crate) struct Sweep {
    name: &'static str,
    pub(crate) points: usize,
    runs: usize,
    found: Vec<String>,
}

impl Sweep {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, points: 0, runs: 0, found: Vec::new() }
    }

    /// The points of a scenario, by a run in which nothing goes wrong.
    pub(crate) fn points(&mut self, scenario: &Scenario, of: impl Fn(Covered) -> usize) -> usize {
        let points = self.run(scenario, &Mishap::default()).map_or(0, of);
        self.points += points;
        points
    }

    pub(crate) fn run(&mut self, scenario: &Scenario, mishap: &Mishap) -> Option<Covered> {
        self.runs += 1;
        match run(scenario, mishap) {
            Ok(covered) => Some(covered),
            Err(violation) => {
                self.found.push(violation);
                None
            }
        }
    }

    /// Prints what was covered.
    ///
    /// # Panics
    /// If a rule was broken, or the sweep covered less than it should.
    pub(crate) fn ends(self, least_points: usize, least_runs: usize) {
        let Self { name, points, runs, found } = self;
        println!("sweep: {name}: {points} points, {runs} runs");
        let mut by_rule: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for violation in &found {
            by_rule.entry(violation.lines().next().unwrap_or_default()).or_default().push(violation);
        }
        let shown =
            by_rule.values().map(|same| format!("{} times: {}", same.len(), same[0])).collect::<Vec<_>>().join("\n");
        assert!(found.is_empty(), "{name}: {} of {runs} runs broke a rule\n{shown}", found.len());
        assert!(points >= least_points && runs >= least_runs, "{name}: only {points} points, {runs} runs");
    }
}

//! The totals of many runs.

use std::collections::BTreeMap;

use crate::world::WorldRun;

/// The sum of runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunTotals {
    /// How many runs there were.
    pub runs: u64,
    /// How many times a task was polled.
    pub steps: u64,
    /// The virtual time that passed, in milliseconds.
    pub millis: u64,
    /// How many seeds ran twice, to compare the hashes.
    pub compared: u64,
    /// How often each kind of event happened.
    pub counts: BTreeMap<String, u64>,
}

impl RunTotals {
    /// Adds a run.
    pub fn add(&mut self, run: &WorldRun) {
        self.runs += 1;
        self.steps += run.steps;
        self.millis += u64::try_from(run.time.as_millis()).unwrap_or(u64::MAX);
        for (what, count) in &run.counts {
            *self.counts.entry((*what).into()).or_default() += count;
        }
    }

    /// Adds other totals.
    pub fn merge(&mut self, other: &Self) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.millis += other.millis;
        self.compared += other.compared;
        for (what, count) in &other.counts {
            *self.counts.entry(what.clone()).or_default() += count;
        }
    }

    /// How often this kind of event happened.
    pub fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }

    /// One line of text, for [`RunTotals::read`].
    pub fn line(&self) -> String {
        let head = format!("{} {} {} {}", self.runs, self.steps, self.millis, self.compared);
        self.counts.iter().fold(head, |line, (what, count)| format!("{line};{what}={count}"))
    }

    /// Reads a line. Returns none if the line was cut short.
    pub fn read(line: &str) -> Option<Self> {
        let mut parts = line.strip_suffix('.')?.split(';');
        let numbers: Vec<u64> = parts.next()?.split(' ').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let [runs, steps, millis, compared] = numbers.try_into().ok()?;
        let count =
            |part: &str| part.split_once('=').and_then(|(what, count)| Some((what.into(), count.parse().ok()?)));
        Some(Self { runs, steps, millis, compared, counts: parts.map(count).collect::<Option<_>>()? })
    }
}

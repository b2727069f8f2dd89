//! Checks a setting.

use std::fmt;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries};

use crate::invariant::Invariant;
use crate::outbox::{OutboxSetting, OutboxSpace};
use crate::reach::{self, Explored};
use crate::setting::ModelSetting;
use crate::space::StateSpace;

/// What a setting is about.
#[derive(Clone, Copy, Debug)]
pub enum CheckedSetting {
    /// Attempts on records, with or without a ledger.
    Protocol(ModelSetting),
    /// Transactions that write events, and relays that publish them.
    Outbox(OutboxSetting),
}

/// The result of exploring all states of a setting.
#[derive(Clone, Debug)]
pub struct CheckResult {
    /// The first broken invariant; none if all invariants hold.
    pub broken: Option<BrokenInvariant>,
    /// How many distinct states there are.
    pub states: usize,
    /// How long the exploration took.
    pub took: Duration,
}

/// An invariant that does not hold.
#[derive(Clone, Debug)]
pub struct BrokenInvariant {
    /// The invariant.
    pub invariant: Invariant,
    /// The number of steps on the shortest way to it.
    pub steps: usize,
    /// These steps, one a line.
    pub way: String,
}

impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.broken {
            None => f.write_str("holds"),
            Some(broken) => write!(f, "broken in {} steps: {}", broken.steps, broken.invariant.sentence()),
        }
    }
}

/// Explores all states of a setting, or stops at a broken invariant.
///
/// # Panics
/// If the checker and the second exploration, which take the same steps, have different results.
pub fn check(setting: CheckedSetting) -> CheckResult {
    match setting {
        CheckedSetting::Protocol(setting) => check_space(|| StateSpace::new(setting)),
        CheckedSetting::Outbox(setting) => check_space(|| OutboxSpace(setting)),
    }
}

fn check_space<S>(space: impl Fn() -> S) -> CheckResult
where
    S: Explored + Send + Sync + 'static,
    S::State: fmt::Debug + PartialEq + Send + Sync,
    S::Action: fmt::Debug + PartialEq + Send + Sync,
{
    let begun = Instant::now();
    let checker = space().checker().threads(1).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let (states, found) = (checker.unique_state_count(), checker.discoveries());
    drop(checker);
    // Explores again for two results that the checker does not give: whether a state at rest stays reachable, and the
    // shortest way to a broken invariant. The checker runs on for a while after its first discovery and keeps the last
    // one.
    let space = space();
    let graph = reach::explore(&space, |_| {});
    let graph_states = graph.states();
    let broken = graph.broken(S::REST);
    match broken.as_ref().map(|(invariant, _)| *invariant).filter(|invariant| *invariant != S::REST) {
        None => {
            assert!(found.is_empty(), "only the checker found {:?}", found.keys());
            assert_eq!(graph_states, states, "one of the explorations took two states for one");
        }
        Some(invariant) => assert!(found.contains_key(invariant.sentence()), "the checker did not find {invariant:?}"),
    }
    let broken =
        broken.map(|(invariant, way)| BrokenInvariant { invariant, steps: way.len(), way: space.describe(&way) });
    CheckResult { broken, states, took: begun.elapsed() }
}

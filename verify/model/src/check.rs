//! Checks a setting.

use std::fmt;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::action::Action;
use crate::invariant::Invariant;
use crate::reach;
use crate::setting::ModelSetting;
use crate::space::StateSpace;

/// The result of exploring all states of a setting.
#[derive(Clone, Debug)]
pub struct CheckResult {
    /// The first broken invariant with the shortest way to it; none if all invariants hold.
    pub broken: Option<(Invariant, Vec<Action>)>,
    /// How many distinct states there are.
    pub states: usize,
    /// How long the exploration took.
    pub took: Duration,
}

impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.broken {
            None => f.write_str("holds"),
            Some((invariant, way)) => write!(f, "broken in {} steps: {}", way.len(), invariant.sentence()),
        }
    }
}

/// Explores all states of a setting, or stops at a broken invariant.
///
/// # Panics
/// If the checker and the second exploration, which take the same steps, have different results.
pub fn check(setting: ModelSetting) -> CheckResult {
    let begun = Instant::now();
    let checker = StateSpace::new(setting).checker().threads(1).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let (states, found) = (checker.unique_state_count(), checker.discoveries());
    drop(checker);
    // Explores again for two results that the checker does not give: whether a state at rest stays reachable, and the
    // shortest way to a broken invariant. The checker runs on for a while after its first discovery and keeps the last
    // one.
    let graph = reach::explore(&StateSpace::new(setting), |_| {});
    let graph_states = graph.states();
    let broken = graph.broken();
    match broken.as_ref().map(|(invariant, _)| *invariant) {
        None | Some(Invariant::RestIsReachable) => {
            assert!(found.is_empty(), "only the checker found {:?}", found.keys());
            assert_eq!(graph_states, states, "one of the explorations took two states for one");
        }
        Some(invariant) => assert!(found.contains_key(invariant.sentence()), "the checker did not find {invariant:?}"),
    }
    CheckResult { broken, states, took: begun.elapsed() }
}

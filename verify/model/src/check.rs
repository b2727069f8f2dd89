//! A setting's verdict.

use std::fmt;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::action::Action;
use crate::invariant::Invariant;
use crate::reach;
use crate::setting::Setting;
use crate::space::Space;

/// What came of walking through all states of a setting.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What is broken first, with the shortest way there; nothing if everything holds.
    pub broken: Option<(Invariant, Vec<Action>)>,
    /// How many different states were seen.
    pub states: usize,
    /// How long it took.
    pub took: Duration,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.broken {
            None => f.write_str("holds"),
            Some((invariant, way)) => write!(f, "broken in {} steps: {}", way.len(), invariant.sentence()),
        }
    }
}

/// Walks through all states of a setting, or until an invariant is broken.
///
/// # Panics
/// If the checker and our own walk, which go the same ways, do not find the same.
pub fn check(setting: Setting) -> Verdict {
    let begun = Instant::now();
    let checker = Space::new(setting).checker().threads(1).finish_when(HasDiscoveries::Any).spawn_bfs().join();
    let (states, found) = (checker.unique_state_count(), checker.discoveries());
    drop(checker);
    // Once more, for what the checker cannot tell: whether rest stays reachable, and the shortest way to what is broken, since it
    // goes on for a while after it found something, and keeps what it found last.
    let walked = reach::walk(&Space::new(setting), |_| {});
    let walked_states = walked.states();
    let broken = walked.broken();
    match broken.as_ref().map(|(invariant, _)| *invariant) {
        None | Some(Invariant::RestIsReachable) => {
            assert!(found.is_empty(), "the checker alone found {:?}", found.keys());
            assert_eq!(walked_states, states, "one of the two took two states for one");
        }
        Some(invariant) => assert!(found.contains_key(invariant.sentence()), "the checker did not find {invariant:?}"),
    }
    Verdict { broken, states, took: begun.elapsed() }
}

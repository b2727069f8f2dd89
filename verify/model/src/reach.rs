//! Checks that every reachable state can still lead to a state at rest, in which a caller gets a definite answer.
//!
//! The checker's own `eventually` does not fit, because it treats a cycle as an end. This module explores all states
//! once more, and then follows the steps backwards from the states at rest.

use std::collections::{HashMap, VecDeque};

use hapax_core::machine::{Begun, Decision, begin};
use stateright::Model;

use crate::action::Action;
use crate::attempt::ModelAttempt;
use crate::invariant::Invariant;
use crate::ledger::LedgerRow;
use crate::property::broken_invariant;
use crate::space::StateSpace;
use crate::world::{OperatorPhase, World};

/// An owner that belongs to no attempt.
const STRANGER: u8 = 100;

/// All states and steps of an exploration. States have numbers.
pub(crate) struct StateGraph {
    /// For each state, the state and the action from which it was reached first.
    first_by: Vec<Option<(u32, Action)>>,
    /// Each step, as (to, from).
    steps: Vec<(u32, u32)>,
    at_rest: Vec<u32>,
    /// The first state in which an invariant is broken. The exploration stops there.
    broken: Option<(Invariant, u32)>,
}

/// Explores all states, the nearest first, and calls `look` with each.
pub(crate) fn explore(space: &StateSpace, mut look: impl FnMut(&World)) -> StateGraph {
    // Fixed seeds, so that every run shows the same way to a broken invariant.
    let hash = ahash::RandomState::with_seeds(1, 2, 3, 4);
    let mut numbers = HashMap::with_hasher(hash.clone());
    let mut graph = StateGraph { first_by: vec![None], steps: Vec::new(), at_rest: Vec::new(), broken: None };
    let mut next = VecDeque::from([space.start()]);
    numbers.insert(hash.hash_one(space.start()), 0);
    let (mut from, mut actions) = (0, Vec::new());
    while let Some(world) = next.pop_front() {
        graph.broken = broken_invariant(space, &world).map(|invariant| (invariant, from));
        if graph.broken.is_some() {
            break;
        }
        look(&world);
        if is_at_rest(space, &world) {
            graph.at_rest.push(from);
        }
        space.actions(&world, &mut actions);
        for action in actions.drain(..) {
            let Some(after) = space.next_state(&world, action) else { continue };
            let new = u32::try_from(graph.first_by.len()).expect("fewer than 2^32 states");
            let to = *numbers.entry(hash.hash_one(&after)).or_insert(new);
            if to == new {
                graph.first_by.push(Some((from, action)));
                next.push_back(after);
            }
            graph.steps.push((to, from));
        }
        from += 1;
    }
    graph
}

impl StateGraph {
    pub(crate) fn states(&self) -> usize {
        self.first_by.len()
    }

    /// The broken invariant and the shortest way to it.
    pub(crate) fn broken(mut self) -> Option<(Invariant, Vec<Action>)> {
        let (invariant, state) = match self.broken {
            Some(broken) => broken,
            None => (Invariant::RestIsReachable, self.dead_end()?),
        };
        Some((invariant, self.way_to(state)))
    }

    /// The nearest state from which no state at rest can be reached.
    fn dead_end(&mut self) -> Option<u32> {
        self.steps.sort_unstable();
        let mut can_rest = vec![false; self.first_by.len()];
        let mut found = self.at_rest.clone();
        for state in &found {
            can_rest[*state as usize] = true;
        }
        while let Some(state) = found.pop() {
            let first = self.steps.partition_point(|(to, _)| *to < state);
            for (_, from) in self.steps[first..].iter().take_while(|(to, _)| *to == state) {
                if !std::mem::replace(&mut can_rest[*from as usize], true) {
                    found.push(*from);
                }
            }
        }
        // Numbers grow with the distance, so the first one is among the nearest.
        (0..).zip(can_rest).find(|(_, can)| !can).map(|(state, _)| state)
    }

    fn way_to(&self, mut state: u32) -> Vec<Action> {
        let mut way = Vec::new();
        while let Some((from, action)) = self.first_by[state as usize] {
            way.push(action);
            state = from;
        }
        way.reverse();
        way
    }
}

/// Whether no request is in transit, and each key has a definite answer for the next caller.
fn is_at_rest(space: &StateSpace, world: &World) -> bool {
    world.attempts.iter().all(ModelAttempt::at_rest)
        && world.late.iter().all(Option::is_none)
        && world.operator == OperatorPhase::Idle
        && space.setting.calls.iter().all(|call| is_answered(space, world, call.tenant))
}

fn is_answered(space: &StateSpace, world: &World, tenant: u8) -> bool {
    let rk = space.record_keys[usize::from(tenant)];
    let call = space.setting.calls.iter().find(|call| call.tenant == tenant).expect("the tenant has a call");
    let seen = world.store.slots[space.slot(*call)].observe(world.now(space), world.store.mark);
    // The next caller sends the payload of the record. Another payload would only get a mismatch.
    let payload = seen.live().map_or(call.payload, |record| record.fingerprint.as_bytes()[0]);
    // The row of the ledger answers that call, or its absence lets it run.
    let is_open = world.history.ledger[usize::from(tenant)] == Some(LedgerRow::Open);
    match begin(&seen, &space.setting.begin(rk, STRANGER, payload)) {
        Decision::Reply(Begun::Busy(_) | Begun::Mismatch) => false,
        Decision::Reply(
            Begun::Granted(_) | Begun::Mine(_) | Begun::Replay(_) | Begun::Indeterminate(_) | Begun::Dead,
        )
        | Decision::Change(..) => !is_open,
    }
}

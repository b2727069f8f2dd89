//! Checks that every reachable state can still lead to a state at rest.
//!
//! The checker's own `eventually` does not fit, because it treats a cycle as an end. This module explores all states
//! once more, and then follows the steps backwards from the states at rest.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use stateright::Model;

use crate::invariant::Invariant;

/// The states of a setting, and what must hold in them.
pub(crate) trait Explored: Model<State: Clone + Hash, Action: Copy> {
    /// From every state a state at rest is reachable. The name of this invariant.
    const REST: Invariant;

    /// The most serious invariant that is broken in this state.
    fn broken_invariant(&self, state: &Self::State) -> Option<Invariant>;

    /// Whether nothing is left to be done in this state.
    fn is_at_rest(&self, state: &Self::State) -> bool;

    /// One line for each step.
    fn describe(&self, way: &[Self::Action]) -> String;
}

/// All states and steps of an exploration. States have numbers.
pub(crate) struct StateGraph<A> {
    /// For each state, the state and the action from which it was reached first.
    first_by: Vec<Option<(u32, A)>>,
    /// Each step, as (to, from).
    steps: Vec<(u32, u32)>,
    at_rest: Vec<u32>,
    /// The first state in which an invariant is broken. The exploration stops there.
    broken: Option<(Invariant, u32)>,
}

/// Explores all states, the nearest first, and calls `look` with each.
pub(crate) fn explore<S: Explored>(space: &S, mut look: impl FnMut(&S::State)) -> StateGraph<S::Action> {
    // Fixed seeds, so that every run shows the same way to a broken invariant.
    let hash = ahash::RandomState::with_seeds(1, 2, 3, 4);
    let mut numbers = HashMap::with_hasher(hash.clone());
    let mut graph = StateGraph { first_by: vec![None], steps: Vec::new(), at_rest: Vec::new(), broken: None };
    let mut next = VecDeque::from(space.init_states());
    numbers.extend(next.iter().map(|start| (hash.hash_one(start), 0)));
    let (mut from, mut actions) = (0, Vec::new());
    while let Some(state) = next.pop_front() {
        graph.broken = space.broken_invariant(&state).map(|invariant| (invariant, from));
        if graph.broken.is_some() {
            break;
        }
        look(&state);
        if space.is_at_rest(&state) {
            graph.at_rest.push(from);
        }
        space.actions(&state, &mut actions);
        for action in actions.drain(..) {
            let Some(after) = space.next_state(&state, action) else { continue };
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

impl<A: Copy> StateGraph<A> {
    pub(crate) fn states(&self) -> usize {
        self.first_by.len()
    }

    /// The broken invariant and the shortest way to it.
    pub(crate) fn broken(mut self, rest: Invariant) -> Option<(Invariant, Vec<A>)> {
        let (invariant, state) = match self.broken {
            Some(broken) => broken,
            None => (rest, self.dead_end()?),
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

    fn way_to(&self, mut state: u32) -> Vec<A> {
        let mut way = Vec::new();
        while let Some((from, action)) = self.first_by[state as usize] {
            way.push(action);
            state = from;
        }
        way.reverse();
        way
    }
}

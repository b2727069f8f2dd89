//! From every state that can be reached, one must stay reachable in which all is at rest and a caller is given a definite answer.
//!
//! The checker's own `eventually` is of no use here: it takes a circle for an end. So all states are walked through once more, and
//! back again from those at rest.

use std::collections::{HashMap, VecDeque};

use hapax_core::machine::{Begun, Decision, begin};
use stateright::Model;

use crate::action::Action;
use crate::attempt::Attempt;
use crate::invariant::Invariant;
use crate::space::Space;
use crate::world::{Finding, World};

/// The number of a caller's owner that belongs to no attempt.
const STRANGER: u8 = 100;

/// What was met on a walk through all states, by number.
pub(crate) struct Walked {
    /// From where, and by which action, a state was reached first.
    first_by: Vec<Option<(u32, Action)>>,
    /// Each step, as to and from.
    steps: Vec<(u32, u32)>,
    at_rest: Vec<u32>,
    /// The first state in which an invariant is broken. The walk ends there.
    broken: Option<(Invariant, u32)>,
}

/// Walks through all states, the nearest first, and looks at each.
pub(crate) fn walk(space: &Space, mut look: impl FnMut(&World)) -> Walked {
    // The same in every run: which way is shown must not depend on chance.
    let hash = ahash::RandomState::with_seeds(1, 2, 3, 4);
    let mut numbers = HashMap::with_hasher(hash.clone());
    let mut walked = Walked { first_by: vec![None], steps: Vec::new(), at_rest: Vec::new(), broken: None };
    let mut next = VecDeque::from([space.start()]);
    numbers.insert(hash.hash_one(space.start()), 0);
    let (mut from, mut actions) = (0, Vec::new());
    while let Some(world) = next.pop_front() {
        walked.broken = Invariant::broken(space, &world).map(|invariant| (invariant, from));
        if walked.broken.is_some() {
            break;
        }
        look(&world);
        if is_at_rest(space, &world) {
            walked.at_rest.push(from);
        }
        space.actions(&world, &mut actions);
        for action in actions.drain(..) {
            let Some(after) = space.next_state(&world, action) else { continue };
            let new = u32::try_from(walked.first_by.len()).expect("fewer states than memory");
            let to = *numbers.entry(hash.hash_one(&after)).or_insert(new);
            if to == new {
                walked.first_by.push(Some((from, action)));
                next.push_back(after);
            }
            walked.steps.push((to, from));
        }
        from += 1;
    }
    walked
}

impl Walked {
    pub(crate) fn states(&self) -> usize {
        self.first_by.len()
    }

    /// What is broken, and the shortest way there.
    pub(crate) fn broken(mut self) -> Option<(Invariant, Vec<Action>)> {
        let (invariant, state) = match self.broken {
            Some(broken) => broken,
            None => (Invariant::RestIsReachable, self.dead_end()?),
        };
        Some((invariant, self.way_to(state)))
    }

    /// The nearest state from which rest cannot be reached.
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
        // Numbers grow with the way, so the first is among the nearest.
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

/// Whether nothing is under way any more, and each key has an answer for a caller who comes now.
fn is_at_rest(space: &Space, world: &World) -> bool {
    world.attempts.iter().all(Attempt::at_rest)
        && world.late.iter().all(Option::is_none)
        && world.operator == Finding::Idle
        && space.setting.calls.iter().all(|call| is_answered(space, world, call.tenant))
}

fn is_answered(space: &Space, world: &World, tenant: u8) -> bool {
    let rk = space.record_keys[usize::from(tenant)];
    let call = space.setting.calls.iter().find(|call| call.tenant == tenant).expect("somebody called under it");
    let seen = world.store.slots[space.slot(*call)].observe(world.now(space), world.store.mark);
    // Whoever brings another payload is refused: that is an answer, too, to a question of its own.
    let payload = seen.live().map_or(call.payload, |record| record.fingerprint.as_bytes()[0]);
    match begin(&seen, &space.setting.begin(rk, STRANGER, payload)) {
        Decision::Reply(Begun::Busy(_) | Begun::Mismatch) => false,
        Decision::Reply(
            Begun::Granted(_) | Begun::Mine(_) | Begun::Replay(_) | Begun::Indeterminate(_) | Begun::Dead,
        )
        | Decision::Change(..) => true,
    }
}

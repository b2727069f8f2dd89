//! The states and steps of a setting, in the form that the checker explores.

use hapax_core::machine::{Begun, Decision, begin};
use stateright::{Model, Property};

use crate::action::Action;
use crate::attempt::{ATTEMPTS, ModelAttempt};
use crate::history::History;
use crate::invariant::Invariant;
use crate::ledger::LedgerRow;
use crate::property::{broken_invariant, properties};
use crate::reach::Explored;
use crate::space::StateSpace;
use crate::store::ModelStore;
use crate::trace::describe_trace;
use crate::world::{LATE, OperatorPhase, World};

/// An owner that belongs to no attempt.
const STRANGER: u8 = 100;

impl StateSpace {
    /// The first state.
    pub(crate) fn start(&self) -> World {
        World {
            store: ModelStore::default(),
            replica: ModelStore::default(),
            attempts: [ModelAttempt::default(); ATTEMPTS],
            late: [None; LATE],
            operator: OperatorPhase::Idle,
            history: History::default(),
            faults_left: self.setting.faults,
        }
    }
}

impl Model for StateSpace {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.start()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // A broken invariant ends the exploration of this way.
        if !world.history.is_broken() {
            world.collect_actions(self, actions);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.apply(self, action).filter(|()| next != *world).map(|()| next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}

impl Explored for StateSpace {
    const REST: Invariant = Invariant::RestIsReachable;

    fn broken_invariant(&self, world: &World) -> Option<Invariant> {
        broken_invariant(self, world)
    }

    /// Whether no request is in transit, and each key has a definite answer for the next caller.
    fn is_at_rest(&self, world: &World) -> bool {
        world.attempts.iter().all(ModelAttempt::at_rest)
            && world.late.iter().all(Option::is_none)
            && world.operator == OperatorPhase::Idle
            && self.setting.calls.iter().all(|call| is_answered(self, world, call.tenant))
    }

    fn describe(&self, way: &[Action]) -> String {
        describe_trace(self, way)
    }
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

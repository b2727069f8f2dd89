//! The states and steps of a setting, in the form that the checker explores.

use stateright::{Model, Property};

use crate::action::Action;
use crate::attempt::{ATTEMPTS, ModelAttempt};
use crate::history::History;
use crate::property::properties;
use crate::space::StateSpace;
use crate::store::ModelStore;
use crate::world::{LATE, OperatorPhase, World};

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

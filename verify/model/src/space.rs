//! All states that a setting can come to, as the checker walks through them.

use hapax_core::RecordKey;
use stateright::{Model, Property};

use crate::action::Action;
use crate::ask::Who;
use crate::attempt::{ATTEMPTS, Attempt};
use crate::history::History;
use crate::invariant::Invariant;
use crate::setting::{Sent, Setting, record_keys};
use crate::store::{KEYS, Store};
use crate::world::{Finding, LATE, World};

/// All states of one setting.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub(crate) setting: Setting,
    pub(crate) record_keys: [RecordKey; KEYS],
}

impl Space {
    /// The states that this setting can come to.
    pub(crate) fn new(setting: Setting) -> Self {
        Self { setting, record_keys: record_keys() }
    }

    /// How many slots there can be.
    pub(crate) fn slots(&self) -> usize {
        KEYS
    }

    /// Where the store keeps the record of a call: under its record key, whoever sent it.
    pub(crate) fn slot(&self, call: Sent) -> usize {
        let rk = self.record_keys[usize::from(call.tenant)];
        self.record_keys.iter().position(|other| *other == rk).expect("it is one of them")
    }

    pub(crate) fn slot_of(&self, who: Who) -> usize {
        match who {
            Who::Attempt(number) | Who::Journal(number) => self.slot(self.setting.call(number)),
            Who::Operator => 0,
        }
    }

    /// The state before anything happened.
    pub(crate) fn start(&self) -> World {
        World {
            store: Store::default(),
            replica: Store::default(),
            attempts: [Attempt::default(); ATTEMPTS],
            late: [None; LATE],
            operator: Finding::Idle,
            history: History::default(),
            left: self.setting.faults,
        }
    }
}

impl Model for Space {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.start()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // What comes after a broken invariant is of no interest.
        if !world.history.is_broken() {
            world.possible(self, actions);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.take(self, action).filter(|()| next != *world).map(|()| next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        Invariant::properties()
    }
}

//! The broker, and the consumer behind it.

use hapax_core::outbox::RowState;

use crate::invariant::Invariant;
use crate::outbox::action::EventAction;
use crate::outbox::setting::{OutboxRule, OutboxSpace};
use crate::outbox::world::{EventWorld, ModelBroker, NumberSet, ROWS};

/// More copies than this make no difference.
const MANY: u8 = 2;

impl EventWorld {
    pub(crate) fn collect_broker_actions(&self, space: &OutboxSpace, actions: &mut Vec<EventAction>) {
        if !self.broker.known.is_empty() {
            actions.push(EventAction::ForgetIds);
        }
        if self.broker.unread != [0; ROWS] {
            actions.push(EventAction::Consume);
        }
        if self.faults_left.losses > 0 && self.broker.unread != [0; ROWS] {
            actions.push(EventAction::LoseAll);
        }
        if space.0.faults.losses > 0 {
            actions.push(EventAction::Keep);
        }
    }

    /// A publication reaches the broker.
    pub(crate) fn arrive(&mut self, space: &OutboxSpace, row: usize) {
        let is_first = !self.broker.arrived.has(row);
        if is_first {
            self.check_first_arrival(space, row);
        } else if space.violates(OutboxRule::MintsIds) {
            self.breaks(Invariant::SameEventId);
        }
        let broker = &mut self.broker;
        broker.arrived.insert(row);
        if broker.known.has(row) {
            return;
        }
        if space.0.window {
            broker.known.insert(row);
        }
        broker.unread[row] = MANY.min(broker.unread[row] + 1);
        // Only a broker that may lose events makes a difference between arrived and read.
        if space.0.faults.losses == 0 {
            self.consume(space);
        }
    }

    fn check_first_arrival(&mut self, space: &OutboxSpace, row: usize) {
        if !self.transactions[row].is_committed() {
            return self.breaks(Invariant::NoGhostEvent);
        }
        let earlier = |other: &usize| {
            space.key(*other) == space.key(row) && self.id(*other) > 0 && self.id(*other) < self.id(row)
        };
        let is_missing = |other: usize| {
            self.transactions[other].committed != Some(false)
                && !self.broker.arrived.has(other)
                && self.rows[other] != Some(RowState::Dropped)
        };
        if space.rows().filter(earlier).any(is_missing) {
            self.breaks(Invariant::EventsInOrder);
        }
    }

    /// The consumer reads everything. Its inbox skips events that had their effect.
    pub(crate) fn consume(&mut self, space: &OutboxSpace) {
        let ModelBroker { unread, effects, .. } = &mut self.broker;
        for (unread, effects) in unread.iter_mut().zip(effects) {
            let copies = std::mem::take(unread);
            *effects = if space.0.inbox { copies.max(*effects).min(1) } else { MANY.min(copies + *effects) };
        }
        if self.broker.effects.iter().any(|effects| *effects > 1) {
            self.breaks(Invariant::OneEffectOfEvent);
        }
    }

    /// The broker loses what nobody has read, and what it remembers. An event that it keeps is not lost.
    pub(crate) fn lose_all(&mut self) {
        self.faults_left.losses -= 1;
        let broker = &mut self.broker;
        broker.has_lost = true;
        broker.known = NumberSet::default();
        for row in 0..ROWS {
            if !broker.kept.has(row) {
                broker.unread[row] = 0;
            }
        }
    }

    /// So much time passes that the broker can no longer lose what it has.
    pub(crate) fn keep(&mut self) {
        for row in 0..ROWS {
            if self.broker.unread[row] > 0 || self.broker.effects[row] > 0 {
                self.broker.kept.insert(row);
            }
        }
    }
}

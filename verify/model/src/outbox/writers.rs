//! Transactions that write events, operators, and retention.

use hapax_core::outbox::RowState;

use crate::outbox::action::EventAction;
use crate::outbox::setting::{OutboxRule, OutboxSpace};
use crate::outbox::world::{EventWorld, ModelTransaction};

impl EventWorld {
    pub(crate) fn collect_writer_actions(&self, space: &OutboxSpace, actions: &mut Vec<EventAction>) {
        for row in space.rows() {
            let transaction = self.transactions[row];
            let is_late = space.violates(OutboxRule::IdBeforeXid);
            let (may_begin, may_draw) = match is_late {
                false => (transaction.stamp == 0, transaction.stamp > 0),
                true => (transaction.id > 0 && transaction.stamp == 0, true),
            };
            if may_begin {
                actions.push(EventAction::Begin(row));
            }
            if may_draw && transaction.id == 0 && transaction.committed.is_none() && !self.is_locked(space, row) {
                actions.push(EventAction::Draw(row));
            }
            if transaction.id > 0 && transaction.stamp > 0 && transaction.committed.is_none() {
                actions.extend([EventAction::Commit(row), EventAction::RollBack(row)]);
            }
        }
    }

    /// Whether another transaction has locked the ordering key. It draws an id under this lock.
    fn is_locked(&self, space: &OutboxSpace, row: usize) -> bool {
        let holds = |other: &ModelTransaction| other.id > 0 && other.committed.is_none();
        space.rows().any(|other| space.key(other) == space.key(row) && holds(&self.transactions[other]))
    }

    pub(crate) fn begin(&mut self, row: usize) {
        self.begun += 1;
        self.transactions[row].stamp = self.begun;
    }

    pub(crate) fn draw(&mut self, row: usize) {
        self.drawn += 1;
        self.transactions[row].id = self.drawn;
    }

    pub(crate) fn end(&mut self, row: usize, is_committed: bool) {
        self.transactions[row].committed = Some(is_committed);
        self.rows[row] = is_committed.then_some(RowState::Open);
    }

    pub(crate) fn collect_operator_actions(&self, space: &OutboxSpace, actions: &mut Vec<EventAction>) {
        for (key, parked) in self.parked.iter().enumerate() {
            let Some(parked) = parked else { continue };
            match parked.is_being_resumed {
                true if self.first_aside(space, key).is_some() => actions.push(EventAction::Reopen(key)),
                true => actions.push(EventAction::EndResume(key)),
                false if self.faults_left.resumes > 0 => actions.push(EventAction::BeginResume(key)),
                false => {}
            }
            let is_closed = matches!(self.rows[usize::from(parked.row)], Some(RowState::Open | RowState::Aside));
            if self.faults_left.drops > 0 && is_closed {
                actions.push(EventAction::Drop(key));
            }
        }
        if self.broker.has_lost {
            actions.push(EventAction::Republish);
        }
        if !self.reopening.is_empty() {
            actions.push(EventAction::ReopenPublished);
        }
        if space.0.faults.losses > 0 {
            let is_old = |row: &usize| self.broker.kept.has(*row) || space.violates(OutboxRule::SweepsEarly);
            let published = space.rows().filter(|row| self.rows[*row] == Some(RowState::Published));
            actions.extend(published.filter(is_old).map(EventAction::Sweep));
        }
    }

    fn first_aside(&self, space: &OutboxSpace, key: usize) -> Option<usize> {
        let of_key = space.rows().filter(|row| space.key(*row) == key);
        of_key.filter(|row| self.rows[*row] == Some(RowState::Aside)).min_by_key(|row| self.id(*row))
    }

    pub(crate) fn begin_resume(&mut self, key: usize) {
        self.faults_left.resumes -= 1;
        if let Some(parked) = &mut self.parked[key] {
            parked.is_being_resumed = true;
        }
    }

    pub(crate) fn reopen(&mut self, space: &OutboxSpace, key: usize) {
        if let Some(row) = self.first_aside(space, key) {
            self.rows[row] = Some(RowState::Open);
        }
    }

    pub(crate) fn end_resume(&mut self, key: usize) {
        self.parked[key] = None;
        self.rewinds += 1;
    }

    pub(crate) fn drop_refused(&mut self, key: usize) {
        self.faults_left.drops -= 1;
        if let Some(parked) = self.parked[key] {
            self.rows[usize::from(parked.row)] = Some(RowState::Dropped);
        }
    }

    /// A republication begins: rows that were published before are opened one after the other.
    pub(crate) fn republish(&mut self, space: &OutboxSpace) {
        self.broker.has_lost = false;
        self.rewinds += 1;
        self.republications += 1;
        self.reopening = space.rows().filter(|row| self.rows[*row] == Some(RowState::Published)).collect();
    }

    pub(crate) fn reopen_published(&mut self, space: &OutboxSpace) {
        let left = space.rows().filter(|row| self.reopening.has(*row));
        let Some(row) = left.min_by_key(|row| self.id(*row)) else { return };
        self.reopening.remove(row);
        if self.rows[row] == Some(RowState::Published) {
            self.rows[row] = Some(RowState::Open);
            self.rewinds += 1;
        }
    }
}

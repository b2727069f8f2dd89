//! From a held row to the broker, and from the confirmation to the mark.

use hapax_core::outbox::RowState;

use crate::invariant::Invariant;
use crate::outbox::action::EventAction;
use crate::outbox::setting::{OutboxRule, OutboxSpace};
use crate::outbox::world::{EventWorld, HeldPhase, ModelParking, NumberSet, Republications};

impl EventWorld {
    pub(crate) fn collect_publish_actions(&self, space: &OutboxSpace, actions: &mut Vec<EventAction>) {
        for relay in space.relays() {
            for row in space.rows() {
                if self.may_start(space, relay, row) {
                    actions.push(EventAction::Start(relay, row));
                }
                if self.relays[relay].is_in_flight(row) {
                    self.collect_fates(relay, row, actions);
                }
            }
            self.collect_writes(space, relay, actions);
        }
        for row in space.rows().filter(|row| self.late_publications.has(*row)) {
            actions.extend([EventAction::ArriveLate(row), EventAction::LoseLate(row)]);
        }
        if !self.late_marks.is_empty() {
            actions.push(EventAction::MarkLate);
        }
    }

    /// Whether the row is the first one of its key that the relay holds, and none of the key is in flight.
    fn may_start(&self, space: &OutboxSpace, relay: usize, row: usize) -> bool {
        let seen = &self.relays[relay];
        let is_before = |other: usize| match seen.held[other] {
            HeldPhase::InFlight => true,
            HeldPhase::Waiting => self.id(other) < self.id(row),
            HeldPhase::NotHeld | HeldPhase::Published => false,
        };
        let mut of_key = space.rows().filter(|other| space.key(*other) == space.key(row));
        let is_first = space.violates(OutboxRule::ClaimsPerRow) || !of_key.any(is_before);
        seen.holds && seen.held[row] == HeldPhase::Waiting && is_first
    }

    fn collect_fates(&self, relay: usize, row: usize, actions: &mut Vec<EventAction>) {
        actions.push(EventAction::Publish(relay, row));
        if self.faults_left.refusals > 0 {
            actions.push(EventAction::Refuse(relay, row));
        }
        if self.faults_left.network > 0 {
            actions.push(EventAction::LosePublication(relay, row));
            actions.push(EventAction::LoseConfirmation(relay, row));
            if !self.late_publications.has(row) {
                actions.push(EventAction::DelayPublication(relay, row));
            }
        }
    }

    fn collect_writes(&self, space: &OutboxSpace, relay: usize, actions: &mut Vec<EventAction>) {
        let (seen, may_fail) = (&self.relays[relay], self.faults_left.network > 0);
        if !seen.marking.is_empty() {
            actions.push(EventAction::Mark(relay));
            if may_fail {
                actions.extend([EventAction::LoseMark(relay), EventAction::LoseMarkReply(relay)]);
            }
        } else if !seen.unmarked.is_empty() {
            actions.push(EventAction::StartMark(relay));
        }
        for row in space.rows().filter(|row| seen.refused.has(*row)) {
            actions.push(EventAction::Park(relay, row));
            if may_fail {
                actions.push(EventAction::LoseParkReply(relay, row));
            }
        }
        if !seen.aside.is_empty() {
            actions.push(EventAction::SetAside(relay));
        }
    }

    pub(crate) fn start(&mut self, space: &OutboxSpace, relay: usize, row: usize) {
        self.relays[relay].note_start(row);
        self.relays[relay].held[row] = HeldPhase::InFlight;
        if space.violates(OutboxRule::MarksFirst) {
            self.relays[relay].unmarked.insert(row);
        }
    }

    pub(crate) fn publish(&mut self, space: &OutboxSpace, number: usize, row: usize) {
        self.arrive(space, row);
        let relay = &mut self.relays[number];
        relay.unmarked.insert(row);
        if relay.strays.has(row) {
            relay.strays.remove(row);
        } else {
            relay.held[row] = HeldPhase::Published;
        }
    }

    /// The relay does not know whether the broker has the row.
    pub(crate) fn fail_publication(&mut self, relay: usize, row: usize) {
        self.faults_left.network -= 1;
        let relay = &mut self.relays[relay];
        if relay.strays.has(row) {
            relay.strays.remove(row);
        } else {
            relay.held[row] = HeldPhase::Waiting;
        }
        relay.forget_starts();
    }

    pub(crate) fn refuse(&mut self, space: &OutboxSpace, number: usize, row: usize) {
        self.faults_left.refusals -= 1;
        let relay = &mut self.relays[number];
        if relay.strays.has(row) {
            relay.strays.remove(row);
            return relay.forget_starts();
        }
        relay.held[row] = HeldPhase::NotHeld;
        relay.forget_starts();
        if space.violates(OutboxRule::SkipsRefused) {
            return;
        }
        for other in space.rows().filter(|other| space.key(*other) == space.key(row)) {
            // A row that was confirmed before the refusal is marked, but no longer held.
            relay.held[other] = HeldPhase::NotHeld;
        }
        relay.parked.insert(space.key(row));
        relay.refused.insert(row);
    }

    pub(crate) fn start_mark(&mut self, relay: usize) {
        self.relays[relay].marking = self.relays[relay].unmarked.take();
    }

    /// The rows are marked, and the reply arrives. A row whose mark does not count is read again.
    pub(crate) fn finish_mark(&mut self, space: &OutboxSpace, number: usize) {
        let rows = self.relays[number].marking.take();
        let under = self.relays[number].under;
        self.mark(space, rows, &under);
        let counts = |row: usize| self.mark_counts(space, under[row]);
        let counting: NumberSet = space.rows().filter(|row| counts(*row)).collect();
        let relay = &mut self.relays[number];
        for row in space.rows().filter(|row| rows.has(*row)) {
            // Otherwise a later publication of this row waits for a mark of its own.
            if relay.held[row] == HeldPhase::Published && !relay.unmarked.has(row) {
                relay.held[row] = HeldPhase::NotHeld;
                match counting.has(row) {
                    true => relay.just_marked.insert(row),
                    false => relay.cursor = 0,
                }
            }
        }
        relay.forget_starts();
    }

    /// The relay gets no reply, and marks again.
    pub(crate) fn fail_mark(&mut self, space: &OutboxSpace, relay: usize, is_marked: bool) {
        self.faults_left.network -= 1;
        let rows = self.relays[relay].marking.take();
        self.relays[relay].unmarked.add(rows);
        if is_marked {
            let under = self.relays[relay].under;
            self.mark(space, rows, &under);
        }
    }

    pub(crate) fn mark_late(&mut self, space: &OutboxSpace) {
        let (rows, under) = (self.late_marks.take(), std::mem::take(&mut self.late_under));
        self.mark(space, rows, &under);
    }

    /// Whether a mark changes anything whose relay knew so many republications when it published.
    fn mark_counts(&self, space: &OutboxSpace, under: u8) -> bool {
        under == self.republications || space.violates(OutboxRule::MarksIgnoreRepublications)
    }

    fn mark(&mut self, space: &OutboxSpace, rows: NumberSet, under: &Republications) {
        for row in space.rows().filter(|row| rows.has(*row)) {
            if !self.mark_counts(space, under[row]) {
                continue;
            }
            match self.rows[row] {
                Some(RowState::Open) => self.rows[row] = Some(RowState::Published),
                Some(RowState::Aside | RowState::Dropped) if space.violates(OutboxRule::MarksAnyState) => {
                    self.rows[row] = Some(RowState::Published);
                    self.breaks(Invariant::OnlyOpenRowsAreMarked);
                }
                Some(RowState::Published | RowState::Aside | RowState::Dropped) | None => {}
            }
        }
    }

    pub(crate) fn park(&mut self, space: &OutboxSpace, relay: usize, row: usize, is_confirmed: bool) {
        match is_confirmed {
            true => self.relays[relay].refused.remove(row),
            false => self.faults_left.network -= 1,
        }
        if self.rows[row].is_none() {
            return;
        }
        let refused = u8::try_from(row).expect("a small number");
        self.parked[space.key(row)].get_or_insert(ModelParking { row: refused, is_being_resumed: false });
        if self.rows[row] == Some(RowState::Open) {
            self.rows[row] = Some(RowState::Aside);
        }
    }

    pub(crate) fn set_aside(&mut self, space: &OutboxSpace, relay: usize) {
        let rows = self.relays[relay].aside.take();
        let any_key = space.violates(OutboxRule::SetsAsideAnyKey);
        for row in space.rows().filter(|row| rows.has(*row)) {
            if self.rows[row] != Some(RowState::Open) {
                continue;
            }
            if any_key || self.parked[space.key(row)].is_some_and(|parked| !parked.is_being_resumed) {
                self.rows[row] = Some(RowState::Aside);
            }
        }
    }
}

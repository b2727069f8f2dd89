//! Claims of the bucket, and reads of the outbox.

use hapax_core::outbox::{Horizon, RowId, RowState};

use crate::outbox::action::EventAction;
use crate::outbox::setting::{HorizonKind, OutboxRule, OutboxSpace};
use crate::outbox::world::{
    BucketClaim, EventWorld, HeldPhase, ModelRelay, NOBODY, NumberSet, OutboxSnapshot, ReadPhase,
};

impl EventWorld {
    pub(crate) fn collect_claim_actions(&self, space: &OutboxSpace, actions: &mut Vec<EventAction>) {
        let BucketClaim { holder, has_lapsed, was_claimed } = self.claim;
        for relay in space.relays() {
            let seen = &self.relays[relay];
            if !seen.holds && (holder.is_none() || has_lapsed) && (was_claimed || relay == 0) {
                actions.push(EventAction::Claim(relay));
            }
            let is_lost = holder != Some(relay) || has_lapsed;
            if seen.holds && is_lost {
                actions.push(EventAction::NoticeLoss(relay));
                if holder == Some(relay) {
                    actions.push(EventAction::Renew(relay));
                }
            }
            let is_settled = seen.held.iter().all(|row| matches!(row, HeldPhase::NotHeld | HeldPhase::Waiting));
            if self.faults_left.moves > 0 && seen.holds && !is_lost && is_settled {
                actions.push(EventAction::GiveBack(relay));
            }
            if self.faults_left.crashes > 0 && *seen != ModelRelay::default() {
                actions.push(EventAction::Crash(relay));
            }
        }
        if holder.is_some() && !has_lapsed && (self.faults_left.lapses > 0 || holder == Some(NOBODY)) {
            actions.push(EventAction::Lapse);
        }
    }

    pub(crate) fn claim(&mut self, relay: usize) {
        self.claim = BucketClaim { holder: Some(relay), has_lapsed: false, was_claimed: true };
        self.relays[relay].holds = true;
    }

    pub(crate) fn lapse(&mut self) {
        self.claim.has_lapsed = true;
        if self.claim.holder != Some(NOBODY) {
            self.faults_left.lapses -= 1;
        }
    }

    pub(crate) fn give_back(&mut self, relay: usize) {
        self.faults_left.moves -= 1;
        self.claim.holder = None;
        self.relays[relay].drop_bucket();
    }

    /// What the relay had sent is late, or lost. A new process takes its place.
    pub(crate) fn crash(&mut self, space: &OutboxSpace, relay: usize) {
        self.faults_left.crashes -= 1;
        let dead = std::mem::take(&mut self.relays[relay]);
        for row in space.rows().filter(|row| dead.is_in_flight(*row)) {
            self.late_publications.insert(row);
        }
        self.late_marks.add(dead.marking);
        for row in space.rows().filter(|row| dead.marking.has(*row)) {
            self.late_under[row] = dead.under[row];
        }
        if self.claim.holder == Some(relay) {
            self.claim.holder = Some(NOBODY);
        }
    }

    pub(crate) fn collect_read_actions(&self, space: &OutboxSpace, actions: &mut Vec<EventAction>) {
        for relay in space.relays() {
            let seen = &self.relays[relay];
            match seen.reading {
                ReadPhase::Idle if seen.holds => {
                    actions.push(EventAction::Read(relay));
                    if space.0.horizon == HorizonKind::InSteps {
                        actions.push(EventAction::ReadDrawn(relay));
                    }
                    if space.violates(OutboxRule::CursorRunsAhead) {
                        actions.push(EventAction::GoBack(relay));
                    }
                }
                ReadPhase::Idle => {}
                ReadPhase::Drawn(_) | ReadPhase::Stamped(..) => actions.push(EventAction::ReadStamps(relay)),
                ReadPhase::Seen(_) => actions.push(EventAction::TakeRead(relay)),
            }
        }
    }

    /// A stamp behind those of all transactions that have begun, and the smallest one that has not ended.
    fn stamps(&self) -> (u8, u8) {
        let stamp = |began: u8| 2 * began;
        let runs = self.transactions.iter().filter(|one| one.stamp > 0 && one.committed.is_none());
        let settled = runs.map(|one| stamp(one.stamp)).min().unwrap_or(stamp(self.begun + 1));
        (stamp(self.begun) + 1, settled)
    }

    pub(crate) fn read_drawn(&mut self, space: &OutboxSpace, relay: usize) {
        let (stamp, settled) = self.stamps();
        self.relays[relay].reading = match space.violates(OutboxRule::StampBeforeDrawn) {
            false => ReadPhase::Drawn(self.drawn),
            true => ReadPhase::Stamped(stamp, settled),
        };
    }

    pub(crate) fn read_stamps(&mut self, relay: usize) {
        let (drawn, (stamp, settled)) = match self.relays[relay].reading {
            ReadPhase::Drawn(drawn) => (drawn, self.stamps()),
            ReadPhase::Stamped(stamp, settled) => (self.drawn, (stamp, settled)),
            ReadPhase::Idle | ReadPhase::Seen(_) => return,
        };
        let relay = &mut self.relays[relay];
        let horizon = Horizon { drawn: RowId(drawn.into()), stamp: stamp.into(), settled: settled.into() };
        relay.decided.observe(horizon);
        relay.reading = ReadPhase::Idle;
    }

    /// Up to which id the relay knows all rows to be decided.
    fn decided(&self, space: &OutboxSpace, relay: usize) -> u8 {
        match space.0.horizon {
            HorizonKind::InSteps => u8::try_from(self.relays[relay].decided.up_to().0).expect("a small id"),
            HorizonKind::Known => {
                let runs = self.transactions.iter().filter(|one| one.id > 0 && one.committed.is_none());
                runs.map(|one| one.id - 1).min().unwrap_or(self.drawn)
            }
        }
    }

    pub(crate) fn read(&mut self, space: &OutboxSpace, relay: usize) {
        let after = self.relays[relay].cursor;
        let is_seen = |row: usize| match space.violates(OutboxRule::ReadsUncommitted) {
            true => self.rows[row] == Some(RowState::Open) || self.transactions[row].committed.is_none(),
            false => self.rows[row] == Some(RowState::Open),
        };
        let mut snapshot = OutboxSnapshot {
            after,
            decided: self.decided(space, relay),
            open: NumberSet::default(),
            parked: NumberSet::default(),
            rewinds: self.rewinds,
            republications: self.republications,
        };
        for row in space.rows().filter(|row| self.id(*row) > after && is_seen(*row)) {
            snapshot.open.insert(row);
            if self.parked[space.key(row)].is_some() {
                snapshot.parked.insert(row);
            }
        }
        self.relays[relay].just_marked.take();
        self.relays[relay].reading = ReadPhase::Seen(snapshot);
    }

    pub(crate) fn take_read(&mut self, space: &OutboxSpace, number: usize) {
        let ids = self.transactions.map(|one| one.id);
        let relay = &mut self.relays[number];
        let ReadPhase::Seen(seen) = std::mem::take(&mut relay.reading) else { return };
        let has_rewound = relay.rewinds.is_some_and(|known| known != seen.rewinds);
        (relay.rewinds, relay.republications) = (Some(seen.rewinds), seen.republications);
        if has_rewound && !space.violates(OutboxRule::IgnoresRewinds) {
            return relay.rewind();
        }
        // The cursor went back meanwhile, or the bucket is lost, and perhaps held again.
        if !relay.holds || relay.cursor != seen.after {
            return;
        }
        for row in space.rows().filter(|row| seen.open.has(*row)) {
            relay.take(row, space.key(row), seen.parked.has(row));
        }
        let last = space.rows().filter(|row| seen.open.has(*row)).map(|row| ids[row]).max();
        let runs_ahead = [OutboxRule::CursorIsTheTruth, OutboxRule::CursorRunsAhead];
        let end = match runs_ahead.into_iter().any(|rule| space.violates(rule)) {
            true => last.unwrap_or(seen.after),
            false => seen.decided,
        };
        relay.cursor = relay.cursor.max(end);
    }

    pub(crate) fn go_back(&mut self, space: &OutboxSpace, relay: usize) {
        self.relays[relay].cursor = self.relays[relay].cursor.min(self.decided(space, relay));
    }
}

impl ModelRelay {
    fn take(&mut self, row: usize, key: usize, is_parked: bool) {
        if self.held[row] != HeldPhase::NotHeld || self.just_marked.has(row) {
            return;
        }
        if is_parked || self.parked.has(key) {
            return self.aside.insert(row);
        }
        self.held[row] = HeldPhase::Waiting;
    }

    /// Forgets what was not started, and reads everything again.
    fn rewind(&mut self) {
        for held in self.held.iter_mut().filter(|held| **held == HeldPhase::Waiting) {
            *held = HeldPhase::NotHeld;
        }
        self.parked.take();
        self.cursor = 0;
    }
}

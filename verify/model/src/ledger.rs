//! The ledger in steps: claim, then one COMMIT for the effect and its row. All decisions come from the core's rules.
//!
//! A transaction holds the lock of its operation from its claim to its end. Its effect and its row become visible
//! together, with the COMMIT. A COMMIT without a reply leaves the transaction in doubt: it holds the lock until it is
//! committed or rolled back.

use hapax_core::ledger::rules::{self, ClaimRuling, Ended, Ending, Next};
use hapax_core::ledger::{Call, FaultKind, FoundRow, LedgerVerdict, Row, Tried};

use crate::action::{Action, ReportedOutcome};
use crate::attempt::{AttemptPhase, TransactionPhase};
use crate::record::{AnswerId, bytes, fingerprint};
use crate::request::{Operation, ProtocolRequest, Sender};
use crate::setting::BrokenRule;
use crate::space::StateSpace;
use crate::world::World;

/// A committed row of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LedgerRow {
    /// It has no answer. Only a broken rule commits such a row.
    Open,
    Finished(AnswerId),
}

impl World {
    /// The steps of a handler that runs in a transaction of the ledger.
    pub(crate) fn collect_ledger_actions(&self, number: u8, actions: &mut Vec<Action>) {
        let attempt = &self.attempts[usize::from(number)];
        let has_record = self.has_record(number);
        if !attempt.has_claim() {
            actions.push(Action::Claim(number));
            if self.faults_left.errors > 0 {
                actions.push(Action::FailToClaim(number));
                if has_record && attempt.transaction == TransactionPhase::NotBegun {
                    actions.push(Action::TooLate(number));
                }
            }
            return;
        }
        actions.push(Action::Commit(number));
        if self.faults_left.network > 0 {
            actions.push(Action::LoseCommit(number));
        }
        if self.faults_left.errors > 0 {
            actions.push(Action::Conflict(number));
            if has_record {
                let outcomes = [ReportedOutcome::NotApplied, ReportedOutcome::Unknown];
                actions.extend(outcomes.map(|outcome| Action::Refrain(number, outcome)));
            }
        }
    }

    /// The handler opens a transaction and claims its operation. A handler that finds it busy could also wait: that is
    /// this step taken later.
    pub(crate) fn claim_operation(&mut self, space: &StateSpace, number: u8) {
        match self.judge_claim(space, number) {
            ClaimRuling::Fresh => self.claimed(space, number),
            ClaimRuling::Replay { answer, .. } => self.applied(space, number, answer[0]),
            // A transaction sees no claim but its own, unless a rule is broken.
            ClaimRuling::Busy | ClaimRuling::ClaimedTwice => self.found_busy(space, number),
            ClaimRuling::Mismatch => self.applied_nothing(space, number),
            ClaimRuling::Dead | ClaimRuling::Damaged => unreachable!("the model closes and damages no operation"),
        }
    }

    fn judge_claim(&self, space: &StateSpace, number: u8) -> ClaimRuling {
        let call = space.setting.call(number);
        let row = self.history.ledger[usize::from(call.tenant)];
        let is_locked = self.holder_of_lock(space, number).is_some();
        let tried = match row {
            _ if is_locked && !space.setting.violates(BrokenRule::ClaimsWithoutLock) => Tried::Locked,
            None => Tried::Inserted,
            Some(_) => Tried::NotInserted,
        };
        let found = row.map(|row| match row {
            LedgerRow::Open => FoundRow::ClaimedHere,
            LedgerRow::Finished(answer) => FoundRow::Row(Row {
                fingerprint: fingerprint(space.setting.call(answer).payload),
                verdict: LedgerVerdict::Applied,
                answer: bytes(answer),
                transaction: Some(answer.into()),
            }),
        });
        let asked = Call::new(space.operations[usize::from(call.tenant)]);
        let asked = match space.setting.violates(BrokenRule::ReplaysAnyPayload) {
            true => asked,
            false => asked.fingerprint(fingerprint(call.payload)),
        };
        // The transactions of an attempt have its number.
        rules::claim(&asked, tried, found.as_ref(), &[number.into()])
    }

    /// The attempt whose transaction holds the lock of this attempt's operation.
    fn holder_of_lock(&self, space: &StateSpace, number: u8) -> Option<u8> {
        let tenant = space.setting.call(number).tenant;
        let mut others = (0..).zip(&self.attempts).take(space.setting.calls.len());
        let holds = |other: u8| space.setting.call(other).tenant == tenant;
        others
            .find(|(other, attempt)| holds(*other) && (attempt.has_claim() || attempt.under_way))
            .map(|(other, _)| other)
    }

    fn claimed(&mut self, space: &StateSpace, number: u8) {
        self.attempt(number).transaction = TransactionPhase::Claimed;
        let key = usize::from(space.setting.call(number).tenant);
        if space.setting.violates(BrokenRule::CommitsTheClaimFirst) {
            self.history.ledger[key] = Some(LedgerRow::Open);
        }
        if space.setting.violates(BrokenRule::ActsOutsideTheTransaction) {
            self.history.takes_effect(key, number);
        }
    }

    /// Another transaction has the lock, perhaps an earlier one of this attempt. The outcome is unknown.
    fn found_busy(&mut self, space: &StateSpace, number: u8) {
        match self.holder_of_lock(space, number) {
            Some(holder) if space.setting.violates(BrokenRule::TakesBusyForDone) => {
                self.applied(space, number, holder);
            }
            _ => self.leave_unknown(space, number),
        }
    }

    /// The database lets no transaction begin.
    pub(crate) fn fail_to_claim(&mut self, space: &StateSpace, number: u8) {
        self.faults_left.errors -= 1;
        let is_commit_open = self.attempt(number).transaction == TransactionPhase::CommitOpen
            && !space.setting.violates(BrokenRule::ForgetsOpenCommits);
        match after(FaultKind::Unavailable, 0, is_commit_open) == Next::Unknown {
            true => self.leave_unknown(space, number),
            false => self.applied_nothing(space, number),
        }
    }

    /// The handler reports that nothing was applied.
    fn applied_nothing(&mut self, space: &StateSpace, number: u8) {
        match self.has_record(number) {
            true => self.send(Sender::Attempt(number), ProtocolRequest::first(Operation::Release)),
            false => self.not_applied(space, number),
        }
    }

    /// The handler reports that the outcome is unknown.
    fn leave_unknown(&mut self, space: &StateSpace, number: u8) {
        match self.has_record(number) {
            true => self.give_up(space, number),
            false => self.not_applied(space, number),
        }
    }

    fn has_record(&self, number: u8) -> bool {
        self.attempts[usize::from(number)].phase == AttemptPhase::Running
    }

    /// The COMMIT is carried out, and its reply arrives.
    pub(crate) fn commit(&mut self, space: &StateSpace, number: u8) {
        self.attempt(number).transaction = TransactionPhase::Over;
        if let Some(answer) = self.take_effect(space, number) {
            self.applied(space, number, answer);
        }
    }

    /// The COMMIT gets no reply: the transaction is in doubt.
    pub(crate) fn lose_commit(&mut self, space: &StateSpace, number: u8) {
        self.faults_left.network -= 1;
        let attempt = self.attempt(number);
        (attempt.transaction, attempt.under_way) = (TransactionPhase::CommitOpen, true);
        let is_trusted = space.setting.violates(BrokenRule::TrustsLostCommits);
        // Otherwise the handler claims again.
        if is_trusted || after(FaultKind::CommitUnknown, 1, true) == Next::Answer {
            self.applied(space, number, number);
        }
    }

    /// The database rolls the transaction back, and the handler claims again.
    pub(crate) fn conflict(&mut self, number: u8) {
        self.faults_left.errors -= 1;
        self.attempt(number).transaction = TransactionPhase::Over;
        assert_eq!(after(FaultKind::Conflict, 1, false), Next::Again);
    }
}

/// What follows after a fault.
fn after(fault: FaultKind, tries_left: u32, is_commit_open: bool) -> Next {
    let ending = Ending::Fault(fault);
    rules::next(&Ended { ending, operations: 1, tries_left, is_commit_open, had_row: false, is_counting: false })
}

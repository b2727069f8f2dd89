//! The history of a run, as far as an invariant needs it.

use crate::invariant::Invariant;
use crate::ledger::LedgerRow;
use crate::record::{AnswerId, ModelRecord, ModelState};
use crate::request::{Operation, Sender};
use crate::store::{KEYS, StoreSlot};

/// The history. Its arrays have one entry for each key of the callers, except `completed`: one for each slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct History {
    /// How many effects an operation had; 2 means two or more.
    pub(crate) effects: [u8; KEYS],
    /// The answer of the first effect.
    pub(crate) produced: [Option<AnswerId>; KEYS],
    /// The committed row of the ledger.
    pub(crate) ledger: [Option<LedgerRow>; KEYS],
    /// The newest token that the resource saw.
    pub(crate) fence: u8,
    /// One bit for each answer that a caller got.
    pub(crate) delivered: [u8; KEYS],
    /// One bit for each answer that a caller got as unrecorded.
    pub(crate) unrecorded: u8,
    /// The first recorded answer, by slot.
    pub(crate) completed: [Option<AnswerId>; KEYS],
    pub(crate) newest_token: u8,
    /// Whether the store forgot a record, by amnesia or because the record expired.
    pub(crate) forgot: bool,
    /// Whether a lagging replica replaced the store. A swap that was sent before may then bring an old token back.
    pub(crate) rolled_back: bool,
    /// Whether a release after an effect breaks no invariant any more. Set in three cases: a handler runs without a
    /// record, an operator resolves a record as not done while an attempt can still act, or an operator reopens a key
    /// that had an effect.
    pub(crate) excused: bool,
    broken: u32,
}

/// The request that writes a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteCause {
    pub(crate) sender: Sender,
    pub(crate) operation: Operation,
    /// Whether the lease had expired when the record was read, and was not re-armed since.
    pub(crate) lapsed: bool,
}

impl History {
    /// Whether this invariant is broken.
    pub(crate) fn broke(&self, invariant: Invariant) -> bool {
        self.broken & (1 << invariant as u32) != 0
    }

    /// Whether an invariant is broken, or an operation had more than one effect.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken != 0 || self.effects.iter().any(|effects| *effects > 1)
    }

    /// Records that this invariant is broken.
    pub(crate) fn breaks(&mut self, invariant: Invariant) {
        self.broken |= 1 << invariant as u32;
    }

    /// A caller gets an answer.
    pub(crate) fn delivers(&mut self, key: usize, answer: AnswerId) {
        self.delivered[key] |= 1 << answer;
        if self.effects[key] == 0 {
            self.breaks(Invariant::AnswerHasEffect);
        }
    }

    /// An effect happens under this key.
    pub(crate) fn takes_effect(&mut self, key: usize, answer: AnswerId) {
        self.effects[key] = (self.effects[key] + 1).min(2);
        self.produced[key].get_or_insert(answer);
    }

    /// A record is about to be written into the slot.
    pub(crate) fn writes(&mut self, at: usize, slot: &StoreSlot, next: &ModelRecord, cause: WriteCause) {
        self.check_token(slot, next, cause.operation);
        self.check_verdict_and_renewal(slot, next, cause.operation);
        let before = slot.live().and_then(ModelRecord::in_progress);
        match next.state {
            ModelState::InProgress(held) if slot.live() == Some(next) => self.armed_anew(held.owner, cause),
            ModelState::InProgress(held) if held.is_abandoned() => {}
            ModelState::InProgress(_) => {
                if self.completed[at].is_some() && !self.forgot {
                    self.breaks(Invariant::NoGrantAfterCompleted);
                }
                if before.is_some() && !cause.lapsed {
                    self.breaks(Invariant::OnlyTheLapsed);
                }
            }
            ModelState::Indeterminate(_) => {
                if before.is_some() && !cause.lapsed {
                    self.breaks(Invariant::OnlyTheLapsed);
                }
            }
            ModelState::Completed(answer) => {
                self.completed[at].get_or_insert(answer);
            }
            ModelState::Released(_) => self.released(at, cause.operation),
            ModelState::Dead(_) => {}
        }
        self.newest_token = self.newest_token.max(next.token);
    }

    /// Checks that a hold, a resolution or a reopen expects the token of the live record, and that a renewal leaves a
    /// record in progress as it is.
    fn check_verdict_and_renewal(&mut self, slot: &StoreSlot, next: &ModelRecord, operation: Operation) {
        match operation {
            Operation::Hold { expected } | Operation::Resolve { expected, .. } | Operation::Reopen { expected } => {
                if slot.live().is_none_or(|record| record.token != expected) {
                    self.breaks(Invariant::VerdictFits);
                }
            }
            Operation::Renew => {
                if next.in_progress().is_none() || slot.live() != Some(next) {
                    self.breaks(Invariant::RenewsItsOwn);
                }
            }
            Operation::Begin
            | Operation::Complete
            | Operation::Release
            | Operation::Abandon
            | Operation::Bury
            | Operation::Cancel(_) => {}
        }
    }

    /// Checks that a new token is larger than all tokens before it. Only a begin, a reopen and a resolution as done
    /// write a new token. Any other change keeps the token of its grant. After a rollback, old tokens may come back.
    fn check_token(&mut self, slot: &StoreSlot, next: &ModelRecord, operation: Operation) {
        let grows = match operation {
            Operation::Begin => slot.live() != Some(next) && next.in_progress().is_some(),
            Operation::Reopen { .. } => true,
            Operation::Resolve { done, .. } => done.is_some(),
            Operation::Renew
            | Operation::Complete
            | Operation::Release
            | Operation::Abandon
            | Operation::Bury
            | Operation::Cancel(_)
            | Operation::Hold { .. } => false,
        };
        if grows && next.token <= self.newest_token && !self.rolled_back {
            self.breaks(Invariant::TokensGrow);
        }
    }

    fn armed_anew(&mut self, owner: u8, cause: WriteCause) {
        let own = match cause.sender {
            Sender::Attempt(number) | Sender::Journal(number) => number + 1 == owner,
            Sender::Operator => false,
        };
        if cause.operation == Operation::Renew && !own {
            self.breaks(Invariant::RenewsItsOwn);
        }
    }

    fn released(&mut self, at: usize, operation: Operation) {
        let had_effect = self.effects[at] > 0;
        match operation {
            Operation::Release | Operation::Cancel(_) if had_effect && !self.forgot && !self.excused => {
                self.breaks(Invariant::NoReleaseAfterEffect);
            }
            // An operator who reopens a key accepts that the effect may happen again.
            Operation::Reopen { .. } if had_effect => self.excused = true,
            Operation::Release
            | Operation::Cancel(_)
            | Operation::Reopen { .. }
            | Operation::Begin
            | Operation::Renew
            | Operation::Complete
            | Operation::Abandon
            | Operation::Bury
            | Operation::Hold { .. }
            | Operation::Resolve { .. } => {}
        }
    }
}

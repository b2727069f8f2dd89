//! What happened so far, as far as an invariant asks for it.

use crate::ask::{Op, Who};
use crate::invariant::Invariant;
use crate::kept::{Answer, Kept, Stands};
use crate::store::{KEYS, Slot};

/// What happened, by key as the callers mean it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct History {
    /// How many effects an operation had; 2 stands for more.
    pub(crate) effects: [u8; KEYS],
    /// The answer of the first effect.
    pub(crate) produced: [Option<Answer>; KEYS],
    /// The ledger's row.
    pub(crate) ledger: [Option<Answer>; KEYS],
    /// The newest token that the resource saw.
    pub(crate) fence: u8,
    /// One bit for each answer that a caller was given.
    pub(crate) delivered: [u8; KEYS],
    /// One bit for each of them that was given as unrecorded.
    pub(crate) unrecorded: u8,
    /// The first answer that was recorded, by slot.
    pub(crate) completed: [Option<Answer>; KEYS],
    pub(crate) newest_token: u8,
    /// The store forgot a record, by amnesia or because its life was over.
    pub(crate) forgot: bool,
    /// A replica took over that lagged behind: a swap from before may bring its token back.
    pub(crate) rolled_back: bool,
    /// An effect was outside of what the record can know: without one, or after an operator said that there is none.
    pub(crate) excused: bool,
    broken: u32,
}

/// Why something is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause {
    pub(crate) who: Who,
    pub(crate) op: Op,
    /// Whether the lease was over when the record was looked at, and was not armed anew since.
    pub(crate) lapsed: bool,
}

impl History {
    pub(crate) fn broke(&self, invariant: Invariant) -> bool {
        self.broken & (1 << invariant as u32) != 0
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken != 0 || self.effects.iter().any(|effects| *effects > 1)
    }

    pub(crate) fn breaks(&mut self, invariant: Invariant) {
        self.broken |= 1 << invariant as u32;
    }

    /// A caller is given an answer.
    pub(crate) fn delivers(&mut self, key: usize, answer: Answer) {
        self.delivered[key] |= 1 << answer;
        if self.effects[key] == 0 {
            self.breaks(Invariant::AnswerHasEffect);
        }
    }

    /// An effect happens under this key.
    pub(crate) fn takes_effect(&mut self, key: usize, answer: Answer) {
        self.effects[key] = (self.effects[key] + 1).min(2);
        self.produced[key].get_or_insert(answer);
    }

    /// A record is about to be written into the slot.
    pub(crate) fn writes(&mut self, at: usize, slot: &Slot, next: &Kept, cause: Cause) {
        self.tokens_grow(slot, next, cause.op);
        self.fits(slot, next, cause.op);
        let before = slot.live().and_then(Kept::in_progress);
        match next.stands {
            Stands::InProgress(held) if slot.live() == Some(next) => self.armed_anew(held.owner, cause),
            Stands::InProgress(held) if held.is_abandoned() => {}
            Stands::InProgress(_) => {
                if self.completed[at].is_some() && !self.forgot {
                    self.breaks(Invariant::NoGrantAfterCompleted);
                }
                if before.is_some() && !cause.lapsed {
                    self.breaks(Invariant::OnlyTheLapsed);
                }
            }
            Stands::Indeterminate(_) => {
                if before.is_some() && !cause.lapsed {
                    self.breaks(Invariant::OnlyTheLapsed);
                }
            }
            Stands::Completed(answer) => {
                self.completed[at].get_or_insert(answer);
            }
            Stands::Released(_) => self.released(at, cause.op),
            Stands::Dead(_) => {}
        }
        self.newest_token = self.newest_token.max(next.token);
    }

    /// What somebody found out, and what a renewal may touch.
    fn fits(&mut self, slot: &Slot, next: &Kept, op: Op) {
        match op {
            Op::Hold { expected } | Op::Resolve { expected, .. } | Op::Reopen { expected } => {
                if slot.live().is_none_or(|record| record.token != expected) {
                    self.breaks(Invariant::VerdictFits);
                }
            }
            Op::Renew => {
                if next.in_progress().is_none() || slot.live() != Some(next) {
                    self.breaks(Invariant::RenewsItsOwn);
                }
            }
            Op::Begin | Op::Complete | Op::Release | Op::Abandon | Op::Bury | Op::Cancel(_) => {}
        }
    }

    /// Every token that is new must be newer than all before. A completion brings the token of its own grant, however old.
    fn tokens_grow(&mut self, slot: &Slot, next: &Kept, op: Op) {
        let grows = match op {
            Op::Begin => slot.live() != Some(next) && next.in_progress().is_some(),
            Op::Reopen { .. } => true,
            Op::Resolve { done, .. } => done.is_some(),
            Op::Renew | Op::Complete | Op::Release | Op::Abandon | Op::Bury | Op::Cancel(_) | Op::Hold { .. } => false,
        };
        if grows && next.token <= self.newest_token && !self.rolled_back {
            self.breaks(Invariant::TokensGrow);
        }
    }

    fn armed_anew(&mut self, owner: u8, cause: Cause) {
        let own = match cause.who {
            Who::Attempt(number) | Who::Journal(number) => number + 1 == owner,
            Who::Operator => false,
        };
        if cause.op == Op::Renew && !own {
            self.breaks(Invariant::RenewsItsOwn);
        }
    }

    fn released(&mut self, at: usize, op: Op) {
        let had_effect = self.effects[at] > 0;
        match op {
            Op::Release | Op::Cancel(_) if had_effect && !self.forgot && !self.excused => {
                self.breaks(Invariant::NoReleaseAfterEffect);
            }
            // Whoever reopens says that it may run again, whatever a takeover before it left.
            Op::Reopen { .. } if had_effect => self.excused = true,
            Op::Release
            | Op::Cancel(_)
            | Op::Reopen { .. }
            | Op::Begin
            | Op::Renew
            | Op::Complete
            | Op::Abandon
            | Op::Bury
            | Op::Hold { .. }
            | Op::Resolve { .. } => {}
        }
    }
}

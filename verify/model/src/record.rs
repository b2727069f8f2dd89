//! Compact records, which the model copies into millions of states.

use std::hash::{Hash, Hasher};

use bytes::Bytes;
use hapax_core::{
    Completion, Fingerprint, Holding, Millis, Owner, Phase, Record, Rule, Seconds, State, Timestamp, Token,
};

/// An answer, identified by the number of the attempt that gave it.
pub(crate) type AnswerId = u8;

/// The answer of an operator who does not know the original one.
pub(crate) const OPERATORS_ANSWER: AnswerId = 7;

const ANSWERS: [&[u8]; 8] = [&[0], &[1], &[2], &[3], &[4], &[5], &[6], &[7]];

/// The answer in the form of the machine.
pub(crate) fn bytes(answer: AnswerId) -> Bytes {
    Bytes::from_static(ANSWERS[usize::from(answer)])
}

/// The owner of the attempt with this number.
pub(crate) fn owner(number: u8) -> Owner {
    Owner([number; 16])
}

/// The fingerprint of a payload.
pub(crate) fn fingerprint(payload: u8) -> Fingerprint {
    Fingerprint::from_parts(Rule(1), [payload; Fingerprint::LEN])
}

/// Converts a token.
pub(crate) fn small(token: Token) -> u8 {
    u8::try_from(token.0).expect("a run of few steps mints few tokens")
}

/// A compact record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModelRecord {
    pub(crate) token: u8,
    pub(crate) payload: u8,
    pub(crate) state: ModelState,
}

/// The state of a compact record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ModelState {
    InProgress(ModelHolding),
    Completed(AnswerId),
    Released(ModelHolding),
    Indeterminate(ModelHolding),
    Dead(ModelHolding),
}

/// The attempt that holds a record, or held it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModelHolding {
    pub(crate) owner: u8,
    pub(crate) attempt: u8,
    pub(crate) takeover: bool,
    pub(crate) lease: u32,
    pub(crate) lifetime: u32,
}

impl ModelHolding {
    pub(crate) fn is_abandoned(self) -> bool {
        self.lease == 0
    }
}

impl ModelRecord {
    /// The holder, if an attempt is in progress.
    pub(crate) fn in_progress(&self) -> Option<ModelHolding> {
        match self.state {
            ModelState::InProgress(held) => Some(held),
            ModelState::Completed(_) | ModelState::Released(_) | ModelState::Indeterminate(_) | ModelState::Dead(_) => {
                None
            }
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        match self.state {
            ModelState::Dead(_) => true,
            ModelState::InProgress(_)
            | ModelState::Completed(_)
            | ModelState::Released(_)
            | ModelState::Indeterminate(_) => false,
        }
    }

    /// Whether the record leaves the outcome of its attempt open.
    pub(crate) fn is_unknown(&self) -> bool {
        match self.state {
            ModelState::InProgress(_) | ModelState::Indeterminate(_) => true,
            ModelState::Completed(_) | ModelState::Released(_) | ModelState::Dead(_) => false,
        }
    }

    pub(crate) fn answer(&self) -> Option<AnswerId> {
        match self.state {
            ModelState::Completed(answer) => Some(answer),
            ModelState::InProgress(_)
            | ModelState::Released(_)
            | ModelState::Indeterminate(_)
            | ModelState::Dead(_) => None,
        }
    }
}

/// Hashes one number: hashing states takes most of the time of an exploration.
impl Hash for ModelRecord {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let held = |tag: u8, held: ModelHolding| {
            let of_the_grant = u32::from_be_bytes([tag, held.owner, held.attempt, held.takeover.into()]);
            (of_the_grant, held.lease, held.lifetime)
        };
        let (tag, lease, lifetime) = match self.state {
            ModelState::InProgress(holder) => held(1, holder),
            ModelState::Completed(answer) => (u32::from_be_bytes([2, answer, 0, 0]), 0, 0),
            ModelState::Released(holder) => held(3, holder),
            ModelState::Indeterminate(holder) => held(4, holder),
            ModelState::Dead(holder) => held(5, holder),
        };
        let kept = u32::from(self.token) << 8 | u32::from(self.payload);
        hasher.write_u128(
            u128::from(kept) << 96 | u128::from(tag) << 64 | u128::from(lease) << 32 | u128::from(lifetime),
        );
    }
}

/// Drops the expiry that a completion shows, because nothing depends on it.
impl From<&Record> for ModelRecord {
    fn from(record: &Record) -> Self {
        let state = match &record.state {
            State::Open(Phase::InProgress, holding) => ModelState::InProgress(ModelHolding::from(holding)),
            State::Completed(completion) => ModelState::Completed(completion.answer[0]),
            State::Open(Phase::Released, holding) => ModelState::Released(ModelHolding::from(holding)),
            State::Open(Phase::Indeterminate, holding) => ModelState::Indeterminate(ModelHolding::from(holding)),
            State::Open(Phase::Dead, holding) => ModelState::Dead(ModelHolding::from(holding)),
        };
        Self { token: small(record.token), payload: record.fingerprint.as_bytes()[0], state }
    }
}

impl From<&ModelRecord> for Record {
    fn from(kept: &ModelRecord) -> Self {
        let state = match kept.state {
            ModelState::InProgress(held) => State::Open(Phase::InProgress, held.into()),
            ModelState::Completed(answer) => State::Completed(Completion::whole(bytes(answer), 0)),
            ModelState::Released(held) => State::Open(Phase::Released, held.into()),
            ModelState::Indeterminate(held) => State::Open(Phase::Indeterminate, held.into()),
            ModelState::Dead(held) => State::Open(Phase::Dead, held.into()),
        };
        Self { token: Token(kept.token.into()), fingerprint: fingerprint(kept.payload), state }
    }
}

impl From<&Holding> for ModelHolding {
    fn from(holding: &Holding) -> Self {
        Self {
            owner: holding.owner.0[0],
            attempt: u8::try_from(holding.attempt).expect("a run of few steps has few attempts"),
            takeover: holding.takeover,
            lease: holding.lease.0,
            lifetime: holding.lifetime.0,
        }
    }
}

impl From<ModelHolding> for Holding {
    fn from(held: ModelHolding) -> Self {
        Self {
            owner: owner(held.owner),
            attempt: held.attempt.into(),
            takeover: held.takeover,
            lease: Millis(held.lease),
            lifetime: Seconds(held.lifetime),
        }
    }
}

/// A reading of the store's clock, in microseconds: tokens are minted from it.
pub(crate) fn clock(reading: u8) -> Timestamp {
    Timestamp(reading.into())
}

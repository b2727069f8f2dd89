//! Records as the model keeps them: small enough to be copied into millions of states.

use std::hash::{Hash, Hasher};

use bytes::Bytes;
use hapax_core::{
    Completion, Fingerprint, Holding, Millis, Owner, Phase, Record, Rule, Seconds, State, Timestamp, Token,
};

/// An answer, named by the number of the attempt whose run gave it.
pub(crate) type Answer = u8;

/// The answer of an operator who tells it in words of their own.
pub(crate) const OPERATORS_WORDS: Answer = 7;

const ANSWERS: [&[u8]; 8] = [&[0], &[1], &[2], &[3], &[4], &[5], &[6], &[7]];

/// The answer as the machine takes it.
pub(crate) fn bytes(answer: Answer) -> Bytes {
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

/// A token of the model: a run of a few steps mints few.
pub(crate) fn small(token: Token) -> u8 {
    u8::try_from(token.0).expect("a run of few steps mints few tokens")
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kept {
    pub(crate) token: u8,
    pub(crate) payload: u8,
    pub(crate) stands: Stands,
}

/// Where the operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stands {
    InProgress(Held),
    Completed(Answer),
    Released(Held),
    Indeterminate(Held),
    Dead(Held),
}

/// Who holds a record, or held it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Held {
    pub(crate) owner: u8,
    pub(crate) attempt: u8,
    pub(crate) takeover: bool,
    pub(crate) lease: u32,
    pub(crate) lifetime: u32,
}

impl Held {
    pub(crate) fn is_abandoned(self) -> bool {
        self.lease == 0
    }
}

impl Kept {
    /// The holder, if an attempt is in progress.
    pub(crate) fn in_progress(&self) -> Option<Held> {
        match self.stands {
            Stands::InProgress(held) => Some(held),
            Stands::Completed(_) | Stands::Released(_) | Stands::Indeterminate(_) | Stands::Dead(_) => None,
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        match self.stands {
            Stands::Dead(_) => true,
            Stands::InProgress(_) | Stands::Completed(_) | Stands::Released(_) | Stands::Indeterminate(_) => false,
        }
    }

    /// Whether nobody can tell from the record what became of its attempt.
    pub(crate) fn is_unknown(&self) -> bool {
        match self.stands {
            Stands::InProgress(_) | Stands::Indeterminate(_) => true,
            Stands::Completed(_) | Stands::Released(_) | Stands::Dead(_) => false,
        }
    }

    pub(crate) fn answer(&self) -> Option<Answer> {
        match self.stands {
            Stands::Completed(answer) => Some(answer),
            Stands::InProgress(_) | Stands::Released(_) | Stands::Indeterminate(_) | Stands::Dead(_) => None,
        }
    }
}

/// In one piece: hashing states is most of what a walk does.
impl Hash for Kept {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let held = |tag: u8, held: Held| {
            let of_the_grant = u32::from_be_bytes([tag, held.owner, held.attempt, held.takeover.into()]);
            (of_the_grant, held.lease, held.lifetime)
        };
        let (tag, lease, lifetime) = match self.stands {
            Stands::InProgress(holder) => held(1, holder),
            Stands::Completed(answer) => (u32::from_be_bytes([2, answer, 0, 0]), 0, 0),
            Stands::Released(holder) => held(3, holder),
            Stands::Indeterminate(holder) => held(4, holder),
            Stands::Dead(holder) => held(5, holder),
        };
        let kept = u32::from(self.token) << 8 | u32::from(self.payload);
        hasher.write_u128(
            u128::from(kept) << 96 | u128::from(tag) << 64 | u128::from(lease) << 32 | u128::from(lifetime),
        );
    }
}

/// The expiry shown in a completion decides nothing, and is not kept.
impl From<&Record> for Kept {
    fn from(record: &Record) -> Self {
        let stands = match &record.state {
            State::Open(Phase::InProgress, holding) => Stands::InProgress(Held::from(holding)),
            State::Completed(completion) => Stands::Completed(completion.answer[0]),
            State::Open(Phase::Released, holding) => Stands::Released(Held::from(holding)),
            State::Open(Phase::Indeterminate, holding) => Stands::Indeterminate(Held::from(holding)),
            State::Open(Phase::Dead, holding) => Stands::Dead(Held::from(holding)),
        };
        Self { token: small(record.token), payload: record.fingerprint.as_bytes()[0], stands }
    }
}

impl From<&Kept> for Record {
    fn from(kept: &Kept) -> Self {
        let state = match kept.stands {
            Stands::InProgress(held) => State::Open(Phase::InProgress, held.into()),
            Stands::Completed(answer) => State::Completed(Completion { answer: bytes(answer), expiry: 0 }),
            Stands::Released(held) => State::Open(Phase::Released, held.into()),
            Stands::Indeterminate(held) => State::Open(Phase::Indeterminate, held.into()),
            Stands::Dead(held) => State::Open(Phase::Dead, held.into()),
        };
        Self { token: Token(kept.token.into()), fingerprint: fingerprint(kept.payload), state }
    }
}

impl From<&Holding> for Held {
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

impl From<Held> for Holding {
    fn from(held: Held) -> Self {
        Self {
            owner: owner(held.owner),
            attempt: held.attempt.into(),
            takeover: held.takeover,
            lease: Millis(held.lease),
            lifetime: Seconds(held.lifetime),
        }
    }
}

/// The store's clock at this reading: tokens are minted from it in microseconds.
pub(crate) fn clock(reading: u8) -> Timestamp {
    Timestamp(reading.into())
}

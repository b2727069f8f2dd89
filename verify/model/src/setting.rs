//! What a run of the model is given: who calls, under which policy, with which faults.

use std::time::Duration;

use hapax_core::machine::{Begin, Claim, Complete, Lapse};
use hapax_core::{Call, Identity, Key, Millis, RecordKey, Scope, Seconds, Token};

use crate::kept::{Answer, bytes, fingerprint, owner};
use crate::store::KEYS;

/// How long a grant is believed without renewal.
pub(crate) const LEASE: Millis = Millis(30_000);
/// How long a record lives whose outcome is not known.
pub(crate) const UNKNOWN_RETENTION: Seconds = Seconds(30 * 24 * 3600);
/// How long an answer is replayed.
pub(crate) const RETENTION: Seconds = Seconds(24 * 3600);
/// How long a released record lives.
pub(crate) const RELEASED_RETENTION: Seconds = Seconds(600);

/// One run of the model. Plain data.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The calls, one for each attempt: at most three.
    pub(crate) calls: &'static [Sent],
    pub(crate) on_lapse: Lapse,
    pub(crate) effect: Effect,
    pub(crate) operator: Operator,
    pub(crate) allowed: Allowed,
    pub(crate) clock: Clock,
    pub(crate) faults: Faults,
    pub(crate) wrong: Option<Wrong>,
}

/// A call as its client sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    /// Which tenant's, of two that use the same key.
    pub(crate) tenant: u8,
    pub(crate) payload: u8,
}

/// What the handler's effect is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It happens each time.
    Plain,
    /// A ledger row in the same transaction, under the derived id: it happens once, and has one answer.
    Ledger,
    /// The same under an id that each attempt mints.
    MintedIds,
    /// The resource refuses tokens older than the newest it saw.
    Fence,
}

/// Who resolves what is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Nobody,
    /// Finds out after nobody can act any more, and tells the effect's own answer.
    Careful,
    /// As careful, but tells the answer in words of their own.
    InOwnWords,
    /// Finds out while an attempt may still act.
    Hasty,
}

/// What else may be done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowed {
    /// An attempt that finds another one, or an unknown outcome, waits and begins again.
    pub(crate) waits: bool,
    /// A completion that is not confirmed is spilled.
    pub(crate) spills: bool,
    /// The handler runs without a record while the store is down.
    pub(crate) passes: bool,
    /// An attempt that finds an unknown outcome asks a probe, with an operator's care, and begins again.
    pub(crate) probes: bool,
    /// An attempt that applied nothing may be the last one.
    pub(crate) buries: bool,
}

/// What the store's clock tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// It stands in the past: tokens grow by what the store knows alone.
    Stands,
    /// It goes on: later than every token minted from it.
    GoesOn,
}

/// How many faults of each kind may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// Requests and replies lost, late, repeated or mixed up.
    pub(crate) network: u8,
    pub(crate) crashes: u8,
    /// Handlers that say anything else than "applied".
    pub(crate) errors: u8,
    /// The store forgets everything.
    pub(crate) amnesias: u8,
    /// A replica takes the store's place, with what it has.
    pub(crate) failovers: u8,
    /// A record's life ends.
    pub(crate) expiries: u8,
    /// The store's clock steps back.
    pub(crate) steps_back: u8,
    /// The operator looks.
    pub(crate) looks: u8,
}

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    ReleasesOnUnknown,
    RepliesBeforeRecording,
    LivesAsLongAsItsLease,
    /// A grant is believed for ever.
    HasNoLease,
    NeverCancels,
    CancelsOnce,
    /// The second cancellation waits for the begins to be gone, but not for the swaps that followed them.
    CancelsWhileSwapsAreUnderWay,
    ForgetsWhatItSpilled,
    AnswersForItselfWhenLost,
    TakesRepliesOfOtherKeys,
    RenewsWhileGivingBack,
    /// A swap does not raise the store's mark.
    MarksByBeginAlone,
    /// A hold is written over whatever stands there by then.
    HoldsBlindly,
    /// An attempt that applied nothing is released, but its ambiguous begin is not cancelled.
    ReleasesWithoutCancelling,
}

impl Setting {
    pub(crate) fn call(&self, attempt: u8) -> Sent {
        self.calls[usize::from(attempt)]
    }

    pub(crate) fn has_two_keys(&self) -> bool {
        self.calls.iter().any(|call| call.tenant != self.calls[0].tenant)
    }

    pub(crate) fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    /// The lifetime of a record whose outcome is not known.
    pub(crate) fn unknown_retention(&self) -> Seconds {
        if self.is(Wrong::LivesAsLongAsItsLease) { Seconds(LEASE.0 / 1000) } else { UNKNOWN_RETENTION }
    }

    /// What an attempt asks to begin. The number of its owner starts at 1.
    pub(crate) fn begin(&self, rk: RecordKey, number: u8, payload: u8) -> Begin {
        Begin {
            call: Call::new(rk).fingerprint(fingerprint(payload)),
            owner: owner(number),
            lease: LEASE,
            unknown_retention: self.unknown_retention(),
            on_lapse: self.on_lapse,
        }
    }
}

/// A completion by this attempt.
pub(crate) fn completion(claim: Claim, payload: u8, answer: Answer) -> Complete {
    Complete {
        claim,
        fingerprint: fingerprint(payload),
        answer: bytes(answer),
        retention: RETENTION,
        age: Duration::ZERO,
    }
}

/// Names the attempt that asks.
pub(crate) fn claim(number: u8, token: u8) -> Claim {
    Claim { owner: owner(number), token: Token(token.into()) }
}

/// The record keys of two tenants that use the same key.
pub(crate) fn record_keys() -> [RecordKey; KEYS] {
    let key = Key::new("order-7").expect("a short key is valid");
    ["first", "second"].map(|tenant| {
        let scope = Scope::tenant("model", tenant).expect("a short scope is valid");
        Identity::plain().record_key(&scope, &key)
    })
}

//! A setting of the model: its calls, its policy and its faults.

use std::time::Duration;

use hapax_core::machine::{Begin, Claim, Complete, Lapse};
use hapax_core::{Call, Identity, Key, Millis, RecordKey, Scope, Seconds, Timestamp, Token};

use crate::record::{AnswerId, bytes, fingerprint, owner};
use crate::store::KEYS;

/// The lease.
pub(crate) const LEASE: Millis = Millis(30_000);
/// How long a record lives while its outcome is unknown.
pub(crate) const UNKNOWN_RETENTION: Seconds = Seconds(30 * 24 * 3600);
/// How long an answer is replayed.
pub(crate) const RETENTION: Seconds = Seconds(24 * 3600);
/// How long a released record lives.
pub(crate) const RELEASED_RETENTION: Seconds = Seconds(600);

/// One setting of the model.
#[derive(Clone, Copy, Debug)]
pub struct ModelSetting {
    /// The calls, one for each attempt: at most three.
    pub(crate) calls: &'static [ModelCall],
    pub(crate) on_lapse: Lapse,
    pub(crate) effect: EffectKind,
    pub(crate) operator: OperatorKind,
    pub(crate) allowed: AllowedSteps,
    pub(crate) clock: StoreClock,
    pub(crate) faults: FaultBudget,
    pub(crate) broken_rule: Option<BrokenRule>,
}

/// A call as its client sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModelCall {
    /// The tenant. Both tenants use the same key.
    pub(crate) tenant: u8,
    pub(crate) payload: u8,
}

/// What protects the handler's effect from happening twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EffectKind {
    /// Nothing: it happens each time.
    Plain,
    /// A ledger row in the same transaction, under the derived id. The effect happens once and has one answer. All of
    /// it is one step.
    Ledger,
    /// The same in steps: a claim that finds a lock, a row or neither; then a COMMIT that may get no reply.
    Transaction,
    /// A ledger row under an id that each attempt mints.
    MintedIds,
    /// The resource refuses tokens that are older than the newest one it saw.
    Fence,
}

/// How an operator resolves unknown outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorKind {
    Nobody,
    /// Waits until no attempt can have an effect, and records the original answer.
    Careful,
    /// Waits likewise, but records an answer of their own.
    OwnAnswer,
    /// Resolves while an attempt may still have an effect.
    Hasty,
}

/// Optional behaviour of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AllowedSteps {
    /// An attempt that finds another attempt or an unknown outcome waits and begins again.
    pub(crate) waits: bool,
    /// An unconfirmed completion is spilled.
    pub(crate) spills: bool,
    /// The handler runs without a record while the store is down.
    pub(crate) passes: bool,
    /// An attempt that finds an unknown outcome calls a probe, resolves the record, and begins again.
    pub(crate) probes: bool,
    /// An attempt that applied nothing may close the key.
    pub(crate) buries: bool,
}

/// The store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreClock {
    /// It stands in the past. Tokens grow only because of the tokens that the store remembers.
    ModelState,
    /// It runs: each reading is later than every token minted before.
    GoesOn,
}

/// How many faults of each kind may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FaultBudget {
    /// Requests and replies lost, late, repeated or mixed up.
    pub(crate) network: u8,
    pub(crate) crashes: u8,
    /// Handlers that report any outcome but "applied".
    pub(crate) errors: u8,
    /// The store forgets everything.
    pub(crate) amnesias: u8,
    /// A replica replaces the store, with the records that it has.
    pub(crate) failovers: u8,
    /// A record expires.
    pub(crate) expiries: u8,
    /// The store's clock steps back.
    pub(crate) steps_back: u8,
    /// The operator reads the record.
    pub(crate) looks: u8,
}

/// A rule of the engine that a forbidden setting breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BrokenRule {
    ReleasesOnUnknown,
    RepliesBeforeRecording,
    LivesAsLongAsItsLease,
    /// A lease never expires.
    HasNoLease,
    NeverCancels,
    CancelsOnce,
    /// The second cancellation waits until no begin is in transit, but does not wait for the swaps of those begins.
    CancelsWhileSwapsAreUnderWay,
    ForgetsWhatItSpilled,
    ReturnsOwnAnswerWhenLost,
    TakesRepliesOfOtherKeys,
    RenewsWhileGivingBack,
    /// A swap does not raise the store's high-water mark.
    MarksByBeginAlone,
    /// A hold overwrites the record without comparing it.
    HoldsBlindly,
    /// An attempt that applied nothing is released, but its ambiguous begin is not cancelled.
    ReleasesWithoutCancelling,
    /// The store carries out a begin in one step, also where a live record exists.
    BeginsInOneStep,
    /// The row of the ledger commits before the transaction of the effect, without an answer.
    CommitsTheClaimFirst,
    /// The handler has its effect outside the transaction of its claim.
    ActsOutsideTheTransaction,
    /// A claim takes no lock, and a commit does not compare the row.
    ClaimsWithoutLock,
    /// A COMMIT without a reply counts as committed.
    TrustsLostCommits,
    /// A database that is not available after a COMMIT without a reply counts as "not applied".
    ForgetsOpenCommits,
    /// A row is replayed to every payload.
    ReplaysAnyPayload,
    /// A caller that finds its operation busy gets the answer that it expects of the other transaction.
    TakesBusyForDone,
}

impl ModelSetting {
    pub(crate) fn call(&self, attempt: u8) -> ModelCall {
        self.calls[usize::from(attempt)]
    }

    pub(crate) fn has_two_keys(&self) -> bool {
        self.calls.iter().any(|call| call.tenant != self.calls[0].tenant)
    }

    pub(crate) fn has_transactions(&self) -> bool {
        self.effect == EffectKind::Transaction
    }

    pub(crate) fn violates(&self, rule: BrokenRule) -> bool {
        self.broken_rule == Some(rule)
    }

    /// The lifetime of a record while its outcome is unknown.
    pub(crate) fn unknown_retention(&self) -> Seconds {
        if self.violates(BrokenRule::LivesAsLongAsItsLease) { Seconds(LEASE.0 / 1000) } else { UNKNOWN_RETENTION }
    }

    /// The begin of an attempt. Owners are numbered from 1.
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

/// The completion of an attempt.
pub(crate) fn completion(claim: Claim, payload: u8, answer: AnswerId) -> Complete {
    Complete {
        claim,
        fingerprint: fingerprint(payload),
        answer: bytes(answer),
        retention: RETENTION,
        ended: Timestamp(0),
        age: Duration::ZERO,
    }
}

/// The claim of an attempt.
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

//! The whole protocol, pure: what was observed and what is asked give a reply, or a change and its reply.
//!
//! One function per operation, one arm per row of the table. Nothing here waits, reads a clock or draws a number; stores
//! carry out the changes, each as one conditional step, and nobody else decides.
//!
//! ```text
//!           begin: absent                          begin: Released
//! (none) ───────────────► InProgress ◄──────────────────────────────── Released ◄── reopen ── Dead
//!                          │  │  │ └─ release, cancel: not applied ────►  │ ▲                   ▲
//!                          │  │  └─── bury: too many attempts ───────────┼─┼───────────────────┘
//!                          │  └ begin, hold: lapsed ► Indeterminate ─────┼─┘ resolve: not done
//!                          └── complete ─────────► Completed ◄───────────┘ complete, resolve: done
//! ```
//!
//! Four sentences carry the safety:
//! - A lapse is only a reason to ask again: it never erases that an attempt existed, its fingerprint or its token.
//! - Every write after a begin names its owner and token, so what arrives late changes nothing that is not its own.
//! - Only "known not applied" gives a key back; dropped, timed out and failed all mean *unknown*.
//! - A known effect beats everything but a recorded answer.

use std::time::Duration;

use bytes::Bytes;

use crate::key::{Call, Fingerprint, RecordKey};
use crate::record::{Completion, Holding, Millis, Owner, Phase, Record, Seconds, State, Timestamp, Token};

/// What a store saw for one record key, read in one step.
///
/// ```
/// # let (_, _, mut seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
/// use std::time::Duration;
///
/// // An attempt was granted a second ago.
/// assert!(seen.runs());
/// seen.lease_left = Duration::ZERO;
/// assert!(!seen.runs() && seen.live().is_some(), "a lapse erases nothing");
/// seen.life_left = Duration::ZERO;
/// assert!(seen.live().is_none(), "past its life it counts as absent");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The record, or nothing; one with no life left counts as nothing.
    pub record: Option<Record>,
    /// How much of the lease is left; zero when it lapsed, and for records that are not in progress.
    pub lease_left: Duration,
    /// How long the record has still to live.
    pub life_left: Duration,
    /// The store's clock.
    pub now: Timestamp,
    /// The largest token the store knows of, under any key.
    pub token_high_water: Token,
}

impl Observed {
    /// The record, unless it expired.
    pub fn live(&self) -> Option<&Record> {
        self.record.as_ref().filter(|_| !self.life_left.is_zero() || crate::chaos::on("expired_is_live"))
    }

    /// Whether an attempt runs, as far as its lease tells.
    pub fn runs(&self) -> bool {
        let in_progress = matches!(self.live().map(|record| &record.state), Some(State::Open(Phase::InProgress, _)));
        in_progress && !self.lease_left.is_zero()
    }

    /// When the record came to its state or was last renewed, by the age of its life.
    fn since(&self, holding: &Holding) -> Timestamp {
        let age = Duration::from(holding.lifetime).saturating_sub(self.life_left);
        Timestamp(self.now.0.saturating_sub(u64::try_from(age.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// The machine's word on an operation.
///
/// ```
/// use hapax_core::machine::{Decision, Observed};
/// use hapax_core::store::{Store, Swapped};
/// use hapax_core::{RecordKey, Result};
///
/// /// Nothing means that the record changed since it was seen: read it and judge again.
/// async fn carry_out<R>(store: &dyn Store, rk: &RecordKey, seen: &Observed, decided: Decision<R>) -> Result<Option<R>> {
///     match decided {
///         Decision::Reply(reply) => Ok(Some(reply)),
///         Decision::Change(next, reply) => Ok((store.swap(rk, seen, &next).await? == Swapped::Yes).then_some(reply)),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision<R> {
    /// Nothing changes; this is the reply.
    Reply(R),
    /// This is the reply once the change was made, provided that nothing changed since it was observed.
    Change(Change, R),
}

/// A record to be written, and how long it lives from then.
///
/// ```
/// use hapax_core::machine::Change;
/// use hapax_core::{RecordKey, Timestamp};
///
/// /// What a store writes that keeps one value for each key, and when that expires.
/// fn written(rk: &RecordKey, change: &Change, now: Timestamp) -> (bytes::Bytes, Timestamp) {
///     (change.record.encode(rk), now.plus(change.lifetime.into()))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The new record. Writing it arms its lease and its life anew.
    pub record: Record,
    /// Its life from the moment of writing.
    pub lifetime: Seconds,
}

/// What becomes of a record whose lease ran out, when the next begin finds it.
///
/// ```
/// # let (ask, _, mut seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
///
/// use std::time::Duration;
/// use hapax_core::Owner;
/// use hapax_core::machine::{Begin, Begun, Decision, Lapse, begin};
///
/// // The attempt before ended without a word, and another one asks.
/// seen.lease_left = Duration::ZERO;
/// let ask = Begin { owner: Owner([2; 16]), ..ask };
/// let held = begin(&seen, &Begin { on_lapse: Lapse::Hold, ..ask });
/// assert!(matches!(held, Decision::Change(_, Begun::Indeterminate(_))));
/// let taken_over = begin(&seen, &Begin { on_lapse: Lapse::Retry, ..ask });
/// assert!(matches!(taken_over, Decision::Change(_, Begun::Granted(grant)) if grant.takeover && grant.attempt == 2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lapse {
    /// The begin takes over and runs again: only for effects that are safe to repeat.
    Retry,
    /// The record becomes indeterminate until somebody knows.
    Hold,
}

/// Asks for a grant.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax_core::Result<()> {
/// # use hapax_core::store::Memory;
/// # let store = Memory::new();
/// use hapax_core::machine::{Begin, Begun, Lapse};
/// use hapax_core::store::Protocol;
/// use hapax_core::{Call, Millis, Owner, RecordKey, Seconds};
///
/// let ask = Begin {
///     call: Call::new(RecordKey::from_bytes([7; 16])),
///     owner: Owner([1; 16]),
///     lease: Millis(30_000),
///     unknown_retention: Seconds(30 * 24 * 3600),
///     on_lapse: Lapse::Hold,
/// };
/// assert!(matches!(Protocol::over(&store).begin(&ask).await?, Begun::Granted(_)));
/// // The reply was lost? The very same begin again.
/// assert!(matches!(Protocol::over(&store).begin(&ask).await?, Begun::Mine(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Begin {
    /// The operation and its payload.
    pub call: Call,
    /// The attempt, the same for each repetition of this begin.
    pub owner: Owner,
    /// How long the grant is believed without renewal.
    pub lease: Millis,
    /// How long a record lives whose outcome is not known.
    pub unknown_retention: Seconds,
    /// What to do with a record whose lease ran out.
    pub on_lapse: Lapse,
}

/// The right to run an operation, until its lease ends or somebody takes over.
///
/// ```
/// use hapax_core::machine::Grant;
///
/// /// What the service behind has to know: as what to do it, and which attempt's late writes to refuse.
/// fn introduced(grant: &Grant) -> [(&'static str, String); 2] {
///     [("operation", grant.rk.operation().to_string()), ("token", grant.token.0.to_string())]
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The record.
    pub rk: RecordKey,
    /// The attempt it was granted to.
    pub owner: Owner,
    /// The fencing token to hand to whatever the attempt writes to.
    pub token: Token,
    /// Which attempt this is, from 1.
    pub attempt: u16,
    /// Whether an earlier attempt lapsed: its effect may have happened.
    pub takeover: bool,
    /// The payload's fingerprint as the record carries it.
    pub fingerprint: Fingerprint,
}

/// The reply to a begin.
///
/// ```
/// use hapax_core::machine::Begun;
///
/// /// Whether to run it, or else what to tell the caller.
/// fn told(begun: &Begun) -> Result<(), &'static str> {
///     match begun {
///         Begun::Granted(_) | Begun::Mine(_) => Ok(()),
///         Begun::Busy(_) => Err("it runs; come back"),
///         Begun::Replay(_) => Err("it happened; here is the answer"),
///         Begun::Mismatch => Err("the key stands for something else"),
///         Begun::Indeterminate(_) | Begun::Dead => Err("nobody knows; an operator must look"),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Run it.
    Granted(Grant),
    /// It was granted to this very owner before: an earlier begin got through and its reply was lost.
    Mine(Grant),
    /// Another attempt runs; its lease ends after this.
    Busy(Duration),
    /// It happened, and this is its answer.
    Replay(Completion),
    /// The key was used for another payload.
    Mismatch,
    /// Nobody knows whether it happened, since then.
    Indeterminate(Timestamp),
    /// It is closed after too many attempts.
    Dead,
}

/// Judges a begin. Expired counts as absent, here and for every operation.
///
/// ```
/// use std::time::Duration;
/// use hapax_core::machine::{Begin, Begun, Decision, Lapse, Observed, begin};
/// use hapax_core::{Call, Millis, Owner, RecordKey, Seconds, Timestamp, Token};
///
/// let ask = Begin {
///     call: Call::new(RecordKey::from_bytes([7; 16])),
///     owner: Owner([1; 16]),
///     lease: Millis(30_000),
///     unknown_retention: Seconds(3600),
///     on_lapse: Lapse::Hold,
/// };
/// let mut seen = Observed {
///     record: None,
///     lease_left: Duration::ZERO,
///     life_left: Duration::ZERO,
///     now: Timestamp(1_800_000_000_000_000),
///     token_high_water: Token(0),
/// };
/// let Decision::Change(change, Begun::Granted(_)) = begin(&seen, &ask) else { panic!("nothing is there") };
///
/// // Another attempt, a second later.
/// (seen.record, seen.lease_left, seen.life_left) =
///     (Some(change.record), Duration::from_secs(29), Duration::from_secs(3599));
/// let twin = Begin { owner: Owner([2; 16]), ..ask };
/// assert_eq!(begin(&seen, &twin), Decision::Reply(Begun::Busy(Duration::from_secs(29))));
/// ```
pub fn begin(seen: &Observed, ask: &Begin) -> Decision<Begun> {
    #[cfg(feature = "chaos")]
    if let Some(wrong) = crate::chaos::begin(seen, ask) {
        return wrong;
    }
    let Some(record) = seen.live() else {
        let (change, grant) = first_grant(ask, seen);
        return Decision::Change(change, Begun::Granted(grant));
    };
    if !ask.call.accepts(record.fingerprint) {
        return Decision::Reply(Begun::Mismatch);
    }
    match &record.state {
        State::Completed(completion) => Decision::Reply(Begun::Replay(completion.clone())),
        State::Open(Phase::Indeterminate, holding) => Decision::Reply(Begun::Indeterminate(seen.since(holding))),
        State::Open(Phase::Dead, _) => Decision::Reply(Begun::Dead),
        State::Open(Phase::Released, holding) => next_grant(ask, seen, record, holding, false),
        State::Open(Phase::InProgress, holding) => begin_in_progress(seen, ask, record, holding),
    }
}

fn begin_in_progress(seen: &Observed, ask: &Begin, record: &Record, holding: &Holding) -> Decision<Begun> {
    let lease = Duration::from(holding.lease);
    if holding.owner == ask.owner && !holding.abandoned() {
        return Decision::Change(
            rearmed(record, holding),
            Begun::Mine(grant_of(ask.call.record_key(), record, holding)),
        );
    }
    if !lapsed(seen, holding) {
        if seen.lease_left <= lease {
            return Decision::Reply(Begun::Busy(seen.lease_left));
        }
        // The store's clock stepped back. Armed anew, the record is stuck for one lease instead of for the step.
        return Decision::Change(rearmed(record, holding), Begun::Busy(lease));
    }
    match ask.on_lapse {
        Lapse::Retry => next_grant(ask, seen, record, holding, true),
        Lapse::Hold => Decision::Change(held(record, holding, ask.unknown_retention), Begun::Indeterminate(seen.now)),
    }
}

/// Abandoned means lapsed for good, also on a clock that stepped back.
fn lapsed(seen: &Observed, holding: &Holding) -> bool {
    holding.abandoned() || seen.lease_left.is_zero()
}

/// The first grant of a record key, for the step in which a store finds no live record.
///
/// `seen` says what the store knows in that step: its clock, its mark and, where an expired record is still there, that one.
///
/// ```
/// # let (ask, before, seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
///
/// use hapax_core::Token;
/// use hapax_core::machine::{Observed, first_grant};
///
/// // A store that found nothing, and has handed out tokens up to the mark.
/// let seen = Observed { record: None, token_high_water: Token(before.token.0 + 10_000_000), ..seen };
/// let (change, grant) = first_grant(&ask, &seen);
/// assert!(grant.token > seen.token_high_water && grant.attempt == 1);
/// assert_eq!(change.record.token, grant.token);
/// ```
pub fn first_grant(ask: &Begin, seen: &Observed) -> (Change, Grant) {
    granted(ask, mint(seen), ask.call.newest_fingerprint(), 1, false)
}

fn next_grant(ask: &Begin, seen: &Observed, record: &Record, before: &Holding, takeover: bool) -> Decision<Begun> {
    let attempt = before.attempt.saturating_add(1);
    let (change, grant) = granted(ask, mint(seen), record.fingerprint, attempt, takeover);
    Decision::Change(change, Begun::Granted(grant))
}

fn granted(ask: &Begin, token: Token, fingerprint: Fingerprint, attempt: u16, takeover: bool) -> (Change, Grant) {
    let holding = Holding { owner: ask.owner, attempt, takeover, lease: ask.lease, lifetime: ask.unknown_retention };
    let record = Record { token, fingerprint, state: State::Open(Phase::InProgress, holding) };
    let grant = grant_of(ask.call.record_key(), &record, &holding);
    #[cfg_attr(not(feature = "chaos"), expect(unused_mut, reason = "a bug may shorten its life"))]
    let mut change = Change { record, lifetime: holding.lifetime };
    #[cfg(feature = "chaos")]
    crate::chaos::granted(&mut change);
    (change, grant)
}

fn grant_of(rk: RecordKey, record: &Record, holding: &Holding) -> Grant {
    Grant {
        rk,
        owner: holding.owner,
        token: record.token,
        attempt: holding.attempt,
        takeover: holding.takeover,
        fingerprint: record.fingerprint,
    }
}

/// A token above every one seen: of the record, of the store, and of the past, as its clock in microseconds tells it.
fn mint(seen: &Observed) -> Token {
    let previous = seen.record.as_ref().map_or(Token(0), |record| record.token);
    let after = previous.max(seen.token_high_water).0.saturating_add(1);
    Token(after.max(seen.now.0))
}

fn rearmed(record: &Record, holding: &Holding) -> Change {
    Change { record: record.clone(), lifetime: holding.lifetime }
}

fn held(record: &Record, holding: &Holding, unknown_retention: Seconds) -> Change {
    moved(record, Phase::Indeterminate, Holding { lifetime: unknown_retention, ..*holding })
}

/// The same grant in another state.
fn moved(record: &Record, phase: Phase, holding: Holding) -> Change {
    Change { record: Record { state: State::Open(phase, holding), ..record.clone() }, lifetime: holding.lifetime }
}

/// Names the attempt that asks: every write after a begin carries it.
///
/// ```
/// # let (_, grant, seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
///
/// use hapax_core::machine::{Claim, Decision, Renewed, renew};
/// use hapax_core::{Owner, Token};
///
/// let claim = Claim::from(&grant);
/// assert!(matches!(renew(&seen, &claim), Decision::Change(..)));
/// // Owner and token: either alone is not enough.
/// for other in [Claim { owner: Owner([2; 16]), ..claim }, Claim { token: Token(claim.token.0 + 1), ..claim }] {
///     assert_eq!(renew(&seen, &other), Decision::Reply(Renewed::Lost));
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The attempt.
    pub owner: Owner,
    /// The token of its grant.
    pub token: Token,
}

impl From<&Grant> for Claim {
    fn from(grant: &Grant) -> Self {
        Self { owner: grant.owner, token: grant.token }
    }
}

impl Claim {
    fn holds(&self, record: &Record, holding: &Holding) -> bool {
        record.token == self.token && holding.owner == self.owner
    }
}

/// The reply to a renewal.
///
/// ```
/// use hapax_core::machine::Renewed;
///
/// /// Whether the handler may begin something new.
/// fn goes_on(renewed: Renewed) -> bool {
///     match renewed {
///         Renewed::Yes => true,
///         Renewed::Lost => false,
///         // The store forgot it; nobody else was granted it.
///         Renewed::Gone => true,
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lease runs anew.
    Yes,
    /// The grant is no longer this attempt's.
    Lost,
    /// There is no record: the store forgot it.
    Gone,
}

/// Judges a renewal.
///
/// ```
/// # let (_, grant, mut seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
///
/// use std::time::Duration;
/// use hapax_core::machine::{Claim, Decision, Renewed, renew};
///
/// // Late, but nobody has asked since: the grant still stands.
/// seen.lease_left = Duration::ZERO;
/// assert!(matches!(renew(&seen, &Claim::from(&grant)), Decision::Change(_, Renewed::Yes)));
/// ```
pub fn renew(seen: &Observed, claim: &Claim) -> Decision<Renewed> {
    #[cfg(feature = "chaos")]
    if let Some(wrong) = crate::chaos::renew(seen, claim) {
        return wrong;
    }
    let Some(record) = seen.live() else {
        return Decision::Reply(Renewed::Gone);
    };
    match &record.state {
        State::Open(Phase::InProgress, holding) if claim.holds(record, holding) && !holding.abandoned() => {
            Decision::Change(rearmed(record, holding), Renewed::Yes)
        }
        State::Completed(_) | State::Open(..) => Decision::Reply(Renewed::Lost),
    }
}

/// Records the answer of an attempt.
///
/// ```
/// # let (_, grant, seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
///
/// use std::time::Duration;
/// use hapax_core::Seconds;
/// use hapax_core::machine::{Claim, Complete, Completed, Decision, complete};
///
/// let ask = Complete {
///     claim: Claim::from(&grant),
///     fingerprint: grant.fingerprint,
///     answer: "charged".into(),
///     retention: Seconds(24 * 3600),
///     age: Duration::ZERO,
/// };
/// assert!(matches!(complete(&seen, &ask), Decision::Change(_, Completed::Done)));
/// ```
#[derive(Clone, Debug)]
pub struct Complete {
    /// The attempt that has the answer.
    pub claim: Claim,
    /// The payload's fingerprint as the grant carries it.
    pub fingerprint: Fingerprint,
    /// The answer.
    pub answer: Bytes,
    /// How long the answer lives once it is recorded.
    pub retention: Seconds,
    /// How long ago the attempt ended, on its own clock: an answer older than its retention does not come back.
    pub age: Duration,
}

/// The reply to a completion.
///
/// ```
/// use hapax_core::State;
/// use hapax_core::machine::Completed;
///
/// /// Which answer a caller may be given: this attempt's own, another one's that was recorded first, or none.
/// fn given(own: bytes::Bytes, completed: Completed) -> Option<bytes::Bytes> {
///     match completed {
///         Completed::Done | Completed::Recreated | Completed::Already => Some(own),
///         Completed::Lost(record) => match record.state {
///             State::Completed(first) => Some(first.answer),
///             _ => None,
///         },
///         Completed::Gone => None,
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completed {
    /// The answer is recorded.
    Done,
    /// The store had forgotten the record; the answer is recorded all the same.
    Recreated,
    /// It had been recorded under this token before.
    Already,
    /// Something else stands there, and stays.
    Lost(Record),
    /// The record is gone and the answer is past its retention.
    Gone,
}

/// Judges a completion: a known effect beats everything but a recorded answer.
///
/// ```
/// # let (_, grant, mut seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
///
/// use std::time::Duration;
/// use hapax_core::Seconds;
/// use hapax_core::machine::{Claim, Complete, Completed, Decision, complete};
///
/// let (answer, claim) = ("charged".into(), Claim::from(&grant));
/// let ask =
///     Complete { claim, fingerprint: grant.fingerprint, answer, retention: Seconds(24 * 3600), age: Duration::ZERO };
/// // Long after its lease: what is known to have happened is recorded all the same.
/// seen.lease_left = Duration::ZERO;
/// let Decision::Change(change, Completed::Done) = complete(&seen, &ask) else { panic!("nobody else has an answer") };
/// // The reply was lost, and it is asked again.
/// seen.record = Some(change.record);
/// assert_eq!(complete(&seen, &ask), Decision::Reply(Completed::Already));
/// ```
pub fn complete(seen: &Observed, ask: &Complete) -> Decision<Completed> {
    #[cfg(feature = "chaos")]
    if let Some(wrong) = crate::chaos::complete(seen, ask) {
        return wrong;
    }
    let token = ask.claim.token;
    let change = || completed(ask.fingerprint, token, &ask.answer, ask.retention, seen.now);
    let Some(record) = seen.live() else {
        return if ask.age < Duration::from(ask.retention) {
            Decision::Change(change(), Completed::Recreated)
        } else {
            Decision::Reply(Completed::Gone)
        };
    };
    let wins = match &record.state {
        State::Completed(_) if record.token == token => return Decision::Reply(Completed::Already),
        State::Completed(_) => false,
        State::Open(Phase::InProgress | Phase::Released | Phase::Indeterminate, holding) if record.token == token => {
            holding.owner == ask.claim.owner
        }
        State::Open(Phase::Dead, _) if record.token == token => false,
        State::Open(..) => record.fingerprint == ask.fingerprint,
    };
    if wins { Decision::Change(change(), Completed::Done) } else { Decision::Reply(Completed::Lost(record.clone())) }
}

fn completed(fingerprint: Fingerprint, token: Token, answer: &Bytes, retention: Seconds, now: Timestamp) -> Change {
    let completion = Completion { answer: answer.clone(), expiry: now.plus(retention.into()).seconds() };
    Change { record: Record { token, fingerprint, state: State::Completed(completion) }, lifetime: retention }
}

/// The reply to an attempt that gives its grant back.
///
/// ```
/// use hapax_core::machine::Settled;
///
/// fn note(settled: Settled) -> &'static str {
///     match settled {
///         Settled::Yes => "it is given back, by this call or an earlier one",
///         Settled::Lost => "somebody else has it by now, and keeps it",
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// So it stands now, or stood already.
    Yes,
    /// The record is no longer this attempt's.
    Lost,
}

/// Judges a release, "known not applied". `lifetime` is that of the released record.
///
/// After a takeover the attempt before is still unknown, so nothing is released: the record is abandoned, or stays indeterminate.
///
/// ```
/// # let (ask, grant, mut seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
///
/// use hapax_core::machine::{Begun, Claim, Decision, Settled, begin, release};
/// use hapax_core::{Phase, Seconds, State};
///
/// let decided = release(&seen, &Claim::from(&grant), Seconds(600));
/// let Decision::Change(change, Settled::Yes) = decided else { panic!("it is this attempt's") };
/// assert!(matches!(change.record.state, State::Open(Phase::Released, _)));
/// // The next begin is granted at once, under a higher token.
/// seen.record = Some(change.record);
/// assert!(matches!(begin(&seen, &ask), Decision::Change(_, Begun::Granted(next)) if next.token > grant.token));
/// ```
pub fn release(seen: &Observed, claim: &Claim, lifetime: Seconds) -> Decision<Settled> {
    #[cfg(feature = "chaos")]
    if let Some(wrong) = crate::chaos::release(seen, claim, lifetime) {
        return wrong;
    }
    let Some(record) = seen.live() else {
        return Decision::Reply(Settled::Lost);
    };
    match &record.state {
        State::Open(Phase::InProgress, holding) if claim.holds(record, holding) => {
            if holding.takeover {
                abandoned(record, holding)
            } else {
                Decision::Change(moved(record, Phase::Released, Holding { lifetime, ..*holding }), Settled::Yes)
            }
        }
        State::Open(Phase::Indeterminate, holding) if claim.holds(record, holding) => {
            if holding.takeover {
                Decision::Reply(Settled::Yes)
            } else {
                Decision::Change(moved(record, Phase::Released, Holding { lifetime, ..*holding }), Settled::Yes)
            }
        }
        State::Open(Phase::Released, holding) if claim.holds(record, holding) => Decision::Reply(Settled::Yes),
        State::Completed(_) | State::Open(..) => Decision::Reply(Settled::Lost),
    }
}

fn abandoned(record: &Record, holding: &Holding) -> Decision<Settled> {
    if holding.abandoned() {
        return Decision::Reply(Settled::Yes);
    }
    Decision::Change(moved(record, Phase::InProgress, Holding { lease: Millis(0), ..*holding }), Settled::Yes)
}

/// The reply to a cancellation.
///
/// ```
/// use hapax_core::machine::Cancelled;
///
/// fn note(cancelled: Cancelled) -> &'static str {
///     match cancelled {
///         Cancelled::Yes => "the begin had got through; its grant is given back",
///         Cancelled::Gone => "nothing of the begin is there, or not yet: ask once more when it cannot be under way",
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// The attempt holds nothing any more.
    Yes,
    /// It holds nothing that can be given back.
    Gone,
}

/// Judges the cancellation of an attempt whose begin was ambiguous and whose handler was not started: the owner alone names it.
///
/// ```
/// # let (ask, _, seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
///
/// use hapax_core::machine::{Cancelled, Decision, cancel};
/// use hapax_core::{Owner, Seconds};
///
/// // Whoever never heard of its grant knows no token.
/// assert!(matches!(cancel(&seen, ask.owner, Seconds(600)), Decision::Change(_, Cancelled::Yes)));
/// assert_eq!(cancel(&seen, Owner([2; 16]), Seconds(600)), Decision::Reply(Cancelled::Gone));
/// ```
pub fn cancel(seen: &Observed, owner: Owner, lifetime: Seconds) -> Decision<Cancelled> {
    let Some(token) = seen.live().map(|record| record.token) else {
        return Decision::Reply(Cancelled::Gone);
    };
    let reply = |settled| match settled {
        Settled::Yes => Cancelled::Yes,
        Settled::Lost => Cancelled::Gone,
    };
    match release(seen, &Claim { owner, token }, lifetime) {
        Decision::Reply(settled) => Decision::Reply(reply(settled)),
        Decision::Change(change, settled) => Decision::Change(change, reply(settled)),
    }
}

/// Judges an abandonment: the outcome is unknown and the attempt has ended, so the lease is over for good.
///
/// ```
/// # let (ask, grant, mut seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
///
/// use hapax_core::Owner;
/// use hapax_core::machine::{Begin, Begun, Claim, Decision, Settled, abandon, begin};
///
/// let decided = abandon(&seen, &Claim::from(&grant));
/// let Decision::Change(change, Settled::Yes) = decided else { panic!("it is this attempt's") };
/// // Nobody has to wait for the lease to learn that nobody knows.
/// seen.record = Some(change.record);
/// let copy = Begin { owner: Owner([2; 16]), ..ask };
/// assert!(matches!(begin(&seen, &copy), Decision::Change(_, Begun::Indeterminate(_))));
/// ```
pub fn abandon(seen: &Observed, claim: &Claim) -> Decision<Settled> {
    let Some(record) = seen.live() else {
        return Decision::Reply(Settled::Lost);
    };
    match &record.state {
        State::Open(Phase::InProgress, holding) if claim.holds(record, holding) => abandoned(record, holding),
        State::Open(Phase::Indeterminate, holding) if claim.holds(record, holding) => Decision::Reply(Settled::Yes),
        State::Completed(_) | State::Open(..) => Decision::Reply(Settled::Lost),
    }
}

/// Judges a burial: the attempt was the last one. `lifetime` is that of the dead record.
///
/// ```
/// # let (ask, grant, mut seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
///
/// use hapax_core::Seconds;
/// use hapax_core::machine::{Begun, Claim, Decision, Settled, begin, bury};
///
/// let decided = bury(&seen, &Claim::from(&grant), Seconds(30 * 24 * 3600));
/// let Decision::Change(change, Settled::Yes) = decided else { panic!("it is this attempt's") };
/// seen.record = Some(change.record);
/// assert_eq!(begin(&seen, &ask), Decision::Reply(Begun::Dead));
/// ```
pub fn bury(seen: &Observed, claim: &Claim, lifetime: Seconds) -> Decision<Settled> {
    let Some(record) = seen.live() else {
        return Decision::Reply(Settled::Lost);
    };
    let burial = |holding: &Holding| {
        Decision::Change(moved(record, Phase::Dead, Holding { lifetime, ..*holding }), Settled::Yes)
    };
    match &record.state {
        State::Open(Phase::InProgress, holding) if claim.holds(record, holding) => burial(holding),
        State::Open(Phase::Indeterminate, holding) if claim.holds(record, holding) && !holding.takeover => {
            burial(holding)
        }
        State::Open(Phase::Dead, holding) if claim.holds(record, holding) => Decision::Reply(Settled::Yes),
        State::Completed(_) | State::Open(..) => Decision::Reply(Settled::Lost),
    }
}

/// The reply to somebody who found out.
///
/// ```
/// use hapax_core::machine::Resolved;
///
/// fn note(resolved: Resolved) -> &'static str {
///     match resolved {
///         Resolved::Yes => "so it stands",
///         Resolved::Stale => "something happened since you looked; look again",
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// So it stands now, or stood already.
    Yes,
    /// The record is not what was looked at.
    Stale,
}

/// Judges a hold: a lapsed record becomes indeterminate, so that finding out can begin.
///
/// ```
/// # let (_, grant, mut seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
///
/// use std::time::Duration;
/// use hapax_core::Seconds;
/// use hapax_core::machine::{Decision, Resolved, hold};
///
/// assert_eq!(hold(&seen, grant.token, Seconds(3600)), Decision::Reply(Resolved::Stale), "it may still run");
/// seen.lease_left = Duration::ZERO;
/// assert!(matches!(hold(&seen, grant.token, Seconds(3600)), Decision::Change(_, Resolved::Yes)));
/// ```
pub fn hold(seen: &Observed, expected: Token, unknown_retention: Seconds) -> Decision<Resolved> {
    match seen.live().map(|record| (record, &record.state)) {
        Some((record, State::Open(Phase::InProgress, holding)))
            if record.token == expected && lapsed(seen, holding) =>
        {
            Decision::Change(held(record, holding, unknown_retention), Resolved::Yes)
        }
        Some((record, State::Open(Phase::Indeterminate, _))) if record.token == expected => {
            Decision::Reply(Resolved::Yes)
        }
        Some(_) | None => Decision::Reply(Resolved::Stale),
    }
}

/// What somebody found out about an indeterminate record.
///
/// ```
/// use hapax_core::Seconds;
/// use hapax_core::machine::Verdict;
///
/// /// What the books of the provider say of a charge, once they are closed.
/// fn verdict(charge: Option<String>) -> Verdict {
///     match charge {
///         Some(charge) => Verdict::Done { answer: charge.into(), retention: Seconds(24 * 3600) },
///         None => Verdict::NotDone { lifetime: Seconds(600) },
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It happened: this is its answer, and how long it lives.
    Done {
        /// The answer to record.
        answer: Bytes,
        /// How long it lives.
        retention: Seconds,
    },
    /// It did not happen. Safe without a ledger only when the old owner can no longer act.
    NotDone {
        /// How long the released record lives.
        lifetime: Seconds,
    },
}

/// Judges a verdict on the indeterminate record with the expected token.
///
/// ```
/// # let (_, grant, mut seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
///
/// use std::time::Duration;
/// use hapax_core::machine::{Decision, Resolved, Verdict, hold, resolve};
/// use hapax_core::{Phase, Seconds, State};
///
/// seen.lease_left = Duration::ZERO;
/// let Decision::Change(held, _) = hold(&seen, grant.token, Seconds(3600)) else { panic!("it has lapsed") };
/// seen.record = Some(held.record);
/// let happened = Verdict::Done { answer: "charged".into(), retention: Seconds(24 * 3600) };
/// let resolved = resolve(&seen, grant.token, &happened);
/// assert!(matches!(resolved, Decision::Change(next, Resolved::Yes) if matches!(next.record.state, State::Completed(_))));
/// ```
pub fn resolve(seen: &Observed, expected: Token, verdict: &Verdict) -> Decision<Resolved> {
    #[cfg(feature = "chaos")]
    if let Some(wrong) = crate::chaos::resolve(seen, expected, verdict) {
        return wrong;
    }
    let Some(record) = seen.live() else {
        return Decision::Reply(Resolved::Stale);
    };
    match (&record.state, verdict) {
        (State::Open(Phase::Indeterminate, _), Verdict::Done { answer, retention }) if record.token == expected => {
            let change = completed(record.fingerprint, mint(seen), answer, *retention, seen.now);
            Decision::Change(change, Resolved::Yes)
        }
        // Token and owner are kept, so that a late owner who knows better still heals the record.
        (State::Open(Phase::Indeterminate, holding), Verdict::NotDone { lifetime }) if record.token == expected => {
            Decision::Change(moved(record, Phase::Released, Holding { lifetime: *lifetime, ..*holding }), Resolved::Yes)
        }
        (State::Completed(stands), Verdict::Done { answer, .. })
            if record.token > expected && stands.answer == *answer =>
        {
            Decision::Reply(Resolved::Yes)
        }
        (State::Open(Phase::Released, _), Verdict::NotDone { .. }) if record.token == expected => {
            Decision::Reply(Resolved::Yes)
        }
        (State::Completed(_) | State::Open(..), _) => Decision::Reply(Resolved::Stale),
    }
}

/// Judges the reopening of a dead record. `lifetime` is that of the released record.
///
/// ```
/// # let (_, grant, mut seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
///
/// use hapax_core::Seconds;
/// use hapax_core::machine::{Claim, Decision, Resolved, bury, reopen};
///
/// let Decision::Change(dead, _) = bury(&seen, &Claim::from(&grant), Seconds(3600)) else { panic!("it is this attempt's") };
/// seen.record = Some(dead.record);
/// let reopened = reopen(&seen, grant.token, Seconds(600));
/// // The token grows, so that the attempt that was buried writes nothing more.
/// assert!(matches!(reopened, Decision::Change(next, Resolved::Yes) if next.record.token > grant.token));
/// ```
pub fn reopen(seen: &Observed, expected: Token, lifetime: Seconds) -> Decision<Resolved> {
    #[cfg(feature = "chaos")]
    if let Some(wrong) = crate::chaos::reopen(seen, expected, lifetime) {
        return wrong;
    }
    let Some(record) = seen.live() else {
        return Decision::Reply(Resolved::Stale);
    };
    match &record.state {
        State::Open(Phase::Dead, holding) if record.token == expected => {
            let mut change = moved(record, Phase::Released, Holding { lifetime, ..*holding });
            change.record.token = mint(seen);
            Decision::Change(change, Resolved::Yes)
        }
        State::Open(Phase::Released, _) if record.token > expected => Decision::Reply(Resolved::Yes),
        State::Completed(_) | State::Open(..) => Decision::Reply(Resolved::Stale),
    }
}

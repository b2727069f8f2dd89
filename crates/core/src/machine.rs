//! The whole protocol as pure functions: from what a store observed and what a caller asks, to a reply or a change.
//!
//! Each operation is a function. The tables in `machine/protocol.md` list its cases as numbered rows, and each arm of
//! the function names its rows. The functions do not wait, read no clock and draw no random bytes.
//!
//! A store writes each change in one conditional step. The stores in Redis and PostgreSQL decide the most frequent rows
//! themselves, in Lua and SQL. Tests compare every store with these functions.
//!
//! ```text
//! from                         to              by
//! (none), Released         ──► InProgress      begin
//! InProgress               ──► InProgress      begin after the lease expired, policy `Retry`: a takeover
//! InProgress               ──► InProgress      renew: starts the lease again; abandon: ends the lease for good
//! InProgress               ──► Indeterminate   begin after the lease expired, policy `Hold`; hold
//! InProgress,Indeterminate ──► Released        release, cancel: not applied
//! Indeterminate            ──► Released        resolve: not done
//! InProgress,Indeterminate ──► Dead            bury: no further attempt is permitted
//! Dead                     ──► Released        reopen
//! (none), any open state   ──► Completed       complete
//! Indeterminate            ──► Completed       resolve: done
//! any state                ──► (none)          the lifetime ends; purge by an operator
//! ```
//!
//! A release or cancel of a takeover only ends its lease, because the attempt before it may have had an effect.
//!
//! Four rules keep it safe:
//! - After its lease expired, a record still shows that an attempt existed, with its fingerprint and its token.
//! - A renewal, release, abandonment or burial names owner and token, so a late one changes only its own grant.
//! - Only "known not applied" releases a key. A dropped, timed out or failed handler means *outcome unknown*.
//! - A completion replaces every open record of the same payload. One exception: an attempt that buried its key cannot
//!   complete it. A completion never replaces a recorded answer.
#![doc = include_str!("machine/protocol.md")]

mod change;
mod observed;
mod pin;
mod purge;
mod reply;
mod request;

use std::time::Duration;

use crate::key::Fingerprint;
use crate::record::{Completion, Holding, Owner, Phase, Record, Seconds, State, Token};

use Decision::{Change as Write, Reply};
use change::{abandoned, completed, grant_of, held, mint, moved, next_grant, rearmed, released};

pub use change::first_grant;
pub use observed::{Change, Decision, Observed};
pub use pin::{Pinned, pin_of_keyed, pin_of_plain};
pub use purge::purge;
pub use reply::{Begun, Cancelled, Completed, Grant, Purged, Renewed, Resolved, Settled};
pub use request::{Begin, Claim, Complete, Lapse, Purge, Verdict};

/// Decides a begin: rows B1 to B11.
///
/// ```
/// use std::time::Duration;
/// use hapax::machine::{Begin, Begun, Decision, Lapse, Observed, begin};
/// use hapax::{Call, Millis, Owner, RecordKey, Seconds, Timestamp, Token};
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
/// let Decision::Change(change, Begun::Granted(_)) = begin(&seen, &ask) else { panic!("the record is absent") };
///
/// // Another attempt begins one second later, while the first one holds the lease.
/// (seen.record, seen.lease_left, seen.life_left) =
///     (Some(change.record), Duration::from_secs(29), Duration::from_secs(3599));
/// let other = Begin { owner: Owner([2; 16]), ..ask };
/// assert_eq!(begin(&seen, &other), Decision::Reply(Begun::Busy(Duration::from_secs(29))));
/// ```
pub fn begin(seen: &Observed, ask: &Begin) -> Decision<Begun> {
    let Some(record) = seen.live() else {
        let (change, grant) = first_grant(ask, seen);
        return Write(change, Begun::Granted(grant)); // B1
    };
    // Before all states: a caller with another payload must not learn the answer or the state.
    if !ask.call.accepts(record.fingerprint) {
        return Reply(Begun::Mismatch); // B2
    }
    match &record.state {
        State::Completed(completion) => Reply(Begun::Replay(completion.clone())), // B3
        State::Open(Phase::InProgress, holding) => begin_in_progress(seen, ask, record, holding),
        State::Open(Phase::Indeterminate, holding) => Reply(Begun::Indeterminate(seen.armed_at(holding))), // B9
        State::Open(Phase::Dead, _) => Reply(Begun::Dead),                                                 // B10
        State::Open(Phase::Released, holding) => next_grant(ask, seen, (record, holding), false),          // B11
    }
}

fn begin_in_progress(seen: &Observed, ask: &Begin, record: &Record, holding: &Holding) -> Decision<Begun> {
    let lease = Duration::from(holding.lease);
    if holding.owner == ask.owner && !holding.is_abandoned() {
        let grant = grant_of(ask.call.record_key(), record, holding);
        return Write(rearmed(record, holding), Begun::Mine(grant)); // B4
    }
    if !is_lapsed(seen, holding) {
        if seen.lease_left <= lease {
            return Reply(Begun::Busy(seen.lease_left)); // B5
        }
        // The store's clock stepped back, so the lease would last longer by as much. Writing the record again starts
        // its lease again: the key is busy for one full lease from now on.
        return Write(rearmed(record, holding), Begun::Busy(lease)); // B6
    }
    match ask.on_lapse {
        Lapse::Retry => next_grant(ask, seen, (record, holding), true), // B7
        Lapse::Hold => Write(held(record, holding, ask.unknown_retention), Begun::Indeterminate(seen.now)), // B8
    }
}

/// Whether the lease expired. An abandoned lease stays expired when the clock steps back.
fn is_lapsed(seen: &Observed, holding: &Holding) -> bool {
    holding.is_abandoned() || seen.lease_left.is_zero()
}

/// The live record, if it is open and its latest grant is the one that this claim names.
fn open_for<'a>(seen: &'a Observed, claim: &Claim) -> Option<(&'a Record, Phase, &'a Holding)> {
    seen.open().filter(|(record, _, holding)| record.token == claim.token && holding.owner == claim.owner)
}

/// Decides a renewal: rows R1 to R3. A renewal after the end of the lease still counts if the grant is `InProgress` and
/// not abandoned.
pub fn renew(seen: &Observed, claim: &Claim) -> Decision<Renewed> {
    match open_for(seen, claim) {
        Some((record, Phase::InProgress, holding)) if !holding.is_abandoned() => {
            Write(rearmed(record, holding), Renewed::Yes) // R2
        }
        None if seen.live().is_none() => Reply(Renewed::Gone), // R1
        Some(_) | None => Reply(Renewed::Lost),                // R3
    }
}

/// Decides a completion: rows C1 to C8.
///
/// It replaces every open record of the same payload, but an attempt that buried its key cannot complete it. It never
/// replaces a recorded answer.
///
/// ```
/// # let (_, grant, mut seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
/// use std::time::Duration;
/// use hapax::Seconds;
/// use hapax::machine::{Claim, Complete, Completed, Decision, complete};
///
/// let ask = Complete {
///     claim: Claim::from(&grant),
///     fingerprint: grant.fingerprint,
///     answer: "charged".into(),
///     retention: Seconds(24 * 3600),
///     ended: seen.now,
///     age: Duration::ZERO,
/// };
/// // The lease expired, and no other attempt recorded an answer: the completion still counts.
/// seen.lease_left = Duration::ZERO;
/// let Decision::Change(change, Completed::Done) = complete(&seen, &ask) else { panic!("no answer is recorded") };
/// // The reply was lost, so the attempt sends the completion again.
/// seen.record = Some(change.record);
/// assert_eq!(complete(&seen, &ask), Decision::Reply(Completed::Already));
/// ```
pub fn complete(seen: &Observed, ask: &Complete) -> Decision<Completed> {
    let token = ask.claim.token;
    let write = |reply| {
        let change = completed((token, ask.fingerprint), &ask.answer, ask.retention, ask.ended);
        Write(change, reply)
    };
    let Some(record) = seen.live() else {
        return if ask.age < Duration::from(ask.retention) {
            write(Completed::Recreated) // C1
        } else {
            Reply(Completed::Gone) // C2
        };
    };
    let lost = || Reply(Completed::Lost(record.clone()));
    let is_same_token = record.token == token;
    match &record.state {
        State::Completed(recorded) if is_same_token && recorded.holds(&ask.answer) => Reply(Completed::Already), // C3
        State::Completed(_) => lost(),                                                                           // C4
        State::Open(phase, holding) if is_same_token && holding.owner == ask.claim.owner => match phase {
            Phase::Dead => lost(),                                                                // C5
            Phase::InProgress | Phase::Released | Phase::Indeterminate => write(Completed::Done), // C6
        },
        State::Open(..) if record.fingerprint == ask.fingerprint => write(Completed::Done), // C7
        State::Open(..) => lost(),                                                          // C8
    }
}

/// The answer of the record that a completion lost to, if the caller of the losing attempt may be given it: rows G1 to
/// G3.
///
/// `fingerprint` is that of the losing attempt's grant. A store that forgot the record may have granted the same key to
/// another payload since; the answer to that payload is not for this caller.
pub fn recorded_answer(record: &Record, fingerprint: Fingerprint) -> Option<&Completion> {
    match &record.state {
        State::Completed(completion) if record.fingerprint == fingerprint => Some(completion), // G1
        State::Completed(_) => None,                                                           // G2
        State::Open(..) => None,                                                               // G3
    }
}

/// Decides a release, "known not applied": rows L1 to L5. `lifetime` is that of the released record.
///
/// A takeover (a grant that followed an expired lease) is abandoned instead: the attempt before it may have had an
/// effect.
pub fn release(seen: &Observed, claim: &Claim, lifetime: Seconds) -> Decision<Settled> {
    let Some((record, phase, holding)) = open_for(seen, claim) else {
        return Reply(Settled::Lost); // L5
    };
    match (phase, holding.takeover) {
        (Phase::InProgress | Phase::Indeterminate, false) => {
            Write(released(record, holding, lifetime), Settled::Yes) // L1
        }
        (Phase::InProgress, true) => abandon(seen, claim),   // L2
        (Phase::Indeterminate, true) => Reply(Settled::Yes), // L3
        (Phase::Released, _) => Reply(Settled::Yes),         // L4
        (Phase::Dead, _) => Reply(Settled::Lost),            // L5
    }
}

/// Decides a cancellation: rows X1 to X3. It gives back the grant that a begin of this owner got, and that no handler
/// uses.
///
/// It does not stop a begin that arrives later, so the caller cancels once more. The attempt may not know the token of
/// its grant, so the owner alone names it.
pub fn cancel(seen: &Observed, owner: Owner, lifetime: Seconds) -> Decision<Cancelled> {
    match seen.live() {
        Some(record) => release(seen, &Claim { owner, token: record.token }, lifetime).map(Cancelled::from), // X1, X2
        None => Reply(Cancelled::Gone),                                                                      // X3
    }
}

/// Decides an abandonment: rows A1 to A4. The attempt ended with an unknown outcome, so its lease ends for good.
pub fn abandon(seen: &Observed, claim: &Claim) -> Decision<Settled> {
    match open_for(seen, claim) {
        Some((_, Phase::InProgress, holding)) if holding.is_abandoned() => Reply(Settled::Yes), // A2
        Some((record, Phase::InProgress, holding)) => Write(abandoned(record, holding), Settled::Yes), // A1
        Some((_, Phase::Indeterminate, _)) => Reply(Settled::Yes),                              // A3
        Some((_, Phase::Released | Phase::Dead, _)) | None => Reply(Settled::Lost),             // A4
    }
}

/// Decides a burial: rows D1 to D4. The key has had its last permitted attempt.
/// `lifetime` is that of the dead record.
pub fn bury(seen: &Observed, claim: &Claim, lifetime: Seconds) -> Decision<Settled> {
    let Some((record, phase, holding)) = open_for(seen, claim) else {
        return Reply(Settled::Lost); // D4
    };
    let buried = || Write(moved(record, Phase::Dead, Holding { lifetime, ..*holding }), Settled::Yes);
    match (phase, holding.takeover) {
        (Phase::InProgress, _) => buried(),                                          // D1
        (Phase::Indeterminate, false) => buried(),                                   // D2
        (Phase::Dead, _) => Reply(Settled::Yes),                                     // D3
        (Phase::Indeterminate, true) | (Phase::Released, _) => Reply(Settled::Lost), // D4
    }
}

/// Decides a hold: rows H1 to H3. A record whose lease expired becomes indeterminate, and can then be resolved.
pub fn hold(seen: &Observed, expected: Token, unknown_retention: Seconds) -> Decision<Resolved> {
    match seen.open().filter(|(record, ..)| record.token == expected) {
        Some((record, Phase::InProgress, holding)) if is_lapsed(seen, holding) => {
            Write(held(record, holding, unknown_retention), Resolved::Yes) // H1
        }
        Some((_, Phase::Indeterminate, _)) => Reply(Resolved::Yes), // H2
        Some(_) | None => Reply(Resolved::Stale),                   // H3
    }
}

/// Decides a verdict on the indeterminate record with the expected token: rows V1 to V5.
///
/// ```
/// # let (_, grant, mut seen) = include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/seen.rs"));
/// use std::time::Duration;
/// use hapax::machine::{Decision, Resolved, Verdict, hold, resolve};
/// use hapax::{Seconds, State};
///
/// // A record in progress is held first, which needs an expired lease.
/// seen.lease_left = Duration::ZERO;
/// let Decision::Change(held, _) = hold(&seen, grant.token, Seconds(3600)) else { panic!("the lease expired") };
/// seen.record = Some(held.record);
/// let done = Verdict::Done { answer: "charged".into(), retention: Seconds(24 * 3600) };
/// let resolved = resolve(&seen, grant.token, &done);
/// let Decision::Change(change, Resolved::Yes) = resolved else { panic!("the record is indeterminate") };
/// assert!(matches!(change.record.state, State::Completed(_)));
/// ```
pub fn resolve(seen: &Observed, expected: Token, verdict: &Verdict) -> Decision<Resolved> {
    let Some(record) = seen.live() else {
        return Reply(Resolved::Stale); // V5
    };
    let is_expected = record.token == expected;
    match (&record.state, verdict) {
        (State::Open(Phase::Indeterminate, _), Verdict::Done { answer, retention }) if is_expected => {
            let change = completed((mint(seen), record.fingerprint), answer, *retention, seen.now);
            Write(change, Resolved::Yes) // V1
        }
        // Token and owner stay, so that a late completion of that owner still corrects the record.
        (State::Open(Phase::Indeterminate, holding), Verdict::NotDone { lifetime }) if is_expected => {
            Write(released(record, holding, *lifetime), Resolved::Yes) // V2
        }
        // A larger token than expected: the same verdict may have been written before, and its reply was lost.
        (State::Completed(recorded), Verdict::Done { answer, .. })
            if record.token > expected && recorded.holds(answer) =>
        {
            Reply(Resolved::Yes) // V3
        }
        (State::Open(Phase::Released, _), Verdict::NotDone { .. }) if is_expected => Reply(Resolved::Yes), // V4
        (State::Completed(_) | State::Open(..), _) => Reply(Resolved::Stale),                              // V5
    }
}

/// Decides the reopening of a dead record: rows O1 to O3. `lifetime` is that of the released record.
pub fn reopen(seen: &Observed, expected: Token, lifetime: Seconds) -> Decision<Resolved> {
    match seen.open() {
        Some((record, Phase::Dead, holding)) if record.token == expected => {
            let mut change = released(record, holding, lifetime);
            // A new token, so that the buried attempt can write nothing more under its old one.
            change.record.token = mint(seen);
            Write(change, Resolved::Yes) // O1
        }
        Some((record, Phase::Released, _)) if record.token > expected => Reply(Resolved::Yes), // O2
        Some(_) | None => Reply(Resolved::Stale),                                              // O3
    }
}

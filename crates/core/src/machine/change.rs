//! Builds the records that the machine writes. Only this file mints tokens.

use bytes::Bytes;

use super::observed::{Change, Decision, Observed};
use super::reply::{Begun, Grant};
use super::request::Begin;
use crate::key::{Fingerprint, RecordKey};
use crate::record::{Completion, Holding, Millis, Phase, Record, Seconds, State, Timestamp, Token};

/// The first grant of a record key. A store calls it in the step in which it finds no live record.
///
/// `seen` has the store's clock, its token high-water mark and, if one is still stored, the expired record.
pub fn first_grant(ask: &Begin, seen: &Observed) -> (Change, Grant) {
    granted(ask, mint(seen), ask.call.newest_fingerprint(), (1, false))
}

/// The next grant of an open record: the attempt number and the token grow.
pub(super) fn next_grant(
    ask: &Begin,
    seen: &Observed,
    (record, before): (&Record, &Holding),
    takeover: bool,
) -> Decision<Begun> {
    // The record keeps its fingerprint: the call may accept it under an older rule only.
    let attempt = before.attempt.saturating_add(1);
    let (change, grant) = granted(ask, mint(seen), record.fingerprint, (attempt, takeover));
    Decision::Change(change, Begun::Granted(grant))
}

fn granted(ask: &Begin, token: Token, fingerprint: Fingerprint, (attempt, takeover): (u16, bool)) -> (Change, Grant) {
    let holding = Holding { owner: ask.owner, attempt, takeover, lease: ask.lease, lifetime: ask.unknown_retention };
    let record = Record { token, fingerprint, state: State::Open(Phase::InProgress, holding) };
    let grant = grant_of(ask.call.record_key(), &record, &holding);
    (Change { record, lifetime: holding.lifetime }, grant)
}

/// The grant that a record in progress stands for.
pub(super) fn grant_of(rk: RecordKey, record: &Record, holding: &Holding) -> Grant {
    Grant {
        rk,
        owner: holding.owner,
        token: record.token,
        attempt: holding.attempt,
        takeover: holding.takeover,
        fingerprint: record.fingerprint,
    }
}

/// A token above the record's token, above the store's high-water mark, and not below the store's clock in
/// microseconds.
///
/// The clock keeps tokens growing where a store forgot both the record and the mark.
pub(super) fn mint(seen: &Observed) -> Token {
    let previous = seen.record.as_ref().map_or(Token(0), |record| record.token);
    let after = previous.max(seen.token_high_water).0.saturating_add(1);
    Token(after.max(seen.now.0))
}

/// The same record; writing it starts its lease and its life again.
pub(super) fn rearmed(record: &Record, holding: &Holding) -> Change {
    Change { record: record.clone(), lifetime: holding.lifetime }
}

/// The same grant in the phase `Indeterminate`.
pub(super) fn held(record: &Record, holding: &Holding, unknown_retention: Seconds) -> Change {
    moved(record, Phase::Indeterminate, Holding { lifetime: unknown_retention, ..*holding })
}

/// The same grant in the phase `Released`.
pub(super) fn released(record: &Record, holding: &Holding, lifetime: Seconds) -> Change {
    moved(record, Phase::Released, Holding { lifetime, ..*holding })
}

/// The same grant with a lease of 0: it counts as expired on every clock, and no renewal revives it.
pub(super) fn abandoned(record: &Record, holding: &Holding) -> Change {
    moved(record, Phase::InProgress, Holding { lease: Millis(0), ..*holding })
}

/// The same grant in another phase.
pub(super) fn moved(record: &Record, phase: Phase, holding: Holding) -> Change {
    Change { record: Record { state: State::Open(phase, holding), ..record.clone() }, lifetime: holding.lifetime }
}

/// The record of an answer. It shows the expiry by the clock of `at`.
pub(super) fn completed(
    (token, fingerprint): (Token, Fingerprint),
    answer: &Bytes,
    retention: Seconds,
    at: Timestamp,
) -> Change {
    let completion = Completion::whole(answer.clone(), at.plus(retention.into()).seconds());
    Change { record: Record { token, fingerprint, state: State::Completed(completion) }, lifetime: retention }
}

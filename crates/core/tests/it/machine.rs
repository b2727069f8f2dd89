//! The table of the protocol, row by row.

mod abandon;
mod begin;
mod bury;
mod cancel;
mod complete;
mod hold;
mod pin;
mod purge;
mod recorded_answer;
mod release;
mod renew;
mod reopen;
mod resolve;
pub(crate) mod rows;

use std::time::Duration;

use bytes::Bytes;
use hapax_core::machine::*;
use hapax_core::{
    Completion, Fingerprint, Holding, Millis, Owner, Phase, Record, RecordKey, Rule, Seconds, State, Timestamp, Token,
};

const ANN: Owner = Owner([0xA; 16]);
const BOB: Owner = Owner([0xB; 16]);

const LEASE: Millis = Millis(30_000);
const UNKNOWN_RETENTION: Seconds = Seconds(3_000);
const RETENTION: Seconds = Seconds(1_000);
const RELEASED: Seconds = Seconds(600);
const DEAD: Seconds = Seconds(2_000);

const NOW: Timestamp = Timestamp(5_000_000_000);
const TOKEN: Token = Token(7);
const OTHER: Token = Token(6);
// The clock is above all tokens here, so a minted token is the clock.
const NEXT: Token = Token(NOW.0);

const PAYLOAD: Fingerprint = Fingerprint::from_parts(Rule(2), [2; 12]);
const OTHER_PAYLOAD: Fingerprint = Fingerprint::from_parts(Rule(2), [3; 12]);
const RK: RecordKey = RecordKey::from_bytes([9; 16]);

/// Ann's first attempt.
const FIRST_ATTEMPT: Holding =
    Holding { owner: ANN, attempt: 1, takeover: false, lease: LEASE, lifetime: UNKNOWN_RETENTION };
const TAKEN_OVER: Holding = Holding { attempt: 2, takeover: true, ..FIRST_ATTEMPT };
const ABANDONED: Holding = Holding { lease: Millis(0), ..FIRST_ATTEMPT };

const CLAIM_OF_ANN: Claim = Claim { owner: ANN, token: TOKEN };
/// Claims that differ from the record's in the owner, in the token, or in both.
const OTHER_CLAIMS: [Claim; 3] =
    [Claim { owner: BOB, token: TOKEN }, Claim { owner: ANN, token: OTHER }, Claim { owner: BOB, token: OTHER }];

fn record(state: State) -> Record {
    Record { token: TOKEN, fingerprint: PAYLOAD, state }
}

fn answered(answer: &'static str) -> State {
    State::Completed(Completion::whole(answer, 6_000))
}

/// A record with half of its lease and half of its life left.
fn live(state: State) -> Observed {
    let lifetime = state.holding().map_or(RETENTION, |holding| holding.lifetime);
    let lease_left = match &state {
        State::Open(Phase::InProgress, holding) => Duration::from(holding.lease) / 2,
        State::Completed(_) | State::Open(Phase::Released | Phase::Indeterminate | Phase::Dead, _) => Duration::ZERO,
    };
    let life_left = Duration::from(lifetime) / 2;
    Observed { record: Some(record(state)), lease_left, life_left, now: NOW, token_high_water: TOKEN }
}

fn lapsed(state: State) -> Observed {
    Observed { lease_left: Duration::ZERO, ..live(state) }
}

fn expired(state: State) -> Observed {
    Observed { life_left: Duration::ZERO, ..lapsed(state) }
}

fn absent() -> Observed {
    Observed { record: None, lease_left: Duration::ZERO, life_left: Duration::ZERO, now: NOW, token_high_water: TOKEN }
}

/// Every observation that counts as absent.
fn absences() -> Vec<Observed> {
    let mut absences: Vec<_> = states(FIRST_ATTEMPT).into_iter().map(expired).collect();
    absences.push(absent());
    absences
}

fn states(holding: Holding) -> [State; 5] {
    [
        State::Open(Phase::InProgress, holding),
        answered("the answer"),
        State::Open(Phase::Released, holding),
        State::Open(Phase::Indeterminate, holding),
        State::Open(Phase::Dead, holding),
    ]
}

/// Every state of a live record, with and without lease left.
fn presences() -> Vec<Observed> {
    let mut presences = Vec::new();
    for holding in [FIRST_ATTEMPT, TAKEN_OVER, ABANDONED] {
        presences.extend(states(holding).map(live));
        presences.extend(states(holding).map(lapsed));
    }
    presences
}

fn is_in_phase(observed: &Observed, phase: Phase) -> bool {
    observed.record.as_ref().is_some_and(|record| record.state.phase() == Some(phase))
}

/// The change to this state under the same token.
fn change_to(state: State, lifetime: Seconds) -> Change {
    Change { record: record(state), lifetime }
}

fn completed_under(token: Token, answer: &'static str) -> Change {
    let expiry = NOW.plus(RETENTION.into()).seconds();
    let completion = Completion::whole(answer, expiry);
    let record = Record { token, fingerprint: PAYLOAD, state: State::Completed(completion) };
    Change { record, lifetime: RETENTION }
}

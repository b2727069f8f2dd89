//! The rows of `begin`.

use super::*;

fn by(owner: Owner) -> Begin {
    let call = hapax_core::Call::new(RK).fingerprint(PAYLOAD);
    Begin { call, owner, lease: LEASE, unknown_retention: UNKNOWN_RETENTION, on_lapse: Lapse::Hold }
}

fn retry_by(owner: Owner) -> Begin {
    Begin { on_lapse: Lapse::Retry, ..by(owner) }
}

fn grant(holding: &Holding, token: Token) -> Grant {
    Grant {
        rk: RK,
        owner: holding.owner,
        token,
        attempt: holding.attempt,
        takeover: holding.takeover,
        fingerprint: PAYLOAD,
    }
}

fn granted(holding: Holding) -> Decision<Begun> {
    let record = Record { token: NEXT, ..record(State::Open(Phase::InProgress, holding)) };
    let change = Change { record, lifetime: holding.lifetime };
    Decision::Change(change, Begun::Granted(grant(&holding, NEXT)))
}

#[test]
fn b1_grants_an_absent_record() {
    assert_eq!(begin(&absent(), &by(ANN)), granted(FIRST_ATTEMPT));
    assert_eq!(begin(&absent(), &retry_by(ANN)), granted(FIRST_ATTEMPT));
}

#[test]
fn b1_grants_an_expired_record_like_an_absent_one() {
    for state in states(TAKEN_OVER) {
        let mut seen = expired(state);
        seen.record.as_mut().unwrap().fingerprint = OTHER_PAYLOAD;
        assert_eq!(begin(&seen, &by(ANN)), granted(FIRST_ATTEMPT));
    }
}

#[test]
fn b1_takes_lease_and_lifetime_from_the_request() {
    let ask = Begin { lease: Millis(1), unknown_retention: Seconds(2), ..by(ANN) };
    assert_eq!(begin(&absent(), &ask), granted(Holding { lease: Millis(1), lifetime: Seconds(2), ..FIRST_ATTEMPT }));
}

#[test]
fn b2_refuses_another_payload_in_every_state() {
    let other = by(ANN).call.fingerprint(OTHER_PAYLOAD);
    for seen in presences() {
        for ask in [by(ANN), by(BOB), retry_by(ANN), retry_by(BOB)] {
            assert_eq!(begin(&seen, &Begin { call: other, ..ask }), Decision::Reply(Begun::Mismatch));
        }
    }
}

#[test]
fn b2_refuses_a_fingerprint_under_a_rule_other_than_the_records() {
    let newer = Fingerprint::from_parts(Rule(3), *PAYLOAD.as_bytes());
    let ask = Begin { call: by(BOB).call.fingerprint(newer), ..by(BOB) };
    assert_eq!(begin(&live(State::Open(Phase::Released, FIRST_ATTEMPT)), &ask), Decision::Reply(Begun::Mismatch));
    let ask = Begin { call: by(BOB).call.fingerprint(Fingerprint::NONE), ..by(BOB) };
    assert_eq!(begin(&live(State::Open(Phase::Released, FIRST_ATTEMPT)), &ask), Decision::Reply(Begun::Mismatch));
}

#[test]
fn b2_b11_accepts_the_older_rule_and_keeps_its_fingerprint() {
    let newer = Fingerprint::from_parts(Rule(3), [8; 12]);
    let call = by(BOB).call.fingerprint(newer).or_older(PAYLOAD);
    let decision = begin(&live(State::Open(Phase::Released, FIRST_ATTEMPT)), &Begin { call, ..by(BOB) });
    assert_eq!(decision, granted(Holding { owner: BOB, attempt: 2, ..FIRST_ATTEMPT }));
}

#[test]
fn b3_replays_a_completed_record() {
    for owner in [ANN, BOB] {
        for ask in [by(owner), retry_by(owner)] {
            let Decision::Reply(Begun::Replay(completion)) = begin(&live(answered("it")), &ask) else {
                panic!("a replay was expected");
            };
            assert_eq!(completion.answer, "it");
        }
    }
}

#[test]
fn b4_returns_the_grant_of_the_same_owner_again_and_rearms_it() {
    for holding in [FIRST_ATTEMPT, TAKEN_OVER] {
        for seen in [live(State::Open(Phase::InProgress, holding)), lapsed(State::Open(Phase::InProgress, holding))] {
            let mine = Decision::Change(
                change_to(State::Open(Phase::InProgress, holding), UNKNOWN_RETENTION),
                Begun::Mine(grant(&holding, TOKEN)),
            );
            assert_eq!(begin(&seen, &by(ANN)), mine);
            assert_eq!(begin(&seen, &retry_by(ANN)), mine);
        }
    }
}

#[test]
fn b4_b7_b8_does_not_return_an_abandoned_grant_again() {
    let seen = lapsed(State::Open(Phase::InProgress, ABANDONED));
    let again = Holding { lease: LEASE, attempt: 2, takeover: true, ..FIRST_ATTEMPT };
    assert_eq!(begin(&seen, &retry_by(ANN)), granted(again));
    let held = change_to(State::Open(Phase::Indeterminate, ABANDONED), UNKNOWN_RETENTION);
    assert_eq!(begin(&seen, &by(ANN)), Decision::Change(held, Begun::Indeterminate(NOW)));
}

#[test]
fn b5_is_busy_for_the_rest_of_a_live_lease() {
    let seen = live(State::Open(Phase::InProgress, FIRST_ATTEMPT));
    for ask in [by(BOB), retry_by(BOB)] {
        assert_eq!(begin(&seen, &ask), Decision::Reply(Begun::Busy(Duration::from_secs(15))));
    }
}

#[test]
fn b5_writes_nothing_when_the_whole_lease_is_left() {
    let seen = Observed { lease_left: LEASE.into(), ..live(State::Open(Phase::InProgress, FIRST_ATTEMPT)) };
    assert_eq!(begin(&seen, &by(BOB)), Decision::Reply(Begun::Busy(LEASE.into())));
}

#[test]
fn b6_rearms_a_record_with_more_lease_left_than_its_lease() {
    let lease_left = Duration::from(LEASE) + Duration::from_micros(1);
    let seen = Observed { lease_left, ..live(State::Open(Phase::InProgress, FIRST_ATTEMPT)) };
    for ask in [by(BOB), retry_by(BOB)] {
        let change = change_to(State::Open(Phase::InProgress, FIRST_ATTEMPT), UNKNOWN_RETENTION);
        assert_eq!(begin(&seen, &ask), Decision::Change(change, Begun::Busy(LEASE.into())));
    }
}

#[test]
fn b7_b8_treats_an_abandoned_lease_as_expired_after_the_clock_stepped_back() {
    let lease_left = Duration::from_secs(60);
    let seen = Observed { lease_left, ..live(State::Open(Phase::InProgress, ABANDONED)) };
    let next = Holding { owner: BOB, attempt: 2, takeover: true, ..FIRST_ATTEMPT };
    assert_eq!(begin(&seen, &retry_by(BOB)), granted(next));
    let held = change_to(State::Open(Phase::Indeterminate, ABANDONED), UNKNOWN_RETENTION);
    assert_eq!(begin(&seen, &by(BOB)), Decision::Change(held, Begun::Indeterminate(NOW)));
}

#[test]
fn b7_takes_over_an_expired_lease_under_retry() {
    let next = Holding { owner: BOB, attempt: 2, takeover: true, ..FIRST_ATTEMPT };
    assert_eq!(begin(&lapsed(State::Open(Phase::InProgress, FIRST_ATTEMPT)), &retry_by(BOB)), granted(next));
    assert_eq!(begin(&lapsed(State::Open(Phase::InProgress, ABANDONED)), &retry_by(BOB)), granted(next));
}

#[test]
fn b8_makes_an_expired_lease_indeterminate_under_hold() {
    let ask = Begin { unknown_retention: Seconds(77), ..by(BOB) };
    for holding in [FIRST_ATTEMPT, TAKEN_OVER, ABANDONED] {
        let change =
            change_to(State::Open(Phase::Indeterminate, Holding { lifetime: Seconds(77), ..holding }), Seconds(77));
        let held = Decision::Change(change, Begun::Indeterminate(NOW));
        assert_eq!(begin(&lapsed(State::Open(Phase::InProgress, holding)), &ask), held);
    }
}

#[test]
fn b9_reports_since_when_a_record_is_indeterminate_under_every_policy() {
    // `live` leaves half of the life of 3,000 s.
    let since = Timestamp(NOW.0 - 1_500_000_000);
    for ask in [by(ANN), retry_by(ANN), by(BOB), retry_by(BOB)] {
        let seen = live(State::Open(Phase::Indeterminate, FIRST_ATTEMPT));
        assert_eq!(begin(&seen, &ask), Decision::Reply(Begun::Indeterminate(since)));
    }
}

#[test]
fn b10_reports_a_dead_record() {
    for ask in [by(ANN), retry_by(ANN), by(BOB), retry_by(BOB)] {
        assert_eq!(begin(&live(State::Open(Phase::Dead, FIRST_ATTEMPT)), &ask), Decision::Reply(Begun::Dead));
    }
}

#[test]
fn b11_grants_a_released_record() {
    let last = Holding { takeover: true, ..FIRST_ATTEMPT };
    for holding in [FIRST_ATTEMPT, last] {
        for (owner, ask) in [(ANN, by(ANN)), (BOB, by(BOB)), (BOB, retry_by(BOB))] {
            let next = Holding { owner, attempt: 2, ..FIRST_ATTEMPT };
            assert_eq!(begin(&live(State::Open(Phase::Released, holding)), &ask), granted(next));
        }
    }
}

#[test]
fn b11_stops_counting_attempts_at_the_largest_number() {
    let holding = Holding { attempt: u16::MAX, ..FIRST_ATTEMPT };
    let next = Holding { owner: BOB, ..holding };
    assert_eq!(begin(&live(State::Open(Phase::Released, holding)), &by(BOB)), granted(next));
}

#[test]
fn b1_b11_mints_a_token_above_the_record_the_mark_and_the_clock() {
    let minted = |record: u64, mark: u64, now: u64| {
        let mut seen = Observed {
            token_high_water: Token(mark),
            now: Timestamp(now),
            ..live(State::Open(Phase::Released, FIRST_ATTEMPT))
        };
        seen.record.as_mut().unwrap().token = Token(record);
        let Decision::Change(change, Begun::Granted(grant)) = begin(&seen, &by(BOB)) else {
            panic!("a grant was expected");
        };
        assert_eq!(change.record.token, grant.token);
        grant.token.0
    };
    assert_eq!(minted(50, 40, 10), 51);
    assert_eq!(minted(40, 50, 10), 51);
    assert_eq!(minted(40, 50, 51), 51);
    assert_eq!(minted(40, 50, 99), 99);
    // A token that a 64-bit float cannot hold exactly.
    assert_eq!(minted((1 << 53) + 1, 0, 0), (1 << 53) + 2);
    // The mark and the clock are low, so only the expired record can raise the token.
    let unswept = Observed { token_high_water: Token(0), now: Timestamp(1), ..expired(answered("it")) };
    let Decision::Change(change, _) = begin(&unswept, &by(BOB)) else { panic!("a grant was expected") };
    assert!(change.record.token > TOKEN, "an expired record still counts");
}

/// A store that finds no live record calls `first_grant` instead of `begin`.
#[test]
fn b1_grants_what_first_grant_builds() {
    let call = hapax_core::Call::new(RK).fingerprint(PAYLOAD);
    let ask = Begin { call, owner: ANN, lease: LEASE, unknown_retention: UNKNOWN_RETENTION, on_lapse: Lapse::Hold };
    for seen in absences() {
        let (change, grant) = first_grant(&ask, &seen);
        assert_eq!(begin(&seen, &ask), Decision::Change(change, Begun::Granted(grant)));
    }
}

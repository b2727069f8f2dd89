//! The table of the protocol, row by row.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::machine::*;
use hapax_core::{
    Completion, Fingerprint, Holding, Millis, Owner, Phase, Record, RecordKey, Rule, Seconds, State, Timestamp, Token,
};

const ANN: Owner = Owner([0xA; 16]);
const BOB: Owner = Owner([0xB; 16]);

const LEASE: Millis = Millis(30_000);
const UNKNOWN: Seconds = Seconds(3_000);
const RETENTION: Seconds = Seconds(1_000);
const RELEASED: Seconds = Seconds(600);
const DEAD: Seconds = Seconds(2_000);

const NOW: Timestamp = Timestamp(5_000_000_000);
const TOKEN: Token = Token(7);
const OTHER: Token = Token(6);
const NEXT: Token = Token(NOW.0);

const PAYLOAD: Fingerprint = Fingerprint::from_parts(Rule(2), [2; 12]);
const OTHER_PAYLOAD: Fingerprint = Fingerprint::from_parts(Rule(2), [3; 12]);
const RK: RecordKey = RecordKey::from_bytes([9; 16]);

/// Ann's first attempt.
const HELD: Holding = Holding { owner: ANN, attempt: 1, takeover: false, lease: LEASE, lifetime: UNKNOWN };
const TAKEN_OVER: Holding = Holding { attempt: 2, takeover: true, ..HELD };
const ABANDONED: Holding = Holding { lease: Millis(0), ..HELD };

const ANNS: Claim = Claim { owner: ANN, token: TOKEN };
/// Claims that are not that of the record: each by one field, or both.
const NOT_ANNS: [Claim; 3] =
    [Claim { owner: BOB, token: TOKEN }, Claim { owner: ANN, token: OTHER }, Claim { owner: BOB, token: OTHER }];

fn record(state: State) -> Record {
    Record { token: TOKEN, fingerprint: PAYLOAD, state }
}

fn answered(answer: &'static str) -> State {
    State::Completed(Completion { answer: Bytes::from_static(answer.as_bytes()), expiry: 6_000 })
}

/// Half of its lease and of its life are left.
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

/// Every way in which there is no record.
fn absences() -> Vec<Observed> {
    let mut absences: Vec<_> = states(HELD).into_iter().map(expired).collect();
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

/// Everything there can be while a record lives.
fn presences() -> Vec<Observed> {
    let mut presences = Vec::new();
    for holding in [HELD, TAKEN_OVER, ABANDONED] {
        presences.extend(states(holding).map(live));
        presences.extend(states(holding).map(lapsed));
    }
    presences
}

fn is(observed: &Observed, phase: Phase) -> bool {
    observed.record.as_ref().is_some_and(|record| record.state.phase() == Some(phase))
}

/// The change to this state under the same token.
fn to(state: State, lifetime: Seconds) -> Change {
    Change { record: record(state), lifetime }
}

fn completed_under(token: Token, answer: &'static str) -> Change {
    let expiry = NOW.plus(RETENTION.into()).seconds();
    let completion = Completion { answer: Bytes::from_static(answer.as_bytes()), expiry };
    let record = Record { token, fingerprint: PAYLOAD, state: State::Completed(completion) };
    Change { record, lifetime: RETENTION }
}

mod a_begin {
    use super::*;

    fn by(owner: Owner) -> Begin {
        let call = hapax_core::Call::new(RK).fingerprint(PAYLOAD);
        Begin { call, owner, lease: LEASE, unknown_retention: UNKNOWN, on_lapse: Lapse::Hold }
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
    fn of_an_absent_record_is_granted() {
        assert_eq!(begin(&absent(), &by(ANN)), granted(HELD));
        assert_eq!(begin(&absent(), &retry_by(ANN)), granted(HELD));
    }

    #[test]
    fn of_an_expired_record_is_granted_as_of_none() {
        for state in states(TAKEN_OVER) {
            let mut seen = expired(state);
            seen.record.as_mut().unwrap().fingerprint = OTHER_PAYLOAD;
            assert_eq!(begin(&seen, &by(ANN)), granted(HELD));
        }
    }

    #[test]
    fn takes_lease_and_lifetime_from_who_asks() {
        let ask = Begin { lease: Millis(1), unknown_retention: Seconds(2), ..by(ANN) };
        assert_eq!(begin(&absent(), &ask), granted(Holding { lease: Millis(1), lifetime: Seconds(2), ..HELD }));
    }

    #[test]
    fn for_another_payload_is_a_mismatch_whatever_there_is() {
        let other = by(ANN).call.fingerprint(OTHER_PAYLOAD);
        for seen in presences() {
            for ask in [by(ANN), by(BOB), retry_by(ANN), retry_by(BOB)] {
                assert_eq!(begin(&seen, &Begin { call: other, ..ask }), Decision::Reply(Begun::Mismatch));
            }
        }
    }

    #[test]
    fn under_a_rule_that_the_record_does_not_know_is_a_mismatch() {
        let newer = Fingerprint::from_parts(Rule(3), *PAYLOAD.as_bytes());
        let ask = Begin { call: by(BOB).call.fingerprint(newer), ..by(BOB) };
        assert_eq!(begin(&live(State::Open(Phase::Released, HELD)), &ask), Decision::Reply(Begun::Mismatch));
        let ask = Begin { call: by(BOB).call.fingerprint(Fingerprint::NONE), ..by(BOB) };
        assert_eq!(begin(&live(State::Open(Phase::Released, HELD)), &ask), Decision::Reply(Begun::Mismatch));
    }

    #[test]
    fn under_the_older_rule_of_the_record_is_none_and_keeps_that_fingerprint() {
        let newer = Fingerprint::from_parts(Rule(3), [8; 12]);
        let call = by(BOB).call.fingerprint(newer).or_older(PAYLOAD);
        let decision = begin(&live(State::Open(Phase::Released, HELD)), &Begin { call, ..by(BOB) });
        assert_eq!(decision, granted(Holding { owner: BOB, attempt: 2, ..HELD }));
    }

    #[test]
    fn of_a_completed_record_replays_it() {
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
    fn of_its_own_grant_is_mine_and_arms_it_anew() {
        for holding in [HELD, TAKEN_OVER] {
            for seen in [live(State::Open(Phase::InProgress, holding)), lapsed(State::Open(Phase::InProgress, holding))]
            {
                let mine = Decision::Change(
                    to(State::Open(Phase::InProgress, holding), UNKNOWN),
                    Begun::Mine(grant(&holding, TOKEN)),
                );
                assert_eq!(begin(&seen, &by(ANN)), mine);
                assert_eq!(begin(&seen, &retry_by(ANN)), mine);
            }
        }
    }

    #[test]
    fn of_its_own_abandoned_grant_is_not_mine() {
        let seen = lapsed(State::Open(Phase::InProgress, ABANDONED));
        let again = Holding { lease: LEASE, attempt: 2, takeover: true, ..HELD };
        assert_eq!(begin(&seen, &retry_by(ANN)), granted(again));
        let held = to(State::Open(Phase::Indeterminate, ABANDONED), UNKNOWN);
        assert_eq!(begin(&seen, &by(ANN)), Decision::Change(held, Begun::Indeterminate(NOW)));
    }

    #[test]
    fn of_a_live_lease_is_busy_with_what_is_left() {
        let seen = live(State::Open(Phase::InProgress, HELD));
        for ask in [by(BOB), retry_by(BOB)] {
            assert_eq!(begin(&seen, &ask), Decision::Reply(Begun::Busy(Duration::from_secs(15))));
        }
    }

    #[test]
    fn of_a_lease_just_armed_is_busy_and_changes_nothing() {
        let seen = Observed { lease_left: LEASE.into(), ..live(State::Open(Phase::InProgress, HELD)) };
        assert_eq!(begin(&seen, &by(BOB)), Decision::Reply(Begun::Busy(LEASE.into())));
    }

    #[test]
    fn of_more_lease_than_there_can_be_arms_it_anew() {
        let lease_left = Duration::from(LEASE) + Duration::from_micros(1);
        let seen = Observed { lease_left, ..live(State::Open(Phase::InProgress, HELD)) };
        for ask in [by(BOB), retry_by(BOB)] {
            let change = to(State::Open(Phase::InProgress, HELD), UNKNOWN);
            assert_eq!(begin(&seen, &ask), Decision::Change(change, Begun::Busy(LEASE.into())));
        }
    }

    #[test]
    fn of_an_abandoned_record_finds_it_lapsed_though_the_clock_stepped_back() {
        let lease_left = Duration::from_secs(60);
        let seen = Observed { lease_left, ..live(State::Open(Phase::InProgress, ABANDONED)) };
        let next = Holding { owner: BOB, attempt: 2, takeover: true, ..HELD };
        assert_eq!(begin(&seen, &retry_by(BOB)), granted(next));
        let held = to(State::Open(Phase::Indeterminate, ABANDONED), UNKNOWN);
        assert_eq!(begin(&seen, &by(BOB)), Decision::Change(held, Begun::Indeterminate(NOW)));
    }

    #[test]
    fn of_a_lapsed_record_under_retry_takes_over() {
        let next = Holding { owner: BOB, attempt: 2, takeover: true, ..HELD };
        assert_eq!(begin(&lapsed(State::Open(Phase::InProgress, HELD)), &retry_by(BOB)), granted(next));
        assert_eq!(begin(&lapsed(State::Open(Phase::InProgress, ABANDONED)), &retry_by(BOB)), granted(next));
    }

    #[test]
    fn of_a_lapsed_record_under_hold_makes_it_indeterminate() {
        let ask = Begin { unknown_retention: Seconds(77), ..by(BOB) };
        for holding in [HELD, TAKEN_OVER, ABANDONED] {
            let change =
                to(State::Open(Phase::Indeterminate, Holding { lifetime: Seconds(77), ..holding }), Seconds(77));
            let held = Decision::Change(change, Begun::Indeterminate(NOW));
            assert_eq!(begin(&lapsed(State::Open(Phase::InProgress, holding)), &ask), held);
        }
    }

    #[test]
    fn of_an_indeterminate_record_says_since_when_under_every_policy() {
        let since = Timestamp(NOW.0 - 1_500_000_000);
        for ask in [by(ANN), retry_by(ANN), by(BOB), retry_by(BOB)] {
            let seen = live(State::Open(Phase::Indeterminate, HELD));
            assert_eq!(begin(&seen, &ask), Decision::Reply(Begun::Indeterminate(since)));
        }
    }

    #[test]
    fn of_a_dead_record_says_so() {
        for ask in [by(ANN), retry_by(ANN), by(BOB), retry_by(BOB)] {
            assert_eq!(begin(&live(State::Open(Phase::Dead, HELD)), &ask), Decision::Reply(Begun::Dead));
        }
    }

    #[test]
    fn of_a_released_record_is_granted_again() {
        let last = Holding { takeover: true, ..HELD };
        for holding in [HELD, last] {
            for (owner, ask) in [(ANN, by(ANN)), (BOB, by(BOB)), (BOB, retry_by(BOB))] {
                let next = Holding { owner, attempt: 2, ..HELD };
                assert_eq!(begin(&live(State::Open(Phase::Released, holding)), &ask), granted(next));
            }
        }
    }

    #[test]
    fn counts_attempts_up_to_the_largest_number() {
        let holding = Holding { attempt: u16::MAX, ..HELD };
        let next = Holding { owner: BOB, ..holding };
        assert_eq!(begin(&live(State::Open(Phase::Released, holding)), &by(BOB)), granted(next));
    }

    #[test]
    fn mints_above_the_record_the_mark_and_the_clock() {
        let minted = |record: u64, mark: u64, now: u64| {
            let mut seen = Observed {
                token_high_water: Token(mark),
                now: Timestamp(now),
                ..live(State::Open(Phase::Released, HELD))
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
        assert_eq!(minted((1 << 53) + 1, 0, 0), (1 << 53) + 2);
        let unswept = Observed { token_high_water: Token(0), now: Timestamp(1), ..expired(answered("it")) };
        let Decision::Change(change, _) = begin(&unswept, &by(BOB)) else { panic!("a grant was expected") };
        assert!(change.record.token > TOKEN, "an expired record still counts");
    }
}

mod a_renewal {
    use super::*;

    #[test]
    fn of_an_own_grant_arms_it_anew() {
        for holding in [HELD, TAKEN_OVER] {
            for seen in [live(State::Open(Phase::InProgress, holding)), lapsed(State::Open(Phase::InProgress, holding))]
            {
                let change = to(State::Open(Phase::InProgress, holding), UNKNOWN);
                assert_eq!(renew(&seen, &ANNS), Decision::Change(change, Renewed::Yes));
            }
        }
    }

    #[test]
    fn of_an_abandoned_grant_is_lost() {
        assert_eq!(renew(&lapsed(State::Open(Phase::InProgress, ABANDONED)), &ANNS), Decision::Reply(Renewed::Lost));
    }

    #[test]
    fn of_a_record_in_another_state_is_lost() {
        for seen in presences().iter().filter(|seen| !is(seen, Phase::InProgress)) {
            assert_eq!(renew(seen, &ANNS), Decision::Reply(Renewed::Lost));
        }
    }

    #[test]
    fn by_another_is_lost() {
        for seen in presences() {
            for claim in NOT_ANNS {
                assert_eq!(renew(&seen, &claim), Decision::Reply(Renewed::Lost));
            }
        }
    }

    #[test]
    fn of_an_absent_record_is_gone() {
        for seen in absences() {
            assert_eq!(renew(&seen, &ANNS), Decision::Reply(Renewed::Gone));
        }
    }
}

mod a_completion {
    use super::*;

    fn by(claim: Claim) -> Complete {
        let answer = Bytes::from_static(b"the answer");
        Complete { claim, fingerprint: PAYLOAD, answer, retention: RETENTION, age: Duration::ZERO }
    }

    fn done(token: Token) -> Decision<Completed> {
        Decision::Change(completed_under(token, "the answer"), Completed::Done)
    }

    fn lost(seen: &Observed) -> Decision<Completed> {
        Decision::Reply(Completed::Lost(seen.record.clone().unwrap()))
    }

    #[test]
    fn of_an_own_record_in_progress_is_done_lapsed_too() {
        for holding in [HELD, TAKEN_OVER, ABANDONED] {
            assert_eq!(complete(&live(State::Open(Phase::InProgress, holding)), &by(ANNS)), done(TOKEN));
            assert_eq!(complete(&lapsed(State::Open(Phase::InProgress, holding)), &by(ANNS)), done(TOKEN));
        }
    }

    #[test]
    fn of_an_own_indeterminate_or_released_record_is_done() {
        for holding in [HELD, TAKEN_OVER] {
            assert_eq!(complete(&live(State::Open(Phase::Indeterminate, holding)), &by(ANNS)), done(TOKEN));
            assert_eq!(complete(&live(State::Open(Phase::Released, holding)), &by(ANNS)), done(TOKEN));
        }
    }

    #[test]
    fn of_an_absent_record_recreates_it_while_the_answer_is_young() {
        let age = Duration::from(RETENTION) - Duration::from_micros(1);
        for seen in absences() {
            let recreated = Decision::Change(completed_under(TOKEN, "the answer"), Completed::Recreated);
            assert_eq!(complete(&seen, &Complete { age, ..by(ANNS) }), recreated);
        }
    }

    #[test]
    fn of_an_absent_record_is_gone_once_the_answer_is_old() {
        for age in [Duration::from(RETENTION), 2 * Duration::from(RETENTION)] {
            for seen in absences() {
                assert_eq!(complete(&seen, &Complete { age, ..by(ANNS) }), Decision::Reply(Completed::Gone));
            }
        }
    }

    #[test]
    fn asks_for_the_age_only_where_the_record_is_absent() {
        let old = Complete { age: Duration::MAX, ..by(ANNS) };
        assert_eq!(complete(&live(State::Open(Phase::InProgress, HELD)), &old), done(TOKEN));
    }

    #[test]
    fn under_the_token_of_the_recorded_answer_is_already() {
        for claim in [ANNS, Claim { owner: BOB, ..ANNS }] {
            assert_eq!(complete(&live(answered("another")), &by(claim)), Decision::Reply(Completed::Already));
        }
    }

    #[test]
    fn beats_whatever_is_under_another_token_but_an_answer() {
        for seen in presences().iter().filter(|seen| seen.record.as_ref().unwrap().state.holding().is_some()) {
            for token in [OTHER, Token(TOKEN.0 + 1)] {
                assert_eq!(complete(seen, &by(Claim { owner: BOB, token })), done(token));
                assert_eq!(complete(seen, &by(Claim { owner: ANN, token })), done(token));
            }
        }
    }

    #[test]
    fn for_another_payload_under_another_token_is_lost() {
        for seen in presences() {
            let other = Complete { fingerprint: OTHER_PAYLOAD, ..by(Claim { owner: BOB, token: OTHER }) };
            assert_eq!(complete(&seen, &other), lost(&seen));
        }
    }

    #[test]
    fn never_beats_a_recorded_answer() {
        let seen = live(answered("another"));
        assert_eq!(complete(&seen, &by(Claim { owner: BOB, token: OTHER })), lost(&seen));
        assert_eq!(complete(&seen, &by(Claim { owner: ANN, token: Token(99) })), lost(&seen));
    }

    #[test]
    fn of_an_own_dead_record_is_lost() {
        let seen = live(State::Open(Phase::Dead, HELD));
        assert_eq!(complete(&seen, &by(ANNS)), lost(&seen));
    }

    #[test]
    fn by_another_owner_under_the_same_token_is_lost() {
        for seen in presences().iter().filter(|seen| seen.record.as_ref().unwrap().state.holding().is_some()) {
            assert_eq!(complete(seen, &by(Claim { owner: BOB, token: TOKEN })), lost(seen));
        }
    }
}

mod a_release {
    use super::*;

    #[test]
    fn frees_an_own_grant_lapsed_too() {
        let change = to(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..HELD }), RELEASED);
        for seen in [live(State::Open(Phase::InProgress, HELD)), lapsed(State::Open(Phase::InProgress, HELD))] {
            assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Change(change.clone(), Settled::Yes));
        }
    }

    #[test]
    fn frees_an_own_abandoned_grant_that_knows_better() {
        let change = to(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..ABANDONED }), RELEASED);
        let seen = lapsed(State::Open(Phase::InProgress, ABANDONED));
        assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Change(change, Settled::Yes));
    }

    #[test]
    fn frees_an_own_indeterminate_record() {
        let change = to(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..HELD }), RELEASED);
        let seen = live(State::Open(Phase::Indeterminate, HELD));
        assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Change(change, Settled::Yes));
    }

    #[test]
    fn of_a_takeover_is_an_abandonment() {
        let abandoned = Holding { lease: Millis(0), ..TAKEN_OVER };
        let change = to(State::Open(Phase::InProgress, abandoned), UNKNOWN);
        let seen = live(State::Open(Phase::InProgress, TAKEN_OVER));
        assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Change(change, Settled::Yes));
        let seen = lapsed(State::Open(Phase::InProgress, abandoned));
        assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Reply(Settled::Yes));
    }

    #[test]
    fn of_an_indeterminate_takeover_leaves_it_so() {
        let seen = live(State::Open(Phase::Indeterminate, TAKEN_OVER));
        assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Reply(Settled::Yes));
    }

    #[test]
    fn repeated_is_yes() {
        for holding in [HELD, TAKEN_OVER] {
            let seen = live(State::Open(Phase::Released, holding));
            assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Reply(Settled::Yes));
        }
    }

    #[test]
    fn of_an_answer_or_a_dead_record_is_lost() {
        for seen in [live(answered("it")), live(State::Open(Phase::Dead, HELD))] {
            assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Reply(Settled::Lost));
        }
    }

    #[test]
    fn by_another_is_lost() {
        for seen in presences() {
            for claim in NOT_ANNS {
                assert_eq!(release(&seen, &claim, RELEASED), Decision::Reply(Settled::Lost));
            }
        }
    }

    #[test]
    fn of_an_absent_record_is_lost() {
        for seen in absences() {
            assert_eq!(release(&seen, &ANNS, RELEASED), Decision::Reply(Settled::Lost));
        }
    }
}

mod a_cancellation {
    use super::*;

    #[test]
    fn by_its_owner_is_a_release() {
        for seen in presences() {
            let expected = match release(&seen, &ANNS, RELEASED) {
                Decision::Change(change, Settled::Yes) => Decision::Change(change, Cancelled::Yes),
                Decision::Reply(Settled::Yes) => Decision::Reply(Cancelled::Yes),
                Decision::Reply(Settled::Lost) => Decision::Reply(Cancelled::Gone),
                Decision::Change(change, Settled::Lost) => {
                    panic!("a change that is lost: {change:?}")
                }
            };
            assert_eq!(cancel(&seen, ANN, RELEASED), expected);
        }
    }

    #[test]
    fn frees_a_grant_and_an_indeterminate_record() {
        let change = to(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..HELD }), RELEASED);
        for state in [State::Open(Phase::InProgress, HELD), State::Open(Phase::Indeterminate, HELD)] {
            assert_eq!(cancel(&live(state), ANN, RELEASED), Decision::Change(change.clone(), Cancelled::Yes));
        }
    }

    #[test]
    fn of_a_takeover_leaves_it_unknown() {
        let change = to(State::Open(Phase::InProgress, Holding { lease: Millis(0), ..TAKEN_OVER }), UNKNOWN);
        let seen = live(State::Open(Phase::InProgress, TAKEN_OVER));
        assert_eq!(cancel(&seen, ANN, RELEASED), Decision::Change(change, Cancelled::Yes));
        let seen = live(State::Open(Phase::Indeterminate, TAKEN_OVER));
        assert_eq!(cancel(&seen, ANN, RELEASED), Decision::Reply(Cancelled::Yes));
    }

    #[test]
    fn repeated_is_yes() {
        assert_eq!(cancel(&live(State::Open(Phase::Released, HELD)), ANN, RELEASED), Decision::Reply(Cancelled::Yes));
    }

    #[test]
    fn by_another_owner_or_of_an_absent_record_is_gone() {
        for seen in presences() {
            assert_eq!(cancel(&seen, BOB, RELEASED), Decision::Reply(Cancelled::Gone));
        }
        for seen in absences() {
            assert_eq!(cancel(&seen, ANN, RELEASED), Decision::Reply(Cancelled::Gone));
        }
    }
}

mod an_abandonment {
    use super::*;

    #[test]
    fn ends_the_lease_for_good() {
        for holding in [HELD, TAKEN_OVER] {
            for seen in [live(State::Open(Phase::InProgress, holding)), lapsed(State::Open(Phase::InProgress, holding))]
            {
                let change = to(State::Open(Phase::InProgress, Holding { lease: Millis(0), ..holding }), UNKNOWN);
                assert_eq!(abandon(&seen, &ANNS), Decision::Change(change, Settled::Yes));
            }
        }
    }

    #[test]
    fn repeated_or_marked_since_is_yes() {
        for state in [
            State::Open(Phase::InProgress, ABANDONED),
            State::Open(Phase::Indeterminate, HELD),
            State::Open(Phase::Indeterminate, TAKEN_OVER),
        ] {
            assert_eq!(abandon(&lapsed(state), &ANNS), Decision::Reply(Settled::Yes));
        }
    }

    #[test]
    fn of_what_is_settled_is_lost() {
        for state in [answered("it"), State::Open(Phase::Released, HELD), State::Open(Phase::Dead, HELD)] {
            assert_eq!(abandon(&live(state), &ANNS), Decision::Reply(Settled::Lost));
        }
    }

    #[test]
    fn by_another_is_lost() {
        for seen in presences() {
            for claim in NOT_ANNS {
                assert_eq!(abandon(&seen, &claim), Decision::Reply(Settled::Lost));
            }
        }
    }

    #[test]
    fn of_an_absent_record_is_lost() {
        for seen in absences() {
            assert_eq!(abandon(&seen, &ANNS), Decision::Reply(Settled::Lost));
        }
    }
}

mod a_burial {
    use super::*;

    fn buried(holding: Holding) -> Decision<Settled> {
        Decision::Change(to(State::Open(Phase::Dead, Holding { lifetime: DEAD, ..holding }), DEAD), Settled::Yes)
    }

    #[test]
    fn closes_an_own_grant() {
        for holding in [HELD, TAKEN_OVER, ABANDONED] {
            assert_eq!(bury(&live(State::Open(Phase::InProgress, holding)), &ANNS, DEAD), buried(holding));
            assert_eq!(bury(&lapsed(State::Open(Phase::InProgress, holding)), &ANNS, DEAD), buried(holding));
        }
    }

    #[test]
    fn closes_an_own_indeterminate_record() {
        assert_eq!(bury(&live(State::Open(Phase::Indeterminate, HELD)), &ANNS, DEAD), buried(HELD));
    }

    #[test]
    fn of_an_indeterminate_takeover_is_lost() {
        let seen = live(State::Open(Phase::Indeterminate, TAKEN_OVER));
        assert_eq!(bury(&seen, &ANNS, DEAD), Decision::Reply(Settled::Lost));
    }

    #[test]
    fn repeated_is_yes() {
        assert_eq!(bury(&live(State::Open(Phase::Dead, HELD)), &ANNS, DEAD), Decision::Reply(Settled::Yes));
    }

    #[test]
    fn of_an_answer_or_a_released_record_is_lost() {
        for seen in [live(answered("it")), live(State::Open(Phase::Released, HELD))] {
            assert_eq!(bury(&seen, &ANNS, DEAD), Decision::Reply(Settled::Lost));
        }
    }

    #[test]
    fn by_another_is_lost() {
        for seen in presences() {
            for claim in NOT_ANNS {
                assert_eq!(bury(&seen, &claim, DEAD), Decision::Reply(Settled::Lost));
            }
        }
    }

    #[test]
    fn of_an_absent_record_is_lost() {
        for seen in absences() {
            assert_eq!(bury(&seen, &ANNS, DEAD), Decision::Reply(Settled::Lost));
        }
    }
}

mod a_hold {
    use super::*;

    #[test]
    fn marks_a_lapsed_record_unknown() {
        for holding in [HELD, TAKEN_OVER, ABANDONED] {
            let change =
                to(State::Open(Phase::Indeterminate, Holding { lifetime: Seconds(77), ..holding }), Seconds(77));
            let seen = lapsed(State::Open(Phase::InProgress, holding));
            assert_eq!(hold(&seen, TOKEN, Seconds(77)), Decision::Change(change, Resolved::Yes));
        }
    }

    #[test]
    fn of_an_abandoned_record_marks_it_though_the_clock_stepped_back() {
        let lease_left = Duration::from_secs(60);
        let seen = Observed { lease_left, ..live(State::Open(Phase::InProgress, ABANDONED)) };
        let change = to(State::Open(Phase::Indeterminate, ABANDONED), UNKNOWN);
        assert_eq!(hold(&seen, TOKEN, UNKNOWN), Decision::Change(change, Resolved::Yes));
    }

    #[test]
    fn of_a_live_lease_is_stale() {
        let seen = live(State::Open(Phase::InProgress, HELD));
        assert_eq!(hold(&seen, TOKEN, UNKNOWN), Decision::Reply(Resolved::Stale));
    }

    #[test]
    fn repeated_is_yes() {
        let seen = live(State::Open(Phase::Indeterminate, HELD));
        assert_eq!(hold(&seen, TOKEN, UNKNOWN), Decision::Reply(Resolved::Yes));
    }

    #[test]
    fn under_another_token_is_stale() {
        for seen in presences() {
            for token in [OTHER, Token(TOKEN.0 + 1)] {
                assert_eq!(hold(&seen, token, UNKNOWN), Decision::Reply(Resolved::Stale));
            }
        }
    }

    #[test]
    fn of_anything_else_is_stale() {
        let mut others = absences();
        others.extend([answered("it"), State::Open(Phase::Released, HELD), State::Open(Phase::Dead, HELD)].map(live));
        for seen in others {
            assert_eq!(hold(&seen, TOKEN, UNKNOWN), Decision::Reply(Resolved::Stale));
        }
    }
}

mod a_verdict {
    use super::*;

    fn done(answer: &'static str) -> Verdict {
        Verdict::Done { answer: Bytes::from_static(answer.as_bytes()), retention: RETENTION }
    }

    const NOT_DONE: Verdict = Verdict::NotDone { lifetime: RELEASED };

    #[test]
    fn of_done_completes_under_a_new_token() {
        for holding in [HELD, TAKEN_OVER, ABANDONED] {
            let change = completed_under(NEXT, "the answer");
            let seen = live(State::Open(Phase::Indeterminate, holding));
            assert_eq!(resolve(&seen, TOKEN, &done("the answer")), Decision::Change(change, Resolved::Yes));
        }
    }

    #[test]
    fn of_not_done_releases_and_keeps_token_and_owner() {
        for holding in [HELD, TAKEN_OVER] {
            let change = to(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..holding }), RELEASED);
            let seen = live(State::Open(Phase::Indeterminate, holding));
            assert_eq!(resolve(&seen, TOKEN, &NOT_DONE), Decision::Change(change, Resolved::Yes));
        }
    }

    #[test]
    fn under_another_token_is_stale() {
        for token in [OTHER, Token(TOKEN.0 + 1)] {
            for verdict in [done("the answer"), NOT_DONE] {
                let seen = live(State::Open(Phase::Indeterminate, HELD));
                assert_eq!(resolve(&seen, token, &verdict), Decision::Reply(Resolved::Stale));
            }
        }
    }

    #[test]
    fn repeated_is_yes() {
        assert_eq!(resolve(&live(answered("it")), OTHER, &done("it")), Decision::Reply(Resolved::Yes));
        assert_eq!(
            resolve(&live(State::Open(Phase::Released, HELD)), TOKEN, &NOT_DONE),
            Decision::Reply(Resolved::Yes)
        );
    }

    #[test]
    fn of_another_answer_than_stands_is_stale() {
        assert_eq!(resolve(&live(answered("it")), OTHER, &done("that")), Decision::Reply(Resolved::Stale));
        assert_eq!(resolve(&live(answered("it")), OTHER, &NOT_DONE), Decision::Reply(Resolved::Stale));
    }

    #[test]
    fn of_the_answer_that_stood_before_is_stale() {
        for expected in [TOKEN, Token(TOKEN.0 + 1)] {
            assert_eq!(resolve(&live(answered("it")), expected, &done("it")), Decision::Reply(Resolved::Stale));
        }
    }

    #[test]
    fn of_what_is_not_indeterminate_is_stale() {
        let mut others = absences();
        others.extend(
            [
                State::Open(Phase::InProgress, HELD),
                State::Open(Phase::InProgress, ABANDONED),
                State::Open(Phase::Dead, HELD),
            ]
            .map(lapsed),
        );
        for seen in others {
            for verdict in [done("the answer"), NOT_DONE] {
                assert_eq!(resolve(&seen, TOKEN, &verdict), Decision::Reply(Resolved::Stale));
            }
        }
        let released = live(State::Open(Phase::Released, HELD));
        assert_eq!(resolve(&released, TOKEN, &done("the answer")), Decision::Reply(Resolved::Stale));
        assert_eq!(resolve(&released, OTHER, &NOT_DONE), Decision::Reply(Resolved::Stale));
    }
}

mod a_reopening {
    use super::*;

    #[test]
    fn frees_a_dead_record_under_a_new_token() {
        let record =
            Record { token: NEXT, ..record(State::Open(Phase::Released, Holding { lifetime: RELEASED, ..HELD })) };
        let change = Change { record, lifetime: RELEASED };
        let seen = live(State::Open(Phase::Dead, HELD));
        assert_eq!(reopen(&seen, TOKEN, RELEASED), Decision::Change(change, Resolved::Yes));
    }

    #[test]
    fn repeated_is_yes() {
        let seen = live(State::Open(Phase::Released, HELD));
        assert_eq!(reopen(&seen, OTHER, RELEASED), Decision::Reply(Resolved::Yes));
    }

    #[test]
    fn under_another_token_is_stale() {
        for token in [OTHER, Token(TOKEN.0 + 1)] {
            let seen = live(State::Open(Phase::Dead, HELD));
            assert_eq!(reopen(&seen, token, RELEASED), Decision::Reply(Resolved::Stale));
        }
        for token in [TOKEN, Token(TOKEN.0 + 1)] {
            let seen = live(State::Open(Phase::Released, HELD));
            assert_eq!(reopen(&seen, token, RELEASED), Decision::Reply(Resolved::Stale));
        }
    }

    #[test]
    fn of_anything_else_is_stale() {
        let mut others = absences();
        others.extend(
            [State::Open(Phase::InProgress, HELD), answered("it"), State::Open(Phase::Indeterminate, HELD)].map(lapsed),
        );
        for seen in others {
            for expected in [TOKEN, OTHER] {
                assert_eq!(reopen(&seen, expected, RELEASED), Decision::Reply(Resolved::Stale));
            }
        }
    }
}

/// A store whose begin finds nothing builds the same grant as the machine would.
#[test]
fn the_first_grant_is_that_of_a_begin() {
    let call = hapax_core::Call::new(RK).fingerprint(PAYLOAD);
    let ask = Begin { call, owner: ANN, lease: LEASE, unknown_retention: UNKNOWN, on_lapse: Lapse::Hold };
    for seen in absences() {
        let (change, grant) = first_grant(&ask, &seen);
        assert_eq!(begin(&seen, &ask), Decision::Change(change, Begun::Granted(grant)));
    }
}

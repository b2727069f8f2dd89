//! The rows of `complete`.

use super::*;

fn by(claim: Claim) -> Complete {
    let answer = Bytes::from_static(b"the answer");
    Complete { claim, fingerprint: PAYLOAD, answer, retention: RETENTION, ended: NOW, age: Duration::ZERO }
}

fn done(token: Token) -> Decision<Completed> {
    Decision::Change(completed_under(token, "the answer"), Completed::Done)
}

fn lost(seen: &Observed) -> Decision<Completed> {
    Decision::Reply(Completed::Lost(seen.record.clone().unwrap()))
}

#[test]
fn c6_completes_its_own_record_in_progress_also_after_the_lease() {
    for holding in [FIRST_ATTEMPT, TAKEN_OVER, ABANDONED] {
        assert_eq!(complete(&live(State::Open(Phase::InProgress, holding)), &by(CLAIM_OF_ANN)), done(TOKEN));
        assert_eq!(complete(&lapsed(State::Open(Phase::InProgress, holding)), &by(CLAIM_OF_ANN)), done(TOKEN));
    }
}

#[test]
fn c6_completes_its_own_indeterminate_or_released_record() {
    for holding in [FIRST_ATTEMPT, TAKEN_OVER] {
        assert_eq!(complete(&live(State::Open(Phase::Indeterminate, holding)), &by(CLAIM_OF_ANN)), done(TOKEN));
        assert_eq!(complete(&live(State::Open(Phase::Released, holding)), &by(CLAIM_OF_ANN)), done(TOKEN));
    }
}

#[test]
fn c1_recreates_an_absent_record_for_a_young_answer() {
    let age = Duration::from(RETENTION) - Duration::from_micros(1);
    for seen in absences() {
        let recreated = Decision::Change(completed_under(TOKEN, "the answer"), Completed::Recreated);
        assert_eq!(complete(&seen, &Complete { age, ..by(CLAIM_OF_ANN) }), recreated);
    }
}

#[test]
fn c2_discards_an_old_answer_when_the_record_is_absent() {
    for age in [Duration::from(RETENTION), 2 * Duration::from(RETENTION)] {
        for seen in absences() {
            assert_eq!(complete(&seen, &Complete { age, ..by(CLAIM_OF_ANN) }), Decision::Reply(Completed::Gone));
        }
    }
}

#[test]
fn c6_ignores_the_age_when_the_record_exists() {
    let old = Complete { age: Duration::MAX, ..by(CLAIM_OF_ANN) };
    assert_eq!(complete(&live(State::Open(Phase::InProgress, FIRST_ATTEMPT)), &old), done(TOKEN));
}

#[test]
fn c3_is_already_recorded_under_its_token_with_the_same_answer() {
    for claim in [CLAIM_OF_ANN, Claim { owner: BOB, ..CLAIM_OF_ANN }] {
        assert_eq!(complete(&live(answered("the answer")), &by(claim)), Decision::Reply(Completed::Already));
    }
}

#[test]
fn c4_replies_lost_if_another_answer_is_recorded_under_its_token() {
    for recorded in ["another", "the answer, and more", ""] {
        let seen = live(answered(recorded));
        assert_eq!(complete(&seen, &by(CLAIM_OF_ANN)), lost(&seen));
    }
}

#[test]
fn c7_overrides_every_open_record_under_another_token() {
    for seen in presences().iter().filter(|seen| seen.record.as_ref().unwrap().state.holding().is_some()) {
        for token in [OTHER, Token(TOKEN.0 + 1)] {
            assert_eq!(complete(seen, &by(Claim { owner: BOB, token })), done(token));
            assert_eq!(complete(seen, &by(Claim { owner: ANN, token })), done(token));
        }
    }
}

#[test]
fn c7_overrides_every_open_record_of_another_owner_under_its_token() {
    for seen in presences().iter().filter(|seen| seen.record.as_ref().unwrap().state.holding().is_some()) {
        assert_eq!(complete(seen, &by(Claim { owner: BOB, token: TOKEN })), done(TOKEN));
    }
}

#[test]
fn c8_replies_lost_to_another_payload_under_another_token_or_owner() {
    for seen in presences().iter().filter(|seen| seen.record.as_ref().unwrap().state.holding().is_some()) {
        for token in [OTHER, TOKEN] {
            let other = Complete { fingerprint: OTHER_PAYLOAD, ..by(Claim { owner: BOB, token }) };
            assert_eq!(complete(seen, &other), lost(seen));
        }
    }
}

#[test]
fn c4_replies_lost_if_an_answer_is_recorded_under_another_token() {
    let seen = live(answered("another"));
    assert_eq!(complete(&seen, &by(Claim { owner: BOB, token: OTHER })), lost(&seen));
    assert_eq!(complete(&seen, &by(Claim { owner: ANN, token: Token(99) })), lost(&seen));
}

#[test]
fn c5_replies_lost_if_its_own_record_is_dead() {
    let seen = live(State::Open(Phase::Dead, FIRST_ATTEMPT));
    assert_eq!(complete(&seen, &by(CLAIM_OF_ANN)), lost(&seen));
}

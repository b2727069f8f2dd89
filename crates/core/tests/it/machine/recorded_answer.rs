//! The rows of `recorded_answer`.

use super::*;

#[test]
fn g1_is_the_recorded_one_for_the_same_payload() {
    let record = record(answered("theirs"));
    let answer = recorded_answer(&record, PAYLOAD).map(|completion| &completion.answer[..]);
    assert_eq!(answer, Some(&b"theirs"[..]));
}

#[test]
fn g2_is_none_for_another_payload() {
    assert_eq!(recorded_answer(&record(answered("theirs")), OTHER_PAYLOAD), None);
    assert_eq!(recorded_answer(&record(answered("theirs")), Fingerprint::NONE), None);
}

#[test]
fn g3_is_none_while_the_record_is_open() {
    for phase in [Phase::InProgress, Phase::Released, Phase::Indeterminate, Phase::Dead] {
        assert_eq!(recorded_answer(&record(State::Open(phase, FIRST_ATTEMPT)), PAYLOAD), None);
    }
}

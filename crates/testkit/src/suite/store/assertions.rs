//! Returns the content of an expected reply, or fails the test; and compares times.

#![expect(clippy::needless_pass_by_value, reason = "a case passes a reply on without a name for it")]

use std::time::Duration;

use bytes::Bytes;
use hapax_core::machine::{Begun, Completed, Grant};
use hapax_core::{Completion, Holding, Phase, Record, State, Timestamp};

/// How far a server's clock may run on while a case runs.
const SLACK: Duration = Duration::from_secs(5);

pub(super) fn expect_grant(begun: Begun) -> Grant {
    let Begun::Granted(grant) = begun else {
        panic!("expected granted, got {begun:?}");
    };
    grant
}

pub(super) fn expect_mine(begun: Begun) -> Grant {
    let Begun::Mine(grant) = begun else {
        panic!("expected mine, got {begun:?}");
    };
    grant
}

pub(super) fn expect_busy(begun: Begun) -> Duration {
    let Begun::Busy(left) = begun else {
        panic!("expected busy, got {begun:?}");
    };
    left
}

pub(super) fn expect_replay(begun: Begun) -> Completion {
    let Begun::Replay(completion) = begun else {
        panic!("expected a replay, got {begun:?}");
    };
    completion
}

pub(super) fn expect_indeterminate(begun: Begun) -> Timestamp {
    let Begun::Indeterminate(since) = begun else {
        panic!("expected indeterminate, got {begun:?}");
    };
    since
}

/// The recorded answer in the reply to a lost completion.
pub(super) fn expect_recorded_answer(completed: Completed) -> Bytes {
    let Completed::Lost(record) = completed else {
        panic!("expected lost, got {completed:?}");
    };
    let State::Completed(completion) = record.state else {
        panic!("expected a completed record, got {record:?}");
    };
    completion.answer
}

/// The holding of a record in progress.
pub(super) fn expect_in_progress(record: &Record) -> Holding {
    let State::Open(Phase::InProgress, holding) = &record.state else {
        panic!("expected a record in progress, got {record:?}");
    };
    *holding
}

/// The remaining time is as expected, less the time that has passed on a server's clock.
#[track_caller]
pub(super) fn assert_left(left: Duration, expected: impl Into<Duration>) {
    let expected = expected.into();
    assert!(left <= expected && left + SLACK > expected, "{left:?} is left, not {expected:?}");
}

#[track_caller]
pub(super) fn assert_same_time(one: Timestamp, other: Timestamp) {
    let apart = one.since(other).max(other.since(one));
    assert!(apart < SLACK, "{one:?} and {other:?} are {apart:?} apart");
}

//! Fingerprints under two rules: the rule belongs to the fingerprint, and every write stores it.

use hapax_core::machine::{Begin, Begun, Change, Complete, Completed};
use hapax_core::store::Swapped;
use hapax_core::{Fingerprint, Record, Rule};

use super::assertions::*;
use super::operation::*;
use crate::setup::Setup;

/// The same bytes as the fingerprint of an operation, under rule 1 or another rule.
fn under(rule: u8) -> Fingerprint {
    Fingerprint::from_parts(Rule(rule), *payload("the payload").as_bytes())
}

pub(super) async fn every_write_stores_the_rule(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let grant = operation.grant(FIRST).await;
    assert_eq!(operation.record().await.fingerprint, under(1));

    let seen = operation.read().await;
    let record = Record { fingerprint: under(2), ..operation.record().await };
    let next = Change { record, lifetime: UNKNOWN };
    assert_eq!(operation.swap(&seen, &next).await, Swapped::Yes);
    assert_eq!(operation.record().await.fingerprint, under(2));

    let completion = Complete { fingerprint: under(3), ..operation.completion(&grant, "the answer") };
    assert_eq!(operation.complete_as(&completion).await, Completed::Done);
    assert_eq!(operation.record().await.fingerprint, under(3));

    setup.expire(&operation.rk()).await;
    let newer = Begin { call: operation.call().fingerprint(under(4)), ..operation.hold_begin(SECOND) };
    expect_grant(operation.begin_as(&newer).await);
    assert_eq!(operation.record().await.fingerprint, under(4));
}

pub(super) async fn begin_mismatch_under_another_rule(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    operation.grant(FIRST).await;
    let newer = operation.call().fingerprint(under(2));
    let begin = Begin { call: newer, ..operation.hold_begin(SECOND) };
    assert_eq!(operation.begin_as(&begin).await, Begun::Mismatch);
    // During a change of the rule a call accepts both.
    let both = Begin { call: newer.or_older(under(1)), ..begin };
    expect_busy(operation.begin_as(&both).await);
}

pub(super) async fn complete_lost_under_another_rule(setup: &dyn Setup) {
    let operation = SuiteOperation::new(setup);
    let first = operation.grant(FIRST).await;
    setup.expire(&operation.rk()).await;
    let newer = Begin { call: operation.call().fingerprint(under(2)), ..operation.hold_begin(SECOND) };
    expect_grant(operation.begin_as(&newer).await);
    let before = operation.record().await;
    assert_eq!(operation.complete(&first, "the answer").await, Completed::Lost(before));
}

//! One operation of a case: its attempts, and their calls to the store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::machine::{
    Begin, Begun, Cancelled, Change, Claim, Complete, Completed, Grant, Lapse, Observed, Renewed, Resolved, Settled,
    Verdict,
};
use hapax_core::store::{Protocol, Swapped};
use hapax_core::{
    Call, Fingerprint, Identity, Key, Millis, Owner, Record, RecordKey, Rule, Scope, Seconds, Store, Timestamp, Token,
};

use super::assertions::{assert_same_time, expect_grant, expect_indeterminate, expect_replay};
use crate::setup::Setup;

pub(super) const LEASE: Millis = Millis(30_000);
pub(super) const UNKNOWN: Seconds = Seconds(30 * 24 * 3600);
pub(super) const RETENTION: Seconds = Seconds(24 * 3600);
/// When the attempts ended, by a clock that is years behind that of the store.
const ENDED: Timestamp = Timestamp(1_500_000_000_000_000);
pub(super) const RELEASED: Seconds = Seconds(600);
pub(super) const DEAD: Seconds = Seconds(20 * 24 * 3600);

pub(super) const FIRST: Owner = Owner([1; 16]);
pub(super) const SECOND: Owner = Owner([2; 16]);
pub(super) const THIRD: Owner = Owner([3; 16]);

/// A part of a lease, long compared to the duration of a case.
pub(super) const WHILE: Duration = Duration::from_secs(10);

/// How many operations a concurrent case uses.
pub(super) const INSTANCES: u32 = 200;

/// The owner of the n-th racer, different from the three constants.
pub(super) fn racer(n: u32) -> Owner {
    let mut bytes = [0xEE; 16];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    Owner(bytes)
}

/// The fingerprint of a payload.
pub(super) fn payload(text: &str) -> Fingerprint {
    Identity::plain().fingerprint(Rule(1), &[text.as_bytes()])
}

/// The record key of a key in the default scope of the cases.
pub(super) fn record_key(key: &[u8]) -> RecordKey {
    scoped("conformance", "acme", key)
}

/// The record key of a key in a scope.
pub(super) fn scoped(namespace: &str, tenant: &str, key: &[u8]) -> RecordKey {
    let scope = Scope::tenant(namespace, tenant).expect("the scope is valid");
    Identity::plain().record_key(&scope, &Key::new(key).expect("the key is valid"))
}

/// An operation. Its attempts share one record.
#[derive(Clone)]
pub(super) struct SuiteOperation {
    store: Arc<dyn Store>,
    call: Call,
}

impl SuiteOperation {
    /// The operation of a case that needs only one.
    pub(super) fn new(setup: &dyn Setup) -> Self {
        Self::nth(setup, 0)
    }

    /// The n-th of several operations.
    pub(super) fn nth(setup: &dyn Setup, n: u32) -> Self {
        Self::with_key(setup, record_key(format!("operation {n}").as_bytes()))
    }

    /// The first `count` operations.
    pub(super) fn many(setup: &dyn Setup, count: u32) -> Vec<Self> {
        (0..count).map(|n| Self::nth(setup, n)).collect()
    }

    /// The operation with this record key.
    pub(super) fn with_key(setup: &dyn Setup, rk: RecordKey) -> Self {
        Self { store: setup.store(), call: Call::new(rk).fingerprint(payload("the payload")) }
    }

    pub(super) fn store(&self) -> &dyn Store {
        &*self.store
    }

    pub(super) fn call(&self) -> Call {
        self.call
    }

    pub(super) fn rk(&self) -> RecordKey {
        self.call.record_key()
    }

    fn protocol(&self) -> Protocol<'_> {
        Protocol::over(&*self.store)
    }

    /// A begin by this owner under the policy Hold.
    pub(super) fn hold_begin(&self, owner: Owner) -> Begin {
        Begin { call: self.call, owner, lease: LEASE, unknown_retention: UNKNOWN, on_lapse: Lapse::Hold }
    }

    /// A begin by this owner under the policy Retry.
    pub(super) fn retry_begin(&self, owner: Owner) -> Begin {
        Begin { on_lapse: Lapse::Retry, ..self.hold_begin(owner) }
    }

    /// A begin by this owner for another payload, under the policy Retry.
    pub(super) fn other_payload_begin(&self, owner: Owner) -> Begin {
        Begin { call: self.call.fingerprint(payload("another payload")), ..self.retry_begin(owner) }
    }

    pub(super) async fn begin_as(&self, ask: &Begin) -> Begun {
        let begun = self.protocol().begin(ask).await;
        begun.expect("the begin failed")
    }

    /// Begins under the policy Hold.
    pub(super) async fn begin(&self, owner: Owner) -> Begun {
        self.begin_as(&self.hold_begin(owner)).await
    }

    /// Begins under the policy Retry.
    pub(super) async fn retry(&self, owner: Owner) -> Begun {
        self.begin_as(&self.retry_begin(owner)).await
    }

    /// Begins for another payload, under the policy Retry.
    pub(super) async fn other_payload(&self, owner: Owner) -> Begun {
        self.begin_as(&self.other_payload_begin(owner)).await
    }

    /// Begins under the policy Hold. The begin must be granted.
    pub(super) async fn grant(&self, owner: Owner) -> Grant {
        expect_grant(self.begin(owner).await)
    }

    /// Makes the lease expire and begins under the policy Retry. The begin must be granted as a takeover.
    pub(super) async fn take_over(&self, setup: &dyn Setup, owner: Owner) -> Grant {
        setup.lapse(&self.rk()).await;
        let grant = expect_grant(self.retry(owner).await);
        assert!(grant.takeover, "{grant:?}");
        grant
    }

    /// Makes the lease expire and begins under the policy Hold. The record must become indeterminate; returns since
    /// when it is.
    pub(super) async fn lapse_and_hold(&self, setup: &dyn Setup, by: Owner) -> Timestamp {
        setup.lapse(&self.rk()).await;
        expect_indeterminate(self.begin(by).await)
    }

    /// Begins and completes with this answer.
    pub(super) async fn grant_and_complete(&self, owner: Owner, answer: &str) -> Grant {
        let grant = self.grant(owner).await;
        assert_eq!(self.complete(&grant, answer).await, Completed::Done);
        grant
    }

    /// A completion of this grant with this answer.
    pub(super) fn completion(&self, grant: &Grant, answer: impl Into<Bytes>) -> Complete {
        Complete {
            claim: Claim::from(grant),
            fingerprint: grant.fingerprint,
            answer: answer.into(),
            retention: RETENTION,
            ended: ENDED,
            age: Duration::ZERO,
        }
    }

    pub(super) async fn complete_as(&self, ask: &Complete) -> Completed {
        let completed = self.protocol().complete(&self.rk(), ask).await;
        completed.expect("the completion failed")
    }

    pub(super) async fn complete(&self, grant: &Grant, answer: &str) -> Completed {
        self.complete_as(&self.completion(grant, answer.to_owned())).await
    }

    pub(super) async fn renew_as(&self, claim: &Claim) -> Renewed {
        let renewed = self.protocol().renew(&self.rk(), claim).await;
        renewed.expect("the renewal failed")
    }

    pub(super) async fn renew(&self, grant: &Grant) -> Renewed {
        self.renew_as(&Claim::from(grant)).await
    }

    pub(super) async fn release_as(&self, claim: &Claim) -> Settled {
        let settled = self.protocol().release(&self.rk(), claim, RELEASED).await;
        settled.expect("the release failed")
    }

    pub(super) async fn release(&self, grant: &Grant) -> Settled {
        self.release_as(&Claim::from(grant)).await
    }

    pub(super) async fn cancel(&self, owner: Owner) -> Cancelled {
        let cancelled = self.protocol().cancel(&self.rk(), owner, RELEASED).await;
        cancelled.expect("the cancellation failed")
    }

    pub(super) async fn abandon(&self, grant: &Grant) -> Settled {
        let claim = Claim::from(grant);
        let settled = self.protocol().abandon(&self.rk(), &claim).await;
        settled.expect("the abandonment failed")
    }

    pub(super) async fn bury(&self, grant: &Grant) -> Settled {
        let claim = Claim::from(grant);
        let settled = self.protocol().bury(&self.rk(), &claim, DEAD).await;
        settled.expect("the burial failed")
    }

    pub(super) async fn hold(&self, expected: Token) -> Resolved {
        let resolved = self.protocol().hold(&self.rk(), expected, UNKNOWN).await;
        resolved.expect("the hold failed")
    }

    pub(super) async fn resolve_as(&self, expected: Token, verdict: &Verdict) -> Resolved {
        let resolved = self.protocol().resolve(&self.rk(), expected, verdict).await;
        resolved.expect("the verdict failed")
    }

    pub(super) async fn resolve_done(&self, expected: Token, answer: &str) -> Resolved {
        let answer = Bytes::from(answer.to_owned());
        let retention = RETENTION;
        self.resolve_as(expected, &Verdict::Done { answer, retention }).await
    }

    pub(super) async fn resolve_not_done(&self, expected: Token) -> Resolved {
        let lifetime = RELEASED;
        self.resolve_as(expected, &Verdict::NotDone { lifetime }).await
    }

    pub(super) async fn reopen(&self, expected: Token) -> Resolved {
        let resolved = self.protocol().reopen(&self.rk(), expected, RELEASED).await;
        resolved.expect("the reopening failed")
    }

    /// Calls the store's own swap.
    pub(super) async fn swap(&self, seen: &Observed, next: &Change) -> Swapped {
        let swapped = self.store.swap(&self.rk(), seen, next).await;
        swapped.expect("the swap failed")
    }

    pub(super) async fn read(&self) -> Observed {
        let seen = self.store.read(&self.rk()).await;
        seen.expect("the read failed")
    }

    /// The live record, which must exist.
    pub(super) async fn record(&self) -> Record {
        let seen = self.read().await;
        seen.live().expect("the record is absent").clone()
    }

    /// The record is unchanged, and neither its lease nor its lifetime was renewed.
    pub(super) async fn assert_unchanged(&self, before: &Observed) {
        let seen = self.read().await;
        assert_eq!(seen.record, before.record);
        let life_ends = |seen: &Observed| seen.now.plus(seen.life_left);
        assert_same_time(life_ends(&seen), life_ends(before));
        let lease_ends = |seen: &Observed| seen.now.plus(seen.lease_left);
        if before.lease_left.is_zero() || seen.lease_left.is_zero() {
            assert_eq!(seen.lease_left, Duration::ZERO, "the lease was renewed");
        } else {
            assert_same_time(lease_ends(&seen), lease_ends(before));
        }
    }

    /// A begin by any owner replays this answer.
    pub(super) async fn assert_replays(&self, answer: &str) {
        for owner in [FIRST, SECOND, THIRD] {
            let replayed = expect_replay(self.begin(owner).await);
            assert_eq!(replayed.answer, answer);
        }
    }
}

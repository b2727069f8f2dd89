//! What the cases are written with: one operation, the attempts at it, and what they ask of the store.

#![expect(clippy::needless_pass_by_value, reason = "a case hands a reply on as it comes, without a name for it")]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use hapax_core::machine::{
    Begin, Begun, Cancelled, Change, Claim, Complete, Completed, Grant, Lapse, Observed, Renewed, Resolved, Settled,
    Verdict,
};
use hapax_core::store::{Protocol, Swapped};
use hapax_core::{
    Call, Completion, Fingerprint, Holding, Identity, Key, Millis, Owner, Phase, Record, RecordKey, Rule, Scope,
    Seconds, State, Store, Timestamp, Token,
};

use crate::setup::{Setup, Step};

pub(super) const LEASE: Millis = Millis(30_000);
pub(super) const UNKNOWN: Seconds = Seconds(30 * 24 * 3600);
pub(super) const RETENTION: Seconds = Seconds(24 * 3600);
pub(super) const RELEASED: Seconds = Seconds(600);
pub(super) const DEAD: Seconds = Seconds(20 * 24 * 3600);

pub(super) const FIRST: Owner = Owner([1; 16]);
pub(super) const SECOND: Owner = Owner([2; 16]);
pub(super) const THIRD: Owner = Owner([3; 16]);

/// A part of a lease that is long against the time a case takes.
pub(super) const WHILE: Duration = Duration::from_secs(10);

/// How many instances of a case run at once where it must hold under concurrency.
pub(super) const INSTANCES: u32 = 200;

/// A server's clock goes on while a case runs.
const SLACK: Duration = Duration::from_secs(5);

/// Long enough for the slowest store on the busiest machine; only a deadlock lasts longer.
const DEADLINE: Duration = Duration::from_secs(60);

/// An owner apart from the three with names.
pub(super) fn racer(n: u32) -> Owner {
    let mut bytes = [0xEE; 16];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    Owner(bytes)
}

/// The fingerprint of a payload.
pub(super) fn payload(text: &str) -> Fingerprint {
    Identity::plain().fingerprint(Rule(1), &[text.as_bytes()])
}

/// The record key of a key, in the namespace and for the tenant of all cases.
pub(super) fn record_key(key: &[u8]) -> RecordKey {
    scoped("conformance", "acme", key)
}

/// The record key of a key in a scope.
pub(super) fn scoped(namespace: &str, tenant: &str, key: &[u8]) -> RecordKey {
    let scope = Scope::tenant(namespace, tenant).expect("the scope is valid");
    Identity::plain().record_key(&scope, &Key::new(key).expect("the key is valid"))
}

/// One operation: the attempts at it share its record.
#[derive(Clone)]
pub(super) struct Operation {
    store: Arc<dyn Store>,
    call: Call,
}

impl Operation {
    /// The operation of a case that needs only one.
    pub(super) fn on(setup: &dyn Setup) -> Self {
        Self::nth(setup, 0)
    }

    /// One of many.
    pub(super) fn nth(setup: &dyn Setup, n: u32) -> Self {
        Self::under(setup, record_key(format!("operation {n}").as_bytes()))
    }

    /// As many.
    pub(super) fn many(setup: &dyn Setup, count: u32) -> Vec<Self> {
        (0..count).map(|n| Self::nth(setup, n)).collect()
    }

    /// The operation with this record key.
    pub(super) fn under(setup: &dyn Setup, rk: RecordKey) -> Self {
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

    /// A begin by this owner, under Hold.
    pub(super) fn ask(&self, owner: Owner) -> Begin {
        Begin { call: self.call, owner, lease: LEASE, unknown_retention: UNKNOWN, on_lapse: Lapse::Hold }
    }

    /// A begin by this owner, under Retry.
    pub(super) fn ask_retry(&self, owner: Owner) -> Begin {
        Begin { on_lapse: Lapse::Retry, ..self.ask(owner) }
    }

    /// A begin by this owner for another payload, under Retry.
    pub(super) fn ask_other_payload(&self, owner: Owner) -> Begin {
        Begin { call: self.call.fingerprint(payload("another payload")), ..self.ask_retry(owner) }
    }

    pub(super) async fn begin_as(&self, ask: &Begin) -> Begun {
        let begun = self.protocol().begin(ask).await;
        begun.expect("a begin is answered")
    }

    /// Begins under Hold.
    pub(super) async fn begin(&self, owner: Owner) -> Begun {
        self.begin_as(&self.ask(owner)).await
    }

    /// Begins under Retry.
    pub(super) async fn retry(&self, owner: Owner) -> Begun {
        self.begin_as(&self.ask_retry(owner)).await
    }

    /// Begins for another payload, under Retry.
    pub(super) async fn other_payload(&self, owner: Owner) -> Begun {
        self.begin_as(&self.ask_other_payload(owner)).await
    }

    /// Begins under Hold, and must be granted.
    pub(super) async fn granted(&self, owner: Owner) -> Grant {
        granted(self.begin(owner).await)
    }

    /// Lets the lease run out and begins under Retry, which must be a takeover.
    pub(super) async fn taken_over(&self, setup: &dyn Setup, owner: Owner) -> Grant {
        setup.lapse(&self.rk()).await;
        let grant = granted(self.retry(owner).await);
        assert!(grant.takeover, "{grant:?}");
        grant
    }

    /// Lets the lease run out and begins under Hold, which must make it indeterminate.
    pub(super) async fn marked_unknown(&self, setup: &dyn Setup, by: Owner) -> Timestamp {
        setup.lapse(&self.rk()).await;
        indeterminate(self.begin(by).await)
    }

    /// Begins and completes with an answer.
    pub(super) async fn completed(&self, owner: Owner, answer: &str) -> Grant {
        let grant = self.granted(owner).await;
        assert_eq!(self.complete(&grant, answer).await, Completed::Done);
        grant
    }

    /// A completion of this grant.
    pub(super) fn completion(&self, grant: &Grant, answer: impl Into<Bytes>) -> Complete {
        Complete {
            claim: Claim::from(grant),
            fingerprint: grant.fingerprint,
            answer: answer.into(),
            retention: RETENTION,
            age: Duration::ZERO,
        }
    }

    pub(super) async fn complete_as(&self, ask: &Complete) -> Completed {
        let completed = self.protocol().complete(&self.rk(), ask).await;
        completed.expect("a completion is answered")
    }

    pub(super) async fn complete(&self, grant: &Grant, answer: &str) -> Completed {
        self.complete_as(&self.completion(grant, answer.to_owned())).await
    }

    pub(super) async fn renew_as(&self, claim: &Claim) -> Renewed {
        let renewed = self.protocol().renew(&self.rk(), claim).await;
        renewed.expect("a renewal is answered")
    }

    pub(super) async fn renew(&self, grant: &Grant) -> Renewed {
        self.renew_as(&Claim::from(grant)).await
    }

    pub(super) async fn release_as(&self, claim: &Claim) -> Settled {
        let settled = self.protocol().release(&self.rk(), claim, RELEASED).await;
        settled.expect("a release is answered")
    }

    pub(super) async fn release(&self, grant: &Grant) -> Settled {
        self.release_as(&Claim::from(grant)).await
    }

    pub(super) async fn cancel(&self, owner: Owner) -> Cancelled {
        let cancelled = self.protocol().cancel(&self.rk(), owner, RELEASED).await;
        cancelled.expect("a cancellation is answered")
    }

    pub(super) async fn abandon(&self, grant: &Grant) -> Settled {
        let claim = Claim::from(grant);
        let settled = self.protocol().abandon(&self.rk(), &claim).await;
        settled.expect("an abandonment is answered")
    }

    pub(super) async fn bury(&self, grant: &Grant) -> Settled {
        let claim = Claim::from(grant);
        let settled = self.protocol().bury(&self.rk(), &claim, DEAD).await;
        settled.expect("a burial is answered")
    }

    pub(super) async fn hold(&self, expected: Token) -> Resolved {
        let resolved = self.protocol().hold(&self.rk(), expected, UNKNOWN).await;
        resolved.expect("a hold is answered")
    }

    pub(super) async fn resolve_as(&self, expected: Token, verdict: &Verdict) -> Resolved {
        let resolved = self.protocol().resolve(&self.rk(), expected, verdict).await;
        resolved.expect("a verdict is answered")
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
        resolved.expect("a reopening is answered")
    }

    /// The store's own swap.
    pub(super) async fn swap(&self, seen: &Observed, next: &Change) -> Swapped {
        let swapped = self.store.swap(&self.rk(), seen, next).await;
        swapped.expect("a swap is answered")
    }

    pub(super) async fn read(&self) -> Observed {
        let seen = self.store.read(&self.rk()).await;
        seen.expect("a read is answered")
    }

    /// The record, which must be there.
    pub(super) async fn record(&self) -> Record {
        let seen = self.read().await;
        seen.live().expect("the record lives").clone()
    }

    /// The record neither changed nor was its lease or life armed anew.
    pub(super) async fn is_as(&self, before: &Observed) {
        let seen = self.read().await;
        assert_eq!(seen.record, before.record);
        let life_ends = |seen: &Observed| seen.now.plus(seen.life_left);
        assert_same_time(life_ends(&seen), life_ends(before));
        let lease_ends = |seen: &Observed| seen.now.plus(seen.lease_left);
        if before.lease_left.is_zero() || seen.lease_left.is_zero() {
            assert_eq!(seen.lease_left, Duration::ZERO, "the lease was armed anew");
        } else {
            assert_same_time(lease_ends(&seen), lease_ends(before));
        }
    }

    /// Everybody who begins is answered with this.
    pub(super) async fn replays(&self, answer: &str) {
        for owner in [FIRST, SECOND, THIRD] {
            let replayed = replayed(self.begin(owner).await);
            assert_eq!(replayed.answer, answer);
        }
    }
}

pub(super) fn granted(begun: Begun) -> Grant {
    let Begun::Granted(grant) = begun else {
        panic!("granted was expected, not {begun:?}");
    };
    grant
}

pub(super) fn mine(begun: Begun) -> Grant {
    let Begun::Mine(grant) = begun else {
        panic!("mine was expected, not {begun:?}");
    };
    grant
}

pub(super) fn busy(begun: Begun) -> Duration {
    let Begun::Busy(left) = begun else {
        panic!("busy was expected, not {begun:?}");
    };
    left
}

pub(super) fn replayed(begun: Begun) -> Completion {
    let Begun::Replay(completion) = begun else {
        panic!("a replay was expected, not {begun:?}");
    };
    completion
}

pub(super) fn indeterminate(begun: Begun) -> Timestamp {
    let Begun::Indeterminate(since) = begun else {
        panic!("indeterminate was expected, not {begun:?}");
    };
    since
}

/// The answer that stands, of a completion that was lost.
pub(super) fn canonical(completed: Completed) -> Bytes {
    let Completed::Lost(record) = completed else {
        panic!("lost was expected, not {completed:?}");
    };
    let State::Completed(completion) = record.state else {
        panic!("a completed record was expected, not {record:?}");
    };
    completion.answer
}

/// The holder of a record in progress.
pub(super) fn in_progress(record: &Record) -> Holding {
    let State::Open(Phase::InProgress, holding) = &record.state else {
        panic!("a record in progress was expected, not {record:?}");
    };
    *holding
}

/// As much was left, less what a server's clock went on since.
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

pub(super) async fn forward(setup: &dyn Setup, by: Duration) {
    setup.step_clock(Step::Forward(by)).await;
}

pub(super) async fn back(setup: &dyn Setup, by: Duration) {
    setup.step_clock(Step::Back(by)).await;
}

/// Sweeps until a pass is through.
pub(super) async fn sweep_all(setup: &dyn Setup) {
    let inspect = setup.inspect();
    while inspect.sweep(100).await.expect("a sweep is answered") > 0 {}
}

/// Lets all leases run out.
pub(super) async fn lapse_all(setup: &dyn Setup, operations: &[Operation]) {
    for operation in operations {
        setup.lapse(&operation.rk()).await;
    }
}

/// Lets all lives run out.
pub(super) async fn expire_all(setup: &dyn Setup, operations: &[Operation]) {
    for operation in operations {
        setup.expire(&operation.rk()).await;
    }
}

/// Runs a body for each operation at once, in tasks of their own.
pub(super) async fn each<T, F>(operations: &[Operation], body: impl Fn(Operation) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    at_once(operations.iter().map(|operation| body(operation.clone()))).await
}

/// Runs as many racers at once, in tasks of their own, at one operation.
pub(super) async fn race<T, F>(operation: &Operation, racers: u32, body: impl Fn(Operation, Owner) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    at_once((0..racers).map(|n| body(operation.clone(), racer(n)))).await
}

/// Runs them all at once, in tasks of their own, and collects what they give.
pub(super) async fn at_once<T, F>(bodies: impl IntoIterator<Item = F>) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let tasks: Vec<_> = bodies.into_iter().map(tokio::spawn).collect();
    let ended = soon(join_all(tasks)).await;
    let ended = ended.into_iter().map(|ended| ended.expect("no instance panics"));
    ended.collect()
}

/// Fails instead of waiting for ever.
pub(super) async fn soon<T>(future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(DEADLINE, future).await;
    ended.expect("the store answers before the deadline")
}

/// Polls a future so many times, if it does not end before, and drops it.
pub(super) async fn dropped_after<T>(polls: u32, future: impl Future<Output = T>) {
    let mut future = pin!(future);
    for _ in 0..polls {
        let poll = poll_fn(|context| Poll::Ready(future.as_mut().poll(context)));
        if poll.await.is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

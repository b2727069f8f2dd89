//! Which records the redrive of a dead letter opens.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::{DeadLetter, DeadLetterId, DeadReason, Message};
use hapax_core::machine::{Begin, Begun, Claim, Complete, Grant, Lapse};
use hapax_core::store::{Memory, Protocol};
use hapax_core::worker::{MessageIdentity, RecordReopener, Reopen, ReopenedLetter};
use hapax_core::{Call, ErrorKind, Millis, Owner, Phase, Policy, Seconds, Timestamp};

const DAY: Seconds = Seconds(86_400);
const PROCESSED: Bytes = Bytes::from_static(b"applied");

struct Bench {
    store: Arc<Memory>,
    identity: MessageIdentity,
    reopener: RecordReopener,
}

impl Bench {
    fn new() -> Self {
        let (store, identity) = (Arc::new(Memory::new()), MessageIdentity::new("billing").unwrap());
        let reopener = RecordReopener::new(Arc::clone(&store) as _, identity.clone(), &Policy::default(), PROCESSED);
        Self { store, identity, reopener }
    }

    fn protocol(&self) -> Protocol<'_> {
        Protocol::over(&*self.store)
    }

    fn call(&self, letter: &DeadLetter) -> Call {
        let identified = self.identity.identify(&letter.message).unwrap();
        Call::new(identified.record_key).fingerprint(identified.call.newest_fingerprint())
    }

    /// A lease of 0 has expired.
    async fn begin(&self, letter: &DeadLetter, lease: u32) -> Begun {
        let (call, lease) = (self.call(letter), Millis(lease));
        let begin = Begin { call, owner: Owner([1; 16]), lease, unknown_retention: DAY, on_lapse: Lapse::Hold };
        self.protocol().begin(&begin).await.unwrap()
    }

    async fn grant(&self, letter: &DeadLetter, lease: u32) -> Grant {
        let begun = self.begin(letter, lease).await;
        let Begun::Granted(grant) = begun else { panic!("{begun:?}") };
        grant
    }

    async fn reopen(&self, letter: &DeadLetter) -> ReopenedLetter {
        self.reopener.reopen(letter).await.unwrap()
    }

    async fn complete(&self, grant: &Grant, answer: Bytes) {
        let (claim, fingerprint, ended) = (Claim::from(grant), grant.fingerprint, Timestamp(grant.token.0));
        let complete = Complete { claim, fingerprint, answer, retention: DAY, ended, age: Duration::ZERO };
        self.protocol().complete(&grant.rk, &complete).await.unwrap();
    }

    async fn phase(&self, letter: &DeadLetter) -> Option<Phase> {
        let seen = self.protocol().read(self.call(letter).record_key()).await.unwrap();
        seen.live().and_then(|record| record.state.phase())
    }
}

fn letter(reason: DeadReason, payload: &'static str) -> DeadLetter {
    let headers = [("Idempotency-Key", "order-1")].into_iter().collect();
    DeadLetter {
        id: DeadLetterId::from_bytes([1; 16]),
        reason,
        attempts: 1,
        cause: None,
        namespace: "billing".into(),
        source: "memory/topic/group".into(),
        operation: None,
        fingerprint: hapax_core::Fingerprint::NONE,
        message: Arc::new(Message { payload: payload.into(), headers, ..Message::default() }),
        at: Timestamp(1),
    }
}

#[tokio::test]
async fn every_redrive_opens_a_record_whose_attempts_applied_nothing() {
    for reason in [DeadReason::AttemptsExhausted, DeadReason::OutcomeUnknown, DeadReason::NotDone] {
        let (bench, letter) = (Bench::new(), letter(reason, "5"));
        let grant = bench.grant(&letter, 60_000).await;
        bench.protocol().bury(&grant.rk, &Claim::from(&grant), DAY).await.unwrap();
        assert_eq!(bench.phase(&letter).await, Some(Phase::Dead));
        assert_eq!(bench.reopen(&letter).await, ReopenedLetter::Open);
        assert_eq!(bench.phase(&letter).await, Some(Phase::Released));
        assert_eq!(bench.reopen(&letter).await, ReopenedLetter::Open);
        bench.grant(&letter, 60_000).await;
    }
}

#[tokio::test]
async fn an_unknown_outcome_is_opened_by_the_word_of_an_operator_only() {
    let (bench, unknown) = (Bench::new(), letter(DeadReason::OutcomeUnknown, "5"));
    bench.grant(&unknown, 0).await;
    assert_eq!(bench.reopen(&unknown).await, ReopenedLetter::Unknown);
    assert!(matches!(bench.begin(&unknown, 0).await, Begun::Indeterminate { .. }));
    assert_eq!(bench.reopen(&unknown).await, ReopenedLetter::Unknown);
    assert_eq!(bench.phase(&unknown).await, Some(Phase::Indeterminate));
    assert_eq!(bench.reopen(&letter(DeadReason::NotDone, "5")).await, ReopenedLetter::Open);
    assert_eq!(bench.phase(&unknown).await, Some(Phase::Released));
    assert_eq!(bench.reopen(&unknown).await, ReopenedLetter::Open, "nothing was applied");
}

#[tokio::test]
async fn without_a_record_an_unknown_outcome_runs_by_a_word_only() {
    let bench = Bench::new();
    for reason in [DeadReason::OutcomeUnknown, DeadReason::RecordDamaged] {
        let mut unknown = letter(reason, "5");
        assert_eq!(bench.reopen(&unknown).await, ReopenedLetter::Unknown);
        unknown.message = Arc::new(Message { headers: [("other", "1")].into_iter().collect(), ..Message::default() });
        assert_eq!(bench.reopen(&unknown).await, ReopenedLetter::Unknown, "it has no usable key any more");
    }
    for reason in [DeadReason::NotDone, DeadReason::AttemptsExhausted, DeadReason::Rejected, DeadReason::KeyReused] {
        assert_eq!(bench.reopen(&letter(reason, "5")).await, ReopenedLetter::Open, "{reason:?}");
    }
    assert_eq!(bench.phase(&letter(DeadReason::NotDone, "5")).await, Some(Phase::Released));
}

#[tokio::test]
async fn the_word_not_done_holds_without_a_record_until_an_attempt_begins() {
    let (bench, used_up) = (Bench::new(), letter(DeadReason::OutcomeUnknown, "5"));
    assert_eq!(bench.reopen(&letter(DeadReason::NotDone, "5")).await, ReopenedLetter::Open);
    assert_eq!(bench.reopen(&used_up).await, ReopenedLetter::Open, "the worker stopped before its attempt");
    bench.grant(&used_up, 0).await;
    assert_eq!(bench.reopen(&used_up).await, ReopenedLetter::Unknown, "the attempt has no end");
}

#[tokio::test]
async fn the_word_done_is_recorded_unless_an_answer_is() {
    let done = letter(DeadReason::Done, "5");
    for state in ["none", "lapsed", "indeterminate", "released", "dead", "rejected", "processed"] {
        let bench = Bench::new();
        if state != "none" {
            let lease = if ["lapsed", "indeterminate"].contains(&state) { 0 } else { 60_000 };
            let grant = bench.grant(&done, lease).await;
            let (rk, claim) = (grant.rk, Claim::from(&grant));
            match state {
                "indeterminate" => assert!(matches!(bench.begin(&done, 0).await, Begun::Indeterminate { .. })),
                "released" => drop(bench.protocol().release(&rk, &claim, DAY).await.unwrap()),
                "dead" => drop(bench.protocol().bury(&rk, &claim, DAY).await.unwrap()),
                "rejected" => bench.complete(&grant, "rejected".into()).await,
                "processed" => bench.complete(&grant, PROCESSED).await,
                _ => {}
            }
        }
        for _ in 0..2 {
            assert_eq!(bench.reopen(&done).await, ReopenedLetter::Processed, "{state}");
            let Begun::Replay(recorded) = bench.begin(&done, 60_000).await else { panic!("{state}: it may run") };
            assert_eq!(recorded.answer, if state == "rejected" { "rejected".into() } else { PROCESSED }, "{state}");
        }
    }
}

#[tokio::test]
async fn the_word_done_waits_for_an_attempt_that_runs_and_leaves_the_record_of_another_payload() {
    let (bench, other) = (Bench::new(), letter(DeadReason::KeyReused, "6"));
    let grant = bench.grant(&other, 60_000).await;
    assert_eq!(bench.reopen(&letter(DeadReason::Done, "5")).await, ReopenedLetter::Processed);
    assert_eq!(bench.phase(&other).await, Some(Phase::InProgress));
    let refused = bench.reopener.reopen(&letter(DeadReason::Done, "6")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotApplied);
    bench.complete(&grant, PROCESSED).await;
    assert_eq!(bench.reopen(&letter(DeadReason::Done, "6")).await, ReopenedLetter::Processed);
}

#[tokio::test]
async fn the_word_not_done_is_not_about_an_attempt_that_runs() {
    let (bench, letter) = (Bench::new(), letter(DeadReason::NotDone, "5"));
    let running = bench.grant(&letter, 60_000).await;
    assert_eq!(bench.reopen(&letter).await, ReopenedLetter::Unknown);
    assert_eq!(bench.phase(&letter).await, Some(Phase::InProgress));
    bench.protocol().abandon(&running.rk, &Claim::from(&running)).await.unwrap();
    assert_eq!(bench.reopen(&letter).await, ReopenedLetter::Open, "a new word is about that attempt, too");
    assert_eq!(bench.phase(&letter).await, Some(Phase::Released));
}

#[tokio::test]
async fn without_a_word_an_attempt_that_runs_is_waited_for() {
    let (bench, letter) = (Bench::new(), letter(DeadReason::OutcomeUnknown, "5"));
    let running = bench.grant(&letter, 60_000).await;
    assert_eq!(bench.reopener.reopen(&letter).await.unwrap_err().kind(), ErrorKind::NotApplied);
    bench.complete(&running, PROCESSED).await;
    assert_eq!(bench.reopen(&letter).await, ReopenedLetter::Processed);
}

#[tokio::test]
async fn a_recorded_answer_and_the_record_of_another_payload_stay() {
    let (bench, first) = (Bench::new(), letter(DeadReason::NotDone, "5"));
    let grant = bench.grant(&first, 0).await;
    assert_eq!(bench.reopen(&letter(DeadReason::KeyReused, "6")).await, ReopenedLetter::Open);
    assert_eq!(bench.reopen(&letter(DeadReason::NotDone, "6")).await, ReopenedLetter::Open);
    assert_eq!(bench.phase(&first).await, Some(Phase::InProgress));
    bench.complete(&grant, PROCESSED).await;
    assert_eq!(bench.reopen(&first).await, ReopenedLetter::Processed);
    assert!(matches!(bench.begin(&first, 0).await, Begun::Replay(..)));
}

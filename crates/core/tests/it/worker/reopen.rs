//! Which records the redrive of a dead letter opens.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::broker::{DeadLetter, DeadLetterId, DeadReason, Message};
use hapax_core::machine::{Begin, Begun, Claim, Complete, Grant, Lapse};
use hapax_core::store::{Memory, Protocol};
use hapax_core::worker::{MessageIdentity, RecordReopener, Reopen};
use hapax_core::{Call, ErrorKind, Millis, Owner, Phase, Policy, Seconds, Timestamp};

const DAY: Seconds = Seconds(86_400);

struct Bench {
    store: Arc<Memory>,
    identity: MessageIdentity,
    reopener: RecordReopener,
}

impl Bench {
    fn new() -> Self {
        let (store, identity) = (Arc::new(Memory::new()), MessageIdentity::new("billing").unwrap());
        let reopener = RecordReopener::new(Arc::clone(&store) as _, identity.clone(), &Policy::default());
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
    let (bench, letter) = (Bench::new(), letter(DeadReason::AttemptsExhausted, "5"));
    let grant = bench.grant(&letter, 60_000).await;
    bench.protocol().bury(&grant.rk, &Claim::from(&grant), DAY).await.unwrap();
    assert_eq!(bench.phase(&letter).await, Some(Phase::Dead));
    bench.reopener.reopen(&letter).await.unwrap();
    assert_eq!(bench.phase(&letter).await, Some(Phase::Released));
    bench.reopener.reopen(&letter).await.unwrap();
    bench.grant(&letter, 60_000).await;
}

#[tokio::test]
async fn an_unknown_outcome_is_opened_by_the_word_of_an_operator_only() {
    let (bench, unknown) = (Bench::new(), letter(DeadReason::OutcomeUnknown, "5"));
    bench.grant(&unknown, 0).await;
    bench.reopener.reopen(&unknown).await.unwrap();
    assert!(matches!(bench.begin(&unknown, 0).await, Begun::Indeterminate { .. }));
    bench.reopener.reopen(&unknown).await.unwrap();
    assert_eq!(bench.phase(&unknown).await, Some(Phase::Indeterminate));
    let with_word = letter(DeadReason::NotDone, "5");
    bench.reopener.reopen(&with_word).await.unwrap();
    assert_eq!(bench.phase(&unknown).await, Some(Phase::Released));
}

#[tokio::test]
async fn the_word_of_an_operator_waits_for_an_attempt_that_still_runs() {
    let (bench, letter) = (Bench::new(), letter(DeadReason::NotDone, "5"));
    let running = bench.grant(&letter, 60_000).await;
    let refused = bench.reopener.reopen(&letter).await.unwrap_err();
    assert_eq!((refused.kind(), bench.phase(&letter).await), (ErrorKind::NotApplied, Some(Phase::InProgress)));
    bench.protocol().abandon(&running.rk, &Claim::from(&running)).await.unwrap();
    bench.reopener.reopen(&letter).await.unwrap();
    assert_eq!(bench.phase(&letter).await, Some(Phase::Released));
}

#[tokio::test]
async fn a_recorded_answer_and_the_record_of_another_payload_stay() {
    let (bench, first) = (Bench::new(), letter(DeadReason::NotDone, "5"));
    let grant = bench.grant(&first, 0).await;
    let reused = letter(DeadReason::KeyReused, "6");
    bench.reopener.reopen(&reused).await.unwrap();
    bench.reopener.reopen(&letter(DeadReason::NotDone, "6")).await.unwrap();
    assert_eq!(bench.phase(&first).await, Some(Phase::InProgress));
    let complete = Complete {
        claim: Claim::from(&grant),
        fingerprint: grant.fingerprint,
        answer: Bytes::from_static(b"applied"),
        retention: DAY,
        ended: Timestamp(grant.token.0),
        age: Duration::ZERO,
    };
    bench.protocol().complete(&grant.rk, &complete).await.unwrap();
    bench.reopener.reopen(&first).await.unwrap();
    assert!(matches!(bench.begin(&first, 0).await, Begun::Replay(..)));
}

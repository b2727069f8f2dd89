//! A store with answers in a bucket: what happens between the object and its record, and if an answer is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::gate::{Provenance, Reason, Recorded};
use hapax_core::journal::MemoryJournal;
use hapax_core::machine::{Begin, Claim, Complete, Completed, Grant, Lapse, Purge, Purged, Verdict};
use hapax_core::store::{Inserted, Protocol, Severity};
use hapax_core::{
    Call, Completion, ErrorKind, Fingerprint, Gate, Millis, Owner, Policy, RecordKey, Rule, Seconds, Settings, State,
    Store, StoredAnswer, Timestamp, Token,
};
use hapax_stores::{AnswerBucket, FarAnswers, FarInspect};
use hapax_testkit::{BucketFault, BucketService, FakeBucket, Faulty, StoreFault, yield_now};

use crate::inside::{FarKind, Inside};
use crate::{bucket, runtime};

/// Answers above this many bytes lie in the bucket.
const INLINE: usize = 16;

/// Shorter than the timeout of a call to the store.
const SHORT: Duration = Duration::from_millis(400);

/// Longer than a test.
const LONG: Duration = Duration::from_secs(600);

struct Fixture {
    fake: FakeBucket,
    /// The store inside, and the faults of its calls.
    inside: Inside,
    faulty: Arc<Faulty>,
    store: Arc<FarAnswers>,
    rk: RecordKey,
}

impl Fixture {
    async fn new(kind: FarKind) -> Self {
        let fake = FakeBucket::start(kind.service).await.unwrap();
        let inside = Inside::new(kind.inside).await;
        let faulty = Faulty::new(Arc::clone(&inside.store), runtime(), LONG);
        let store = FarAnswers::around(Arc::clone(&faulty) as _, bucket(&fake.answers("a")), INLINE, runtime());
        let store = store.wait(LONG);
        Self { fake, inside, faulty, store: Arc::new(store), rk: RecordKey::from_bytes([7; 16]) }
    }

    fn bucket(&self) -> AnswerBucket {
        bucket(&self.fake.answers("a"))
    }

    fn protocol(&self) -> Protocol<'_> {
        Protocol::over(&*self.store)
    }

    fn call(&self) -> Call {
        Call::new(self.rk).fingerprint(Fingerprint::from_parts(Rule(1), [1; 12]))
    }

    async fn grant(&self) -> Grant {
        let owner = Owner([1; 16]);
        let (lease, unknown_retention) = (Millis(30_000), Seconds(86_400));
        let ask = Begin { call: self.call(), owner, lease, unknown_retention, on_lapse: Lapse::Hold };
        match self.store.begin(&ask).await.unwrap() {
            Inserted::Granted(grant) => grant,
            Inserted::Found(seen) => panic!("the key is not free: {seen:?}"),
        }
    }

    /// The record as the store inside has it.
    async fn state(&self) -> State {
        self.inside.store.read(&self.rk).await.unwrap().record.unwrap().state
    }

    async fn completion(&self) -> Completion {
        match self.state().await {
            State::Completed(completion) => completion,
            State::Open(phase, _) => panic!("no answer is recorded: {phase:?}"),
        }
    }

    async fn is_open(&self) -> bool {
        matches!(self.state().await, State::Open(..))
    }

    fn puts(&self) -> usize {
        self.fake.requests().iter().filter(|request| request.starts_with("PUT ")).count()
    }

    /// A gate that keeps unconfirmed answers in memory, and waits for the store as long as one does.
    fn gate(&self) -> Gate {
        self.gate_with(Policy::default())
    }

    /// A gate that does not wait long.
    fn impatient_gate(&self) -> Gate {
        self.gate_with(Policy::default().record_patience(Duration::from_millis(200)))
    }

    fn gate_with(&self, policy: Policy) -> Gate {
        let store = FarAnswers::clone(&self.store).wait(SHORT);
        let builder = Gate::builder(Arc::new(store), Settings::default().policy(policy));
        builder.journal(Arc::new(MemoryJournal::new())).build().unwrap()
    }
}

fn large(letter: char) -> Bytes {
    letter.to_string().repeat(INLINE + 1).into()
}

fn completion_of(grant: &Grant, answer: Bytes) -> Complete {
    Complete {
        claim: Claim::from(grant),
        fingerprint: grant.fingerprint,
        answer,
        retention: Seconds(3600),
        ended: Timestamp(1_800_000_000_000_000),
        age: Duration::ZERO,
    }
}

pub(crate) async fn only_an_answer_above_the_limit_lies_in_the_bucket(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let grant = fixture.grant().await;
    let small = Bytes::from_static(&[b's'; INLINE]);
    let completed = fixture.store.complete(&fixture.rk, &completion_of(&grant, small.clone())).await.unwrap();
    assert_eq!(completed, Completed::Done);
    let completion = fixture.completion().await;
    assert_eq!((&completion.answer, completion.form), (&small, StoredAnswer::Whole));
    assert_eq!(fixture.store.fetch(completion.clone()).await.unwrap(), completion);
    assert_eq!(fixture.fake.requests(), [""; 0]);

    let fixture = Fixture::new(kind).await;
    let grant = fixture.grant().await;
    let ask = completion_of(&grant, large('x'));
    assert_eq!(fixture.store.complete(&fixture.rk, &ask).await.unwrap(), Completed::Done);
    let completion = fixture.completion().await;
    assert_eq!(completion.form, StoredAnswer::Pointer);
    assert_eq!(completion.answer_len().unwrap(), large('x').len() as u64);
    let fetched = fixture.store.fetch(completion).await.unwrap();
    assert_eq!((fetched.answer, fetched.form), (large('x'), StoredAnswer::Whole));
    // The name has the record, the token and the hash.
    let names: Vec<String> = fixture.fake.objects().into_keys().collect();
    let expected = format!("a/07/{}/{:020}-", fixture.rk, grant.token.0);
    assert!(names.len() == 1 && names[0].starts_with(&expected), "{names:?}");
}

pub(crate) async fn the_record_names_an_answer_only_after_the_bucket_has_confirmed_it(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let grant = fixture.grant().await;
    let ask = completion_of(&grant, large('x'));
    fixture.fake.set_fault(Some(BucketFault::Held));
    let store = FarAnswers::clone(&fixture.store).wait(SHORT);
    let error = store.complete(&fixture.rk, &ask).await.unwrap_err();
    assert!(error.kind() == ErrorKind::NotApplied && error.is_beside_store(), "{error:?}");
    while fixture.puts() == 0 {
        hapax_testkit::pause().await;
    }
    assert!(fixture.is_open().await && fixture.fake.objects().is_empty());
    // The caller gave up. The write goes on, and the next try of the completion does not write again.
    fixture.fake.set_fault(None);
    while fixture.fake.objects().is_empty() {
        hapax_testkit::pause().await;
    }
    assert!(fixture.is_open().await);
    assert_eq!(fixture.store.complete(&fixture.rk, &ask).await.unwrap(), Completed::Done);
    assert_eq!(fixture.puts(), 1);
}

/// As after a kill between the two: the object is there, and no record names it.
pub(crate) async fn an_object_without_a_record_harms_nobody(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let grant = fixture.grant().await;
    for (fault, is_recorded) in [
        (StoreFault::FailBefore(ErrorKind::NotApplied), false),
        (StoreFault::FailBefore(ErrorKind::Unknown), false),
        (StoreFault::FailAfter(ErrorKind::Unknown), true),
    ] {
        // A completion reads and swaps.
        fixture.faulty.inject(fixture.faulty.calls().len() + 1, fault);
        let ask = completion_of(&grant, large('x'));
        fixture.store.complete(&fixture.rk, &ask).await.unwrap_err();
        assert_eq!(fixture.fake.objects().len(), 1);
        assert_eq!(!fixture.is_open().await, is_recorded, "{fault:?}");
    }
    let ask = completion_of(&grant, large('x'));
    assert_eq!(fixture.store.complete(&fixture.rk, &ask).await.unwrap(), Completed::Already);
    // Another answer under the same grant has another name, and does not replace the recorded one.
    let other = completion_of(&grant, large('y'));
    let lost = fixture.store.complete(&fixture.rk, &other).await.unwrap();
    assert!(matches!(lost, Completed::Lost(_)), "{lost:?}");
    assert_eq!(fixture.fake.objects().len(), 2);
    assert_eq!(fixture.store.fetch(fixture.completion().await).await.unwrap().answer, large('x'));
}

pub(crate) async fn a_bucket_that_fails_leaves_the_record_open(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let grant = fixture.grant().await;
    let ask = completion_of(&grant, large('x'));
    let faults =
        [BucketFault::Down, BucketFault::LosesAnswers, BucketFault::Full, BucketFault::Busy, BucketFault::Forbidden];
    for fault in faults {
        fixture.fake.set_fault(Some(fault));
        let error = fixture.store.complete(&fixture.rk, &ask).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotApplied, "{fault:?}: {error:?}");
        assert!(fixture.is_open().await, "{fault:?}");
        // What fits into its record needs no bucket.
        assert!(fixture.store.read(&fixture.rk).await.is_ok());
    }
    fixture.fake.set_fault(None);
    assert_eq!(fixture.store.complete(&fixture.rk, &ask).await.unwrap(), Completed::Done);
}

pub(crate) async fn a_completion_that_is_repeated_writes_the_answer_again(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let grant = fixture.grant().await;
    let ask = completion_of(&grant, large('x'));
    assert_eq!(fixture.store.complete(&fixture.rk, &ask).await.unwrap(), Completed::Done);
    fixture.fake.change_objects(|_| None);
    assert_eq!(fixture.store.complete(&fixture.rk, &ask).await.unwrap(), Completed::Already);
    assert_eq!(fixture.store.fetch(fixture.completion().await).await.unwrap().answer, large('x'));
    // Another process keeps this answer in its records.
    let near = FarAnswers::around(Arc::clone(&fixture.inside.store), fixture.bucket(), 99, runtime());
    assert_eq!(near.complete(&fixture.rk, &ask).await.unwrap(), Completed::Already);
}

pub(crate) async fn an_answer_that_looks_like_a_pointer_is_none(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let pointer = hapax_core::AnswerPointer::new(b"another answer", "a/secret").encode();
    let store = FarAnswers::around(Arc::clone(&fixture.inside.store), fixture.bucket(), 999, runtime());
    let grant = fixture.grant().await;
    store.complete(&fixture.rk, &completion_of(&grant, pointer.clone())).await.unwrap();
    assert_eq!(store.fetch(fixture.completion().await).await.unwrap().answer, pointer);
    assert_eq!(fixture.fake.requests(), [""; 0]);
}

pub(crate) async fn a_store_without_the_bucket_cannot_give_its_answers(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let grant = fixture.grant().await;
    fixture.store.complete(&fixture.rk, &completion_of(&grant, large('x'))).await.unwrap();
    let error = fixture.inside.store.fetch(fixture.completion().await).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotApplied, "{error:?}");
    assert!(error.to_string().contains("bucket"), "{error}");
}

pub(crate) async fn an_answer_in_another_bucket_is_not_damaged(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let grant = fixture.grant().await;
    fixture.store.complete(&fixture.rk, &completion_of(&grant, large('x'))).await.unwrap();
    let other = fixture.fake.answers("a").replace("://fake/", "://other/");
    let store = FarAnswers::around(Arc::clone(&fixture.inside.store), bucket(&other), INLINE, runtime());
    let error = store.fetch(fixture.completion().await).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotApplied, "{error:?}");
    assert!(error.to_string().contains("bucket fake") && error.to_string().contains("other"), "{error}");
}

pub(crate) async fn an_answer_that_is_gone_is_damage_and_never_a_second_run(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let (gate, runs) = (fixture.gate(), Arc::new(AtomicUsize::new(0)));
    let run = || {
        let runs = Arc::clone(&runs);
        gate.run(fixture.call(), move |_| async move {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok("x".repeat(INLINE + 1))
        })
    };
    assert_eq!(run().await.unwrap().provenance, Provenance::Fresh);
    let objects = fixture.fake.objects();
    let content = objects.values().next().unwrap().clone();
    let damages: [&dyn Fn(Vec<u8>) -> Option<Vec<u8>>; 5] = [
        &|_| None,
        &|content| Some(content[..4].to_vec()),
        &|content| Some([content, b"x".to_vec()].concat()),
        &|content| Some(content.iter().map(|byte| byte + 1).collect()),
        &|_| Some(Vec::new()),
    ];
    for damage in damages {
        fixture.fake.change_objects(damage);
        let refused = run().await.unwrap_err();
        assert_eq!(refused.reason, Reason::Store(ErrorKind::Damaged), "{refused:?}");
        let rk = fixture.rk.to_string();
        assert!(format!("{refused:?}").contains(&rk[..8]) && !format!("{refused:?}").contains(&rk), "{refused:?}");
        restore(&fixture, &content).await;
    }
    for fault in [BucketFault::Down, BucketFault::Busy, BucketFault::Forbidden, BucketFault::Cuts] {
        fixture.fake.set_fault(Some(fault));
        let refused = run().await.unwrap_err();
        assert_eq!(refused.reason, Reason::Store(ErrorKind::NotApplied), "{fault:?}: {refused:?}");
        fixture.fake.set_fault(None);
        let again = run().await.unwrap();
        assert_eq!((again.provenance, again.answer.as_bytes()), (Provenance::Replayed, &content[..]));
    }
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

/// Writes the answer again, as a completion that is repeated does. Google does not replace an altered one.
async fn restore(fixture: &Fixture, content: &[u8]) {
    fixture.fake.change_objects(|_| None);
    let Completion { answer, .. } = fixture.completion().await;
    let pointer = hapax_core::AnswerPointer::decode(&answer).unwrap();
    let name = pointer.path.strip_prefix("fake/").unwrap();
    fixture.bucket().put(name, Bytes::copy_from_slice(content)).await.unwrap();
}

pub(crate) async fn nothing_is_fetched_for_a_caller_that_gets_no_answer(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let gate = fixture.gate();
    gate.run(fixture.call(), |_| async { Ok("x".repeat(INLINE + 1)) }).await.unwrap();
    let before = fixture.fake.requests();
    let other = Call::new(fixture.rk).fingerprint(Fingerprint::from_parts(Rule(1), [2; 12]));
    let refused = gate.run(other, |_| async { Ok(String::new()) }).await.unwrap_err();
    assert_eq!(refused.reason, Reason::Mismatch);
    fixture.protocol().read(fixture.rk).await.unwrap();
    assert_eq!(fixture.fake.requests(), before);
    gate.run(fixture.call(), |_| async { Ok(String::new()) }).await.unwrap();
    assert_eq!(fixture.fake.requests().len(), before.len() + 1);
}

pub(crate) async fn the_journal_keeps_an_answer_until_the_bucket_takes_it(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let gate = fixture.impatient_gate();
    fixture.fake.set_fault(Some(BucketFault::Full));
    let ran = gate.run(fixture.call(), |_| async { Ok("x".repeat(INLINE + 1)) }).await.unwrap();
    assert_eq!((ran.recorded, gate.spilled()), (Recorded::Pending, 1));
    assert!(fixture.is_open().await);
    fixture.fake.set_fault(None);
    while gate.spilled() > 0 {
        hapax_testkit::pause().await;
    }
    let copy = gate.run(fixture.call(), |_| async { Ok(String::new()) }).await.unwrap();
    assert_eq!((copy.provenance, copy.answer), (Provenance::Replayed, "x".repeat(INLINE + 1)));
}

pub(crate) async fn small_answers_leave_the_journal_while_the_bucket_takes_none(kind: FarKind) {
    for fault in [BucketFault::Full, BucketFault::Held] {
        let fixture = Fixture::new(kind).await;
        let gate = fixture.impatient_gate();
        fixture.fake.set_fault(Some(fault));
        let ran = gate.run(fixture.call(), |_| async { Ok("x".repeat(INLINE + 1)) }).await.unwrap();
        assert_eq!((ran.recorded, gate.spilled()), (Recorded::Pending, 1));
        let small = Call::new(RecordKey::from_bytes([8; 16]));
        let faulty = Arc::clone(&fixture.faulty);
        let fails = move |_| async move {
            faulty.inject_from(0, StoreFault::FailBefore(ErrorKind::NotApplied));
            Ok(String::from("small"))
        };
        let ran = gate.run(small, fails).await.unwrap();
        assert_eq!((ran.recorded, gate.spilled()), (Recorded::Pending, 2));
        fixture.faulty.heal();
        while gate.spilled() > 1 {
            hapax_testkit::pause().await;
        }
        let copy = gate.run(small, |_| async { Ok(String::new()) }).await.unwrap();
        assert_eq!((copy.provenance, copy.answer.as_str()), (Provenance::Replayed, "small"));
        fixture.fake.set_fault(None);
        while gate.spilled() > 0 {
            hapax_testkit::pause().await;
        }
        assert_eq!(fixture.completion().await.form, StoredAnswer::Pointer);
    }
}

pub(crate) async fn the_verdict_of_an_operator_may_lie_in_the_bucket(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let grant = fixture.grant().await;
    let protocol = fixture.protocol();
    protocol.abandon(&fixture.rk, &Claim::from(&grant)).await.unwrap();
    protocol.hold(&fixture.rk, grant.token, Seconds(3600)).await.unwrap();
    let verdict = Verdict::Done { answer: large('v'), retention: Seconds(3600) };
    protocol.resolve(&fixture.rk, grant.token, &verdict).await.unwrap();
    let completion = fixture.completion().await;
    assert_eq!(completion.form, StoredAnswer::Pointer);
    assert_eq!(fixture.store.fetch(completion).await.unwrap().answer, large('v'));
    // The operator tries once more, because the reply was lost.
    let again = protocol.resolve(&fixture.rk, grant.token, &verdict).await.unwrap();
    assert_eq!(again, hapax_core::machine::Resolved::Yes);
}

pub(crate) async fn a_purge_removes_the_answers_of_the_record(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let grant = fixture.grant().await;
    let inspect = FarInspect::around(Arc::clone(&fixture.inside.inspect), fixture.bucket());
    fixture.store.complete(&fixture.rk, &completion_of(&grant, large('x'))).await.unwrap();
    // One of an attempt that lost, and one of a later attempt.
    fixture.store.complete(&fixture.rk, &completion_of(&grant, large('y'))).await.unwrap();
    let later = Grant { token: Token(grant.token.0 + 1), ..grant };
    fixture.store.complete(&fixture.rk, &completion_of(&later, large('z'))).await.unwrap();
    let ask = Purge { expected: grant.token, forget_unknown: false };
    fixture.fake.set_fault(Some(BucketFault::Down));
    let error = fixture.protocol().purge(&inspect, &fixture.rk, &ask).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotApplied, "{error:?}");
    assert!(!fixture.is_open().await, "the record stays with its answer");
    fixture.fake.set_fault(None);
    let purged = fixture.protocol().purge(&inspect, &fixture.rk, &ask).await.unwrap();
    assert_eq!(purged, Purged::Yes);
    assert_eq!(fixture.fake.objects().into_values().collect::<Vec<_>>(), [large('z')]);
}

pub(crate) async fn a_check_finds_what_does_not_work(kind: FarKind) {
    let fixture = Fixture::new(kind).await;
    let bucket = fixture.bucket().kept_for(Duration::from_secs(32 * 86_400));
    let findings = async |fault| {
        fixture.fake.set_fault(fault);
        let findings = bucket.check().await;
        assert!(findings.iter().all(|finding| finding.severity == Severity::Warn));
        findings.into_iter().map(|finding| finding.message).collect::<Vec<String>>().join("\n")
    };
    let without_rules = findings(None).await;
    assert!(without_rules.contains("a lifecycle rule of 32 days for the prefix a/"), "{without_rules}");
    fixture.fake.set_lifecycle(&removal(kind.service, 31));
    assert!(findings(None).await.contains("removes answers after 31 days"));
    fixture.fake.set_lifecycle(&removal(kind.service, 32));
    assert_eq!(findings(None).await, "");
    assert!(fixture.fake.objects().is_empty(), "the check leaves nothing behind");
    let forbidden = findings(Some(BucketFault::Forbidden)).await;
    assert!(forbidden.contains("cannot be recorded") && forbidden.contains("AccessDenied"), "{forbidden}");
    let cut = findings(Some(BucketFault::Cuts)).await;
    assert!(cut.contains("recorded answers cannot be given"), "{cut}");
}

/// A lifecycle rule that removes answers after these days.
fn removal(service: BucketService, days: u32) -> String {
    match service {
        BucketService::S3 => format!(
            "<Rule><Status>Enabled</Status><Filter><Prefix>a/</Prefix></Filter>\
             <Expiration><Days>{days}</Days></Expiration></Rule>"
        ),
        BucketService::Google => format!(
            "<Rule><Action><Delete/></Action><Condition><Age>{days}</Age><MatchesPrefix>a/</MatchesPrefix>\
             </Condition></Rule>"
        ),
    }
}

/// Dropped before the write, while it runs, between the write and the record, and after that.
pub(crate) async fn a_dropped_completion_can_be_repeated_wherever_it_was_dropped(kind: FarKind) {
    for (calls, has_written) in [(0, false), (0, true), (1, true), (2, true)] {
        let fixture = Fixture::new(kind).await;
        let (grant, begun) = (fixture.grant().await, fixture.faulty.calls().len());
        let ask = completion_of(&grant, large('x'));
        let mut completing = Box::pin(fixture.store.complete(&fixture.rk, &ask));
        let is_reached =
            || fixture.faulty.calls().len() >= begun + calls && fixture.fake.objects().is_empty() != has_written;
        let mut has_ended = false;
        while !is_reached() && !has_ended {
            tokio::select! {
                biased;
                completed = &mut completing => {
                    assert_eq!(completed.unwrap(), Completed::Done);
                    has_ended = true;
                }
                () = yield_now() => {}
            }
        }
        assert!(calls == 2 || !has_ended, "it was not dropped after {calls} calls");
        drop(completing);
        let again = fixture.store.complete(&fixture.rk, &ask).await.unwrap();
        assert!(matches!(again, Completed::Done | Completed::Already), "{again:?}");
        let fetched = fixture.store.fetch(fixture.completion().await).await.unwrap();
        assert_eq!(fetched.answer, large('x'));
    }
}

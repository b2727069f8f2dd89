//! Objects in a bucket: on MinIO, and on buckets of S3 and of Google Cloud Storage with faults.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

mod far;
mod inside;

use std::error::Error as StdError;
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::{Error, ErrorKind, Token};
use hapax_stores::{AnswerBucket, BucketUrl, FoundObject};
use hapax_testkit::servers::{self, MinioServer, Trial};
use hapax_testkit::{BucketFault, BucketService, FakeBucket};

use self::inside::FarKind;

fn main() -> ExitCode {
    macro_rules! tests {
        ($service:expr, $($name:ident),* $(,)?) => { vec![$(test($service, stringify!($name), $name)),*] };
    }
    let mut trials = tests![
        Some("minio"),
        an_object_is_written_read_listed_and_removed,
        a_wrong_secret_and_a_missing_bucket_are_no_missing_object,
        a_bucket_that_is_down_is_used_again_when_it_is_back,
    ];
    macro_rules! fake {
        ($service:expr, $($name:ident),* $(,)?) => {
            [$(fake($service, stringify!($name), move || $name($service))),*]
        };
    }
    let fakes = [BucketService::S3, BucketService::Google].map(|service| {
        fake![
            service,
            a_failure_is_never_a_missing_object,
            a_call_that_is_not_answered_is_given_up,
            a_write_without_an_answer_may_be_there_and_can_be_repeated,
            a_denied_object_is_missing_only_if_a_list_shows_it,
            only_objects_of_the_token_and_of_earlier_ones_are_listed,
        ]
    });
    trials.extend(fakes.into_iter().flatten());
    trials.extend(tests![
        None,
        an_object_of_google_is_never_replaced,
        an_object_that_changes_on_its_way_is_refused_by_google,
    ]);
    macro_rules! far {
        ($kind:expr, $($name:ident),* $(,)?) => {
            [$(far($kind, stringify!($name), move || far::$name($kind))),*]
        };
    }
    let far = FarKind::ALL.map(|kind| {
        far![
            kind,
            only_an_answer_above_the_limit_lies_in_the_bucket,
            the_record_names_an_answer_only_after_the_bucket_has_confirmed_it,
            an_object_without_a_record_harms_nobody,
            a_bucket_that_fails_leaves_the_record_open,
            a_completion_that_is_repeated_writes_the_answer_again,
            an_answer_that_looks_like_a_pointer_is_none,
            a_store_without_the_bucket_cannot_give_its_answers,
            an_answer_in_another_bucket_is_not_damaged,
            an_answer_that_is_gone_is_damage_and_never_a_second_run,
            nothing_is_fetched_for_a_caller_that_gets_no_answer,
            the_journal_keeps_an_answer_until_the_bucket_takes_it,
            small_answers_leave_the_journal_while_the_bucket_takes_none,
            the_verdict_of_an_operator_may_lie_in_the_bucket,
            a_purge_removes_the_answers_of_the_record,
            a_dropped_completion_can_be_repeated_wherever_it_was_dropped,
            a_check_finds_what_does_not_work,
        ]
    });
    trials.extend(far.into_iter().flatten());
    servers::main(trials)
}

/// A test of a store with a bucket, around a store of this kind.
fn far<F: Future<Output = ()> + 'static>(kind: FarKind, name: &str, run: impl FnOnce() -> F + Send + 'static) -> Trial {
    match kind.inside.service() {
        Some(service) => servers::test(name, service, run),
        None => test(None, &format!("{}::{name}", kind.name()), run),
    }
}

/// A test of a bucket of this service.
fn fake<F: Future<Output = ()> + 'static>(
    service: BucketService,
    name: &str,
    run: impl FnOnce() -> F + Send + 'static,
) -> Trial {
    let name = match service {
        BucketService::S3 => name.to_owned(),
        BucketService::Google => format!("google::{name}"),
    };
    test(None, &name, run)
}

fn test<F: Future<Output = ()> + 'static>(
    service: Option<&'static str>,
    name: &str,
    run: impl FnOnce() -> F + Send + 'static,
) -> Trial {
    match service {
        Some(service) => servers::test(name, service, run),
        None => {
            let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
            Trial::test(name, move || {
                runtime()?.block_on(run());
                Ok(())
            })
        }
    }
}

fn runtime() -> Arc<dyn Runtime> {
    Arc::new(Tokio::current())
}

fn bucket(url: &str) -> AnswerBucket {
    let is_google = url.starts_with("gs:");
    let url: BucketUrl = url.parse().unwrap();
    if is_google {
        // A stand-in without TLS gets no token.
        return AnswerBucket::new(&url, runtime()).unwrap();
    }
    AnswerBucket::with_key(&url, (MinioServer::KEY, MinioServer::SECRET), runtime()).unwrap()
}

fn found(bytes: &[u8]) -> FoundObject {
    FoundObject::Bytes(Bytes::copy_from_slice(bytes))
}

/// The error of a bucket, with its causes. It must say that nothing was applied.
fn refused<T: std::fmt::Debug>(result: hapax_core::Result<T>) -> String {
    let error: Error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotApplied, "{error:?}");
    assert!(error.source().is_some());
    format!("{error:?}")
}

async fn an_object_is_written_read_listed_and_removed() {
    let server = MinioServer::shared().await.unwrap();
    let bucket = bucket(&server.answers("objects"));
    for (number, size) in [1, 100, 5 << 20].into_iter().enumerate() {
        let content: Bytes = (0..size).map(|at: usize| u8::try_from(at % 251).unwrap()).collect::<Vec<_>>().into();
        let name = format!("objects/ab/{number:020}-0011");
        assert_eq!(bucket.get(&name).await.unwrap(), FoundObject::Missing);
        bucket.put(&name, content.clone()).await.unwrap();
        bucket.put(&name, content.clone()).await.unwrap();
        assert_eq!(bucket.get(&name).await.unwrap(), FoundObject::Bytes(content));
    }
    let name = |number: u64| format!("objects/ab/{number:020}-0011");
    assert_eq!(bucket.names_up_to("objects/ab", Token(1)).await.unwrap(), [name(0), name(1)]);
    bucket.delete(&name(1)).await.unwrap();
    bucket.delete(&name(1)).await.unwrap();
    assert_eq!(bucket.get(&name(1)).await.unwrap(), FoundObject::Missing);
    assert_eq!(bucket.names_up_to("objects/ab", Token(9)).await.unwrap(), [name(0), name(2)]);
}

async fn a_wrong_secret_and_a_missing_bucket_are_no_missing_object() {
    let server = MinioServer::shared().await.unwrap();
    let url: BucketUrl = server.answers("objects").parse().unwrap();
    let key = |key, secret| AnswerBucket::with_key(&url, (key, secret), runtime()).unwrap();
    for (bucket, code) in [
        (key(MinioServer::KEY, "another"), "SignatureDoesNotMatch"),
        (key("nobody", MinioServer::SECRET), "InvalidAccessKeyId"),
        (bucket(&format!("s3://absent/objects?endpoint={}", server.url())), "NoSuchBucket"),
    ] {
        let read = refused(bucket.get("objects/x").await);
        assert!(read.contains(code), "{read}");
        let written = refused(bucket.put("objects/x", Bytes::from_static(b"x")).await);
        assert!(written.contains(code) && !written.contains("hapax-secret"), "{written}");
    }
}

async fn a_bucket_that_is_down_is_used_again_when_it_is_back() {
    let server = MinioServer::start(&[]).await.unwrap();
    let bucket = bucket(&server.answers("objects"));
    bucket.put("objects/x", Bytes::from_static(b"x")).await.unwrap();
    server.kill();
    refused(bucket.get("objects/x").await);
    refused(bucket.put("objects/y", Bytes::from_static(b"y")).await);
    server.restart().await.unwrap();
    assert_eq!(bucket.get("objects/x").await.unwrap(), found(b"x"));
    assert_eq!(bucket.get("objects/y").await.unwrap(), FoundObject::Missing);
}

async fn a_failure_is_never_a_missing_object(service: BucketService) {
    let fake = FakeBucket::start(service).await.unwrap();
    let bucket = bucket(&fake.answers("a"));
    bucket.put("a/x", Bytes::from_static(b"content")).await.unwrap();
    let (scheme, busy, full) = match service {
        BucketService::S3 => ("s3", "SlowDown", "XMinioStorageFull"),
        BucketService::Google => ("gs", "TooManyRequests", "QuotaExceeded"),
    };
    for (fault, said) in [
        (BucketFault::Down, "no whole answer came"),
        (BucketFault::Busy, busy),
        (BucketFault::Forbidden, "AccessDenied"),
        (BucketFault::Cuts, "no whole answer came"),
        (BucketFault::LosesAnswers, "no whole answer came"),
    ] {
        fake.set_fault(Some(fault));
        let error = refused(bucket.get("a/x").await);
        assert!(error.contains(&format!("{scheme}://fake/a")) && error.contains(said), "{fault:?}: {error}");
        // Each call is sent once. Who is forbidden to read is asked to read another object.
        fake.set_fault(None);
        assert_eq!(bucket.get("a/x").await.unwrap(), found(b"content"));
    }
    fake.set_fault(Some(BucketFault::Full));
    let error = refused(bucket.put("a/y", Bytes::from_static(b"y")).await);
    assert!(error.contains(full), "{error}");
    assert_eq!(bucket.get("a/x").await.unwrap(), found(b"content"), "a full bucket still gives what it has");
    let sent = fake.requests().iter().filter(|request| *request == "PUT /fake/a/y").count();
    assert_eq!(sent, 1, "it is not sent again");
}

async fn a_call_that_is_not_answered_is_given_up(service: BucketService) {
    let fake = FakeBucket::start(service).await.unwrap();
    let bucket = bucket(&format!("{}&timeout=1", fake.answers("a")));
    fake.set_fault(Some(BucketFault::Held));
    let error = refused(bucket.put("a/x", Bytes::from_static(b"x")).await);
    assert!(error.contains("does not answer within"), "{error}");
}

async fn a_write_without_an_answer_may_be_there_and_can_be_repeated(service: BucketService) {
    let fake = FakeBucket::start(service).await.unwrap();
    let bucket = bucket(&fake.answers("a"));
    fake.set_fault(Some(BucketFault::LosesAnswers));
    refused(bucket.put("a/x", Bytes::from_static(b"x")).await);
    fake.set_fault(None);
    assert_eq!(bucket.get("a/x").await.unwrap(), found(b"x"));
    bucket.put("a/x", Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(bucket.get("a/x").await.unwrap(), found(b"x"));
}

async fn a_denied_object_is_missing_only_if_a_list_shows_it(service: BucketService) {
    let fake = FakeBucket::start(service).await.unwrap();
    let bucket = bucket(&fake.answers("a"));
    fake.set_fault(Some(BucketFault::HidesMissing));
    assert_eq!(bucket.get("a/x").await.unwrap(), FoundObject::Missing);
    // One that is listed is there, whatever the reason is for which it cannot be read. Without a list nothing is known.
    fake.set_fault(Some(BucketFault::Forbidden));
    refused(bucket.get("a/x").await);
}

async fn only_objects_of_the_token_and_of_earlier_ones_are_listed(service: BucketService) {
    let fake = FakeBucket::start(service).await.unwrap();
    let bucket = bucket(&fake.answers("a"));
    let name = |folder: &str, token: u64| format!("a/{folder}/{token:020}-00");
    for token in 1..=6 {
        bucket.put(&name("r", token), Bytes::from_static(b"x")).await.unwrap();
    }
    for other in [name("ra", 1), "a/r/check".to_owned(), "a/r/1-00".to_owned()] {
        bucket.put(&other, Bytes::from_static(b"x")).await.unwrap();
    }
    fake.set_fault(Some(BucketFault::Forbidden));
    refused(bucket.names_up_to("a/r", Token(5)).await);
    fake.set_fault(None);
    let listed: Vec<String> = (1..=5).map(|token| name("r", token)).collect();
    assert_eq!(bucket.names_up_to("a/r", Token(5)).await.unwrap(), listed);
    assert_eq!(bucket.names_up_to("a/absent", Token(5)).await.unwrap(), [""; 0]);
}

async fn an_object_of_google_is_never_replaced() {
    let fake = FakeBucket::start(BucketService::Google).await.unwrap();
    let bucket = bucket(&fake.answers("a"));
    bucket.put("a/x", Bytes::from_static(b"first")).await.unwrap();
    bucket.put("a/x", Bytes::from_static(b"first")).await.unwrap();
    let error = refused(bucket.put("a/x", Bytes::from_static(b"other")).await);
    assert!(error.contains("is not replaced"), "{error}");
    assert_eq!(bucket.get("a/x").await.unwrap(), found(b"first"));
    bucket.delete("a/x").await.unwrap();
    bucket.delete("a/x").await.unwrap();
    bucket.put("a/x", Bytes::from_static(b"other")).await.unwrap();
}

async fn an_object_that_changes_on_its_way_is_refused_by_google() {
    let fake = FakeBucket::start(BucketService::Google).await.unwrap();
    let bucket = bucket(&fake.answers("a"));
    fake.set_fault(Some(BucketFault::Alters));
    let error = refused(bucket.put("a/x", Bytes::from_static(b"content")).await);
    assert!(error.contains("BadDigest"), "{error}");
    assert!(fake.objects().is_empty());
}

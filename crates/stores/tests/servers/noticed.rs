//! What is noticed of a server apart from its records: its clock, its process, and that it forgets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::machine::{Claim, Decision, Renewed, release};
use hapax_core::store::{Finding, Swapped};
use hapax_core::{Inspect, Seconds, Store};
use hapax_stores::Redis;
use hapax_testkit::Step;
use hapax_testkit::proxy::{Fault, Proxy};
use hapax_testkit::servers::Kind;
use libtest_mimic::Trial;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::world::{FIRST, Operation, ask, behind, carried_out, start, store, test, until};

pub(crate) fn tests() -> Vec<Trial> {
    let redis = Kind::Redis.name();
    let each = Kind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("a_sentinel_that_tells_nothing_is_named", name, move || no_sentinel(kind)),
            test("a_renewal_between_look_and_swap_wins", name, move || renewed_under_a_swap(kind)),
        ]
    });
    let once = [
        test("a_slow_look_at_the_clock_says_nothing_of_it", redis, slow_look),
        test("a_greeting_left_lying_is_no_news", redis, left_lying),
        test("a_server_that_forgets_is_counted", redis, counted),
    ];
    each.chain(once).collect()
}

fn says(findings: &[Finding], what: &str) -> bool {
    findings.iter().any(|finding| finding.message.contains(what))
}

/// The way there takes so long that the server looks at its clock when half of the trip is long over.
async fn slow_look() {
    let server = start(Kind::Redis, &[]).await;
    let (proxy, store) = behind(&server).await;
    assert!(!says(&store.check().await.unwrap(), "more than a second apart"));
    proxy.inject(Fault::Latency { delay: Duration::from_millis(2500), jitter: Duration::ZERO }.times(1));
    let findings = store.check().await.unwrap();
    assert_eq!(proxy.counts().held_up, 1);
    assert!(!says(&findings, "more than a second apart"), "{findings:?}");
    server.step_clock(Step::Forward(Duration::from_secs(5))).unwrap();
    assert!(says(&store.check().await.unwrap(), "more than a second apart"));
    proxy.inject(Fault::Latency { delay: Duration::from_millis(2500), jitter: Duration::ZERO }.times(1));
    assert!(says(&store.check().await.unwrap(), "more than a second apart"), "what was known before still is");
}

/// An operation whose calls travel over this one of two connections.
fn of_connection(number: u8) -> Operation {
    let mut all = (0..).map(|n| Operation::new(&format!("{n}")));
    all.find(|operation| operation.0.record_key().as_bytes()[15] % 2 == number).unwrap()
}

/// A connection was being made when its caller went away, and is taken further after the server was started anew.
async fn left_lying() {
    let server = start(Kind::Redis, &[]).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let store = store(&format!("redis://{}?connections=2", proxy.address()));
    let [first, second] = [0, 1].map(|number| of_connection(number).0.record_key());
    store.read(&first).await.unwrap();
    // What comes late is the reply to the look at the sentinel, after greeting, its reply and the look.
    proxy.inject(Fault::Latency { delay: Duration::from_millis(700), jitter: Duration::ZERO }.after(3).times(1));
    let looks = carried_out(&server, "get").await;
    let looked = until("it looks", || async { carried_out(&server, "get").await > looks });
    tokio::select! {
        read = store.read(&second) => panic!("its connection was to be in the making: {read:?}"),
        () = looked => {}
    }
    server.restart().await.unwrap();
    answered(&store).await;
    assert_eq!(proxy.counts().held_up, 1);
    // Over the second connection, first the one that was left lying.
    while store.read(&second).await.is_err() {}
    let findings = store.check().await.unwrap();
    assert!(!says(&findings, "another process") && !says(&findings, "has lost records"), "{findings:?}");
}

/// The first check that is answered, which tells of the restart.
async fn answered(store: &Redis) {
    let findings = loop {
        if let Ok(findings) = store.check().await {
            break findings;
        }
    };
    assert!(says(&findings, "another process") && says(&findings, "has lost records"), "{findings:?}");
}

async fn no_sentinel(kind: Kind) {
    let server = start(kind, &[]).await;
    let whole = store(&server.url());
    assert!(!says(&whole.check().await.unwrap(), "hx:amnesia"));
    ask(&server, &["DEL", "hx:amnesia"]).await;
    ask(&server, &["RPUSH", "hx:amnesia", "one"]).await;
    let findings = whole.check().await.unwrap();
    assert!(says(&findings, "hx:amnesia is of another type") && says(&findings, "delete it"), "{findings:?}");
    ask(&server, &["DEL", "hx:amnesia"]).await;
    assert!(!says(&whole.check().await.unwrap(), "hx:amnesia"), "it is left anew");
    // May read what is there and not leave it; then not even read it.
    for keys in ["%R~hx:amnesia", "~other"] {
        ask(&server, &["DEL", "hx:amnesia"]).await;
        ask(&server, &["ACL", "SETUSER", "some", "reset", "on", ">secret", "+@all", "~hx:[^a]*", keys]).await;
        let partly = store(&format!("redis://some:secret@{}", server.address()));
        let findings = partly.check().await.unwrap();
        assert!(says(&findings, "may not read and write the key hx:amnesia"), "{findings:?}");
        assert!(says(&findings, "give it ~hx:*"), "{findings:?}");
    }
}

/// Whoever looked before the renewal does not get to write over it.
async fn renewed_under_a_swap(kind: Kind) {
    let server = start(kind, &[]).await;
    let (store, other) = (store(&server.url()), store(&server.url()));
    let operation = Operation::new("one");
    let grant = operation.granted(&*store, FIRST).await;
    let rk = operation.0.record_key();
    let seen = store.read(&rk).await.unwrap();
    let claim = Claim::from(&grant);
    let Decision::Change(next, _) = release(&seen, &claim, Seconds(600)) else { panic!("it can be released") };
    server.step_clock(Step::Forward(Duration::from_millis(10))).unwrap();
    assert_eq!(other.renew(&rk, &claim).await.unwrap(), Renewed::Yes);
    let renewed = operation.held(&server).await;
    assert_eq!(store.swap(&rk, &seen, &next).await.unwrap(), Swapped::Changed);
    assert_eq!(operation.held(&server).await, renewed);
    let seen = store.read(&rk).await.unwrap();
    assert_eq!(store.swap(&rk, &seen, &next).await.unwrap(), Swapped::Yes);
}

/// Only counts how often a store was seen to forget.
#[derive(Default)]
struct Forgotten(Arc<AtomicU64>);

impl Recorder for Forgotten {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        if key.name() == "hapax_amnesia_total" { Counter::from_arc(Arc::clone(&self.0)) } else { Counter::noop() }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

async fn counted() {
    let server = start(Kind::Redis, &[]).await;
    let store = store(&server.url());
    let forgotten = Forgotten::default();
    let counted = || forgotten.0.load(Ordering::SeqCst);
    let _here = metrics::set_default_local_recorder(&forgotten);
    Operation::new("one").cycle(&*store).await;
    store.check().await.unwrap();
    assert_eq!(counted(), 0);
    for times in 1..=2 {
        ask(&server, &["FLUSHALL"]).await;
        let findings = store.check().await.unwrap();
        assert!(says(&findings, "has lost records"), "{findings:?}");
        assert!(says(&findings, &format!("by this process: {times}")), "{findings:?}");
        store.check().await.unwrap();
        assert_eq!(counted(), times);
    }
}

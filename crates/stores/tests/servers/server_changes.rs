//! Changes of the server that a store must detect: lost data, another process, another clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::machine::{Claim, Decision, Renewed, release};
use hapax_core::store::{Finding, Swapped};
use hapax_core::{Inspect, Seconds, Store};
use hapax_stores::Redis;
use hapax_testkit::ClockStep;
use hapax_testkit::proxy::{NetworkFault, Proxy};
use hapax_testkit::servers::RedisKind;
use libtest_mimic::Trial;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::support::{FIRST, Operation, ask, executions, start, store, store_behind_proxy, test, until};

pub(crate) fn tests() -> Vec<Trial> {
    let redis = RedisKind::Redis.name();
    let each = RedisKind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("an_unusable_sentinel_is_reported", name, move || unusable_sentinel(kind)),
            test("a_renewal_between_read_and_swap_wins", name, move || renewal_before_swap(kind)),
        ]
    });
    let once = [
        test("a_slow_round_trip_is_not_taken_for_clock_skew", redis, slow_clock_reading),
        test("an_observation_that_is_resumed_late_reports_nothing", redis, resumed_late),
        test("each_loss_of_data_is_counted", redis, counted),
    ];
    each.chain(once).collect()
}

fn has_finding(findings: &[Finding], text: &str) -> bool {
    findings.iter().any(|finding| finding.message.contains(text))
}

/// The request is delayed, so the server reads its clock long after the middle of the round trip.
async fn slow_clock_reading() {
    let server = start(RedisKind::Redis, &[]).await;
    let (proxy, store) = store_behind_proxy(&server).await;
    assert!(!has_finding(&store.check().await.unwrap(), "more than a second apart"));
    proxy.inject(NetworkFault::Latency { delay: Duration::from_millis(2500), jitter: Duration::ZERO }.times(1));
    let findings = store.check().await.unwrap();
    assert_eq!(proxy.counts().held_up, 1);
    assert!(!has_finding(&findings, "more than a second apart"), "{findings:?}");
    server.step_clock(ClockStep::Forward(Duration::from_secs(5))).unwrap();
    assert!(has_finding(&store.check().await.unwrap(), "more than a second apart"));
    proxy.inject(NetworkFault::Latency { delay: Duration::from_millis(2500), jitter: Duration::ZERO }.times(1));
    assert!(
        has_finding(&store.check().await.unwrap(), "more than a second apart"),
        "a slow reading must not erase the skew found before"
    );
}

/// An operation whose calls use this one of two connections.
fn operation_on_connection(number: u8) -> Operation {
    let mut all = (0..).map(|n| Operation::new(&format!("{n}")));
    all.find(|operation| operation.0.record_key().as_bytes()[15] % 2 == number).unwrap()
}

/// A caller is cancelled while its connection opens. The next caller resumes the attempt to connect, after a restart of
/// the server: the observation in that attempt is older than the restart and must not be reported as a change.
async fn resumed_late() {
    let server = start(RedisKind::Redis, &[]).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let store = store(&format!("redis://{}?connections=2", proxy.address()));
    let [first, second] = [0, 1].map(|number| operation_on_connection(number).0.record_key());
    store.read(&first).await.unwrap();
    // Delays the fourth piece: the reply to the observation. Before it come the handshake, its reply and the
    // observation.
    proxy.inject(NetworkFault::Latency { delay: Duration::from_millis(700), jitter: Duration::ZERO }.after(3).times(1));
    let reads = executions(&server, "get").await;
    let observed = until("it reads the sentinel", || async { executions(&server, "get").await > reads });
    tokio::select! {
        read = store.read(&second) => panic!("the connection must not be open yet: {read:?}"),
        () = observed => {}
    }
    server.restart().await.unwrap();
    restart_is_reported(&store).await;
    assert_eq!(proxy.counts().held_up, 1);
    // The first call on the second connection resumes the attempt that was left behind.
    while store.read(&second).await.is_err() {}
    let findings = store.check().await.unwrap();
    assert!(!has_finding(&findings, "another process") && !has_finding(&findings, "has lost records"), "{findings:?}");
}

/// Checks until one succeeds; that one must report the restart.
async fn restart_is_reported(store: &Redis) {
    let findings = loop {
        if let Ok(findings) = store.check().await {
            break findings;
        }
    };
    assert!(has_finding(&findings, "another process") && has_finding(&findings, "has lost records"), "{findings:?}");
}

async fn unusable_sentinel(kind: RedisKind) {
    let server = start(kind, &[]).await;
    let with_all_keys = store(&server.url());
    assert!(!has_finding(&with_all_keys.check().await.unwrap(), "hx:amnesia"));
    ask(&server, &["DEL", "hx:amnesia"]).await;
    ask(&server, &["RPUSH", "hx:amnesia", "one"]).await;
    let findings = with_all_keys.check().await.unwrap();
    assert!(
        has_finding(&findings, "hx:amnesia is of another type") && has_finding(&findings, "delete the key"),
        "{findings:?}"
    );
    ask(&server, &["DEL", "hx:amnesia"]).await;
    assert!(!has_finding(&with_all_keys.check().await.unwrap(), "hx:amnesia"), "the check writes a new sentinel");
    // First a user that may read the key but not write it, then a user that may do neither.
    for keys in ["%R~hx:amnesia", "~other"] {
        ask(&server, &["DEL", "hx:amnesia"]).await;
        ask(&server, &["ACL", "SETUSER", "some", "reset", "on", ">secret", "+@all", "~hx:[^a]*", keys]).await;
        let restricted = store(&format!("redis://some:secret@{}", server.address()));
        let findings = restricted.check().await.unwrap();
        assert!(has_finding(&findings, "may not read and write the key hx:amnesia"), "{findings:?}");
        assert!(has_finding(&findings, "give the user ~hx:*"), "{findings:?}");
    }
}

/// A swap whose read came before the renewal must not overwrite the record.
async fn renewal_before_swap(kind: RedisKind) {
    let server = start(kind, &[]).await;
    let (store, other) = (store(&server.url()), store(&server.url()));
    let operation = Operation::new("one");
    let grant = operation.grant(&*store, FIRST).await;
    let rk = operation.0.record_key();
    let seen = store.read(&rk).await.unwrap();
    let claim = Claim::from(&grant);
    let Decision::Change(next, _) = release(&seen, &claim, Seconds(600)) else { panic!("the grant can be released") };
    // The expiry has a resolution of a millisecond, so the renewal must come later than that.
    server.step_clock(ClockStep::Forward(Duration::from_millis(10))).unwrap();
    assert_eq!(other.renew(&rk, &claim).await.unwrap(), Renewed::Yes);
    let renewed = operation.stored_value(&server).await;
    assert_eq!(store.swap(&rk, &seen, &next).await.unwrap(), Swapped::Changed);
    assert_eq!(operation.stored_value(&server).await, renewed);
    let seen = store.read(&rk).await.unwrap();
    assert_eq!(store.swap(&rk, &seen, &next).await.unwrap(), Swapped::Yes);
}

/// Records only the metric for lost data.
#[derive(Default)]
struct DataLossCounter(Arc<AtomicU64>);

impl Recorder for DataLossCounter {
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
    let server = start(RedisKind::Redis, &[]).await;
    let store = store(&server.url());
    let losses = DataLossCounter::default();
    let counted = || losses.0.load(Ordering::SeqCst);
    // Only on this thread: other tests run in the same process.
    let _guard = metrics::set_default_local_recorder(&losses);
    Operation::new("one").cycle(&*store).await;
    store.check().await.unwrap();
    assert_eq!(counted(), 0);
    for times in 1..=2 {
        ask(&server, &["FLUSHALL"]).await;
        let findings = store.check().await.unwrap();
        assert!(has_finding(&findings, "has lost records"), "{findings:?}");
        assert!(has_finding(&findings, &format!("by this process: {times}")), "{findings:?}");
        store.check().await.unwrap();
        assert_eq!(counted(), times);
    }
}

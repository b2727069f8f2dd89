//! Many records while their server is killed, stopped, emptied or filled, or while its clock steps.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::ErrorKind::{Damaged, Full};
use hapax_core::machine::{Begun, Completed};
use hapax_core::store::Finding;
use hapax_core::{Inspect, Store};
use hapax_stores::Redis;
use hapax_testkit::ClockStep;
use hapax_testkit::proxy::{Direction, NetworkFault, Proxy};
use hapax_testkit::servers::{RedisKind, RedisServer, RespValue};
use libtest_mimic::Trial;

use crate::grant_audit::GrantAudit;
use crate::refusals::assert_refused;
use crate::support::{FIRST, Operation, SECOND, ask, config, info, start, store, test, until};

const KEYS: usize = 100;

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn tests() -> Vec<Trial> {
    let each = RedisKind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("a_server_with_a_log_loses_nothing", name, move || killed_with_a_log(kind)),
            test("data_lost_in_a_restart_is_detected", name, move || killed_without_a_log(kind)),
            test("data_lost_in_a_flush_is_detected", name, move || emptied(kind)),
            test("flushed_scripts_are_sent_again", name, move || scripts_forgotten(kind)),
            test("a_server_that_was_stopped_grants_nothing_twice", name, move || stopped(kind)),
            test("a_clock_step_blocks_no_key", name, move || clock_steps(kind)),
        ]
    });
    let redis = RedisKind::Redis.name();
    let once = [
        test("a_full_server_accepts_completions_and_replays", redis, full),
        test("a_foreign_value_is_never_overwritten", redis, foreign_values),
        test("data_lost_by_a_promoted_replica_is_not_detected", redis, promoted_replica),
    ];
    each.chain(once).collect()
}

fn audit(store: &Arc<Redis>) -> GrantAudit {
    GrantAudit::new(Arc::clone(store) as Arc<dyn Store>, KEYS)
}

async fn killed_with_a_log(kind: RedisKind) {
    let server = start(kind, &["--appendonly", "yes", "--appendfsync", "always"]).await;
    let store = store(&server.url());
    let audit = audit(&store);
    let mut kills = 0;
    while kills < 4 || audit.unknown() == 0 {
        assert!(kills < 30, "no call was in flight during {kills} kills");
        kills += 1;
        let (_, restarted) = tokio::join!(audit.race(true), server.restart());
        restarted.unwrap();
    }
    audit.race(true).await;
    audit.assert_answers_stand().await;
    let findings = store.check().await.unwrap();
    assert!(has_finding(&findings, "another process") && !has_finding(&findings, "has lost records"), "{findings:?}");
}

async fn has_lost_data(store: &Redis) -> bool {
    has_finding(&store.check().await.unwrap(), "has lost records")
}

fn has_finding(findings: &[Finding], text: &str) -> bool {
    findings.iter().any(|finding| finding.message.contains(text))
}

async fn killed_without_a_log(kind: RedisKind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let audit = audit(&store);
    assert_eq!(audit.race(true).await, KEYS as u64);
    assert!(!has_lost_data(&store).await);
    server.restart().await.unwrap();
    // The restart broke the connection; the next connection detects the loss.
    audit.expect_data_loss();
    assert_eq!(audit.race(true).await, KEYS as u64);
    audit.assert_answers_stand().await;
    assert!(has_lost_data(&store).await);
    assert!(!has_lost_data(&store).await, "each event is reported once");
    server.restart().await.unwrap();
    assert!(
        has_finding(&first_findings(&store).await, "has lost records"),
        "the check's own new connection detects the loss"
    );
}

/// Checks until one succeeds: the restart broke the connection.
async fn first_findings(store: &Redis) -> Vec<Finding> {
    loop {
        if let Ok(findings) = store.check().await {
            return findings;
        }
    }
}

async fn emptied(kind: RedisKind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let audit = audit(&store);
    let in_progress = Operation::new("in progress");
    let grant = in_progress.grant(&*store, FIRST).await;
    audit.race(true).await;
    ask(&server, &["FLUSHALL"]).await;
    assert!(has_lost_data(&store).await);
    assert!(!has_lost_data(&store).await, "each event is reported once");
    let completed = in_progress.complete(&*store, &grant, "done").await.unwrap();
    assert_eq!(completed, Completed::Recreated);
    in_progress.assert_replays(&*store, "done").await;
    audit.expect_data_loss();
    assert_eq!(audit.race(true).await, KEYS as u64);
    audit.assert_answers_stand().await;
}

async fn scripts_forgotten(kind: RedisKind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let audit = audit(&store);
    let mut race = Box::pin(async {
        let granted = audit.race(true).await;
        audit.assert_answers_stand().await;
        granted
    });
    let mut flushed = 0;
    let granted = loop {
        tokio::select! {
            granted = race.as_mut() => break granted,
            _ = ask(&server, &["SCRIPT", "FLUSH"]) => flushed += 1,
        }
    };
    println!("{}: scripts flushed {flushed} times", kind.name());
    assert_eq!((granted, audit.unknown()), (KEYS as u64, 0));
    assert!(flushed > 3);
}

/// All callers time out and repeat their calls while the server is stopped; then it executes everything that was sent.
async fn stopped(kind: RedisKind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let audit = audit(&store);
    store.read(&audit.keys()[0].0.record_key()).await.unwrap();
    server.pause().unwrap();
    let resume = async {
        until("all callers have timed out", || async { audit.unknown() >= 2 * KEYS as u64 }).await;
        server.resume().unwrap();
    };
    let (granted, ()) = tokio::join!(audit.race(true), resume);
    assert_eq!(granted, KEYS as u64);
    audit.assert_answers_stand().await;
    assert!(!has_lost_data(&store).await);
}

/// Clock back: the next begin sets the lease again. Clock forward: every lease has expired, and the next begin holds
/// the record.
async fn clock_steps(kind: RedisKind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let audit = audit(&store);
    assert_eq!(audit.race(false).await, KEYS as u64);
    server.step_clock(ClockStep::Back(5 * HOUR)).unwrap();
    // Every begin is answered with at most one lease, including the first.
    assert_eq!(audit.race(false).await, 0);
    server.step_clock(ClockStep::Forward(Duration::from_secs(31))).unwrap();
    for operation in audit.keys() {
        let begun = operation.begin(&*store, SECOND).await.unwrap();
        assert!(matches!(begun, Begun::Indeterminate(_)), "{begun:?}");
    }
    let later = Operation::new("later");
    let grant = later.grant(&*store, FIRST).await;
    server.step_clock(ClockStep::Forward(7 * HOUR)).unwrap();
    // No other attempt took over the lapsed record, so its owner can still complete it.
    assert_eq!(later.complete(&*store, &grant, "done").await.unwrap(), Completed::Done);
    later.assert_replays(&*store, "done").await;
    store.check().await.unwrap();
    let apart = store.check().await.unwrap();
    assert!(has_finding(&apart, "more than a second apart"), "{apart:?}");
    Operation::new("under another clock").cycle(&*store).await;
}

async fn full() {
    let server = start(RedisKind::Redis, &[]).await;
    let store = store(&server.url());
    let audit = audit(&store);
    audit.race(true).await;
    let mut grants = Vec::new();
    for n in 0..KEYS {
        let operation = Operation::new(&format!("in progress {n}"));
        grants.push((operation, operation.grant(&*store, FIRST).await));
    }
    config(&server, "maxmemory", "1").await;
    assert_refused(Operation::new("new").begin(&*store, FIRST).await, Full, "memory is full");
    for (operation, grant) in &grants {
        assert_eq!(operation.complete(&*store, grant, "done").await.unwrap(), Completed::Done);
        operation.assert_replays(&*store, "done").await;
    }
    audit.assert_answers_stand().await;
    let findings = store.check().await.unwrap();
    assert!(has_finding(&findings, "more than 80 % of the server's memory"), "{findings:?}");
}

async fn foreign_values() {
    let server = start(RedisKind::Redis, &[]).await;
    let store = store(&server.url());
    let (theirs, ours) = (Operation::new("theirs"), Operation::new("ours"));
    theirs.cycle(&*store).await;
    let (RespValue::Bulk(record), _) = theirs.stored_value(&server).await else { panic!("the record must exist") };
    // A record of another key, and values that are no record.
    let forged = [record.to_vec(), b"not a record".to_vec(), Vec::new(), vec![1], vec![0xff; 200]];
    for value in forged {
        ask(&server, &[b"SET", &ours.name()[..], &value]).await;
        let before = ours.stored_value(&server).await;
        for owner in [FIRST, SECOND] {
            assert_refused(ours.begin(&*store, owner).await, Damaged, "");
        }
        assert_refused(store.read(&ours.0.record_key()).await, Damaged, "");
        assert_eq!(ours.stored_value(&server).await, before, "the foreign value was overwritten");
        theirs.assert_replays(&*store, "done").await;
    }
}

async fn wait_for_replication(replica: &RedisServer) {
    until("the replica is connected", || async { info(replica, "master_link_status").await == "up" }).await;
}

/// The promoted replica lacks the last records, but has the sentinel. So the store detects another process, and not the
/// loss of records: the operations are granted again. Only a ledger could prevent that.
async fn promoted_replica() {
    let (primary, replica) = (start(RedisKind::Redis, &[]).await, start(RedisKind::Redis, &[]).await);
    let replication = Proxy::start(primary.address()).await.unwrap();
    let client_proxy = Proxy::start(primary.address()).await.unwrap();
    let store = store(&format!("redis://{}", client_proxy.address()));
    let audit = audit(&store);
    let kept = Operation::new("kept");
    kept.cycle(&*store).await;
    ask(&replica, &["REPLICAOF", "127.0.0.1", &replication.address().port().to_string()]).await;
    wait_for_replication(&replica).await;
    let name = kept.name();
    let is_replicated = || async { ask(&replica, &[b"EXISTS", &name[..]]).await == RespValue::Integer(1) };
    until("the record is replicated", is_replicated).await;
    // From here on the replica gets no further writes, while the primary confirms them.
    replication.inject(NetworkFault::HalfOpen(Direction::ToClient));
    assert_eq!(audit.race(true).await, KEYS as u64);

    let keys = ask(&replica, &["DBSIZE"]).await;
    assert_eq!(keys, RespValue::Integer(2), "the replica must lack everything written later");
    primary.kill();
    ask(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    client_proxy.redirect_to(replica.address());
    client_proxy.reset();
    let findings = first_findings(&store).await;
    assert!(has_finding(&findings, "another process"), "{findings:?}");
    assert!(!has_finding(&findings, "has lost records"), "the sentinel was replicated before the loss");
    assert!(!has_finding(&store.check().await.unwrap(), "another process"), "each event is reported once");
    kept.assert_replays(&*store, "done").await;
    audit.expect_data_loss();
    assert_eq!(audit.race(true).await, KEYS as u64, "each key is granted again");
}

//! What becomes of many records when their server is killed, stopped, emptied, filled or put in the wrong hour.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::ErrorKind::{Damaged, Full};
use hapax_core::machine::{Begun, Completed};
use hapax_core::store::Finding;
use hapax_core::{Inspect, Store};
use hapax_stores::Redis;
use hapax_testkit::Step;
use hapax_testkit::proxy::{Direction, Fault, Proxy};
use hapax_testkit::servers::{Kind, RedisServer, Reply};
use libtest_mimic::Trial;

use crate::accounts::Accounts;
use crate::plight::refused;
use crate::world::{FIRST, Operation, SECOND, ask, config, info, start, store, test, until};

const KEYS: usize = 100;

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn tests() -> Vec<Trial> {
    let each = Kind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("a_server_with_a_log_forgets_nothing", name, move || killed_with_a_log(kind)),
            test("a_server_without_a_log_is_seen_to_forget", name, move || killed_without_a_log(kind)),
            test("a_server_that_is_emptied_is_seen_to_forget", name, move || emptied(kind)),
            test("scripts_forgotten_all_the_time_are_sent_again", name, move || scripts_forgotten(kind)),
            test("a_server_that_is_stopped_grants_nothing_twice", name, move || stopped(kind)),
            test("a_clock_that_steps_sticks_no_key", name, move || clock_steps(kind)),
        ]
    });
    let redis = Kind::Redis.name();
    let once = [
        test("a_full_server_takes_answers_and_replays", redis, full),
        test("what_is_not_a_record_is_never_overwritten", redis, foreign),
        test("a_replica_promoted_with_loss_is_not_seen_to_forget", redis, promoted),
    ];
    each.chain(once).collect()
}

fn accounts(store: &Arc<Redis>) -> Accounts {
    Accounts::over(Arc::clone(store) as Arc<dyn Store>, KEYS)
}

async fn killed_with_a_log(kind: Kind) {
    let server = start(kind, &["--appendonly", "yes", "--appendfsync", "always"]).await;
    let store = store(&server.url());
    let accounts = accounts(&store);
    for _ in 0..4 {
        let (_, restarted) = tokio::join!(accounts.race(true), server.restart());
        restarted.unwrap();
    }
    accounts.race(true).await;
    accounts.are_kept().await;
    assert!(accounts.unknown() > 0, "no call was under way when it was killed");
    let findings = store.check().await.unwrap();
    assert!(says(&findings, "another process") && !says(&findings, "has lost records"), "{findings:?}");
}

async fn forgot(store: &Redis) -> bool {
    says(&store.check().await.unwrap(), "has lost records")
}

fn says(findings: &[Finding], what: &str) -> bool {
    findings.iter().any(|finding| finding.message.contains(what))
}

async fn killed_without_a_log(kind: Kind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let accounts = accounts(&store);
    assert_eq!(accounts.race(true).await, KEYS as u64);
    assert!(!forgot(&store).await);
    server.restart().await.unwrap();
    // The connection broke with it, and the next one notices, whoever makes it.
    accounts.forgets();
    assert_eq!(accounts.race(true).await, KEYS as u64);
    accounts.are_kept().await;
    assert!(forgot(&store).await);
    assert!(!forgot(&store).await, "it is told once");
    server.restart().await.unwrap();
    assert!(says(&answered(&store).await, "has lost records"), "by a connection that the check itself makes");
}

/// The first check that is answered: the connection broke with the server.
async fn answered(store: &Redis) -> Vec<Finding> {
    loop {
        if let Ok(findings) = store.check().await {
            return findings;
        }
    }
}

async fn emptied(kind: Kind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let accounts = accounts(&store);
    let under_way = Operation::new("under way");
    let grant = under_way.granted(&*store, FIRST).await;
    accounts.race(true).await;
    ask(&server, &["FLUSHALL"]).await;
    assert!(forgot(&store).await);
    assert!(!forgot(&store).await, "it is told once");
    let completed = under_way.complete(&*store, &grant, "done").await.unwrap();
    assert_eq!(completed, Completed::Recreated);
    under_way.replays(&*store, "done").await;
    accounts.forgets();
    assert_eq!(accounts.race(true).await, KEYS as u64);
    accounts.are_kept().await;
}

async fn scripts_forgotten(kind: Kind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let accounts = accounts(&store);
    let mut race = Box::pin(async {
        let granted = accounts.race(true).await;
        accounts.are_kept().await;
        granted
    });
    let mut flushed = 0;
    let granted = loop {
        tokio::select! {
            granted = race.as_mut() => break granted,
            _ = ask(&server, &["SCRIPT", "FLUSH"]) => flushed += 1,
        }
    };
    println!("{}: {flushed} times", kind.name());
    assert_eq!((granted, accounts.unknown()), (KEYS as u64, 0));
    assert!(flushed > 3);
}

/// Everyone gives up and asks again while it is stopped; then all that was sent is carried out, late.
async fn stopped(kind: Kind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let accounts = accounts(&store);
    store.read(&accounts.keys()[0].0.record_key()).await.unwrap();
    server.pause().unwrap();
    let wakes = async {
        until("everyone has given up", || async { accounts.unknown() >= 2 * KEYS as u64 }).await;
        server.resume().unwrap();
    };
    let (granted, ()) = tokio::join!(accounts.race(true), wakes);
    assert_eq!(granted, KEYS as u64);
    accounts.are_kept().await;
    assert!(!forgot(&store).await);
}

/// Hours forward: every lease is over, and the next begin holds the record. Hours back: the next begin arms the lease anew.
async fn clock_steps(kind: Kind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let accounts = accounts(&store);
    assert_eq!(accounts.race(false).await, KEYS as u64);
    server.step_clock(Step::Back(5 * HOUR)).unwrap();
    // Whoever asks is told of one lease at most, also the first.
    assert_eq!(accounts.race(false).await, 0);
    server.step_clock(Step::Forward(Duration::from_secs(31))).unwrap();
    for operation in accounts.keys() {
        let begun = operation.begin(&*store, SECOND).await.unwrap();
        assert!(matches!(begun, Begun::Indeterminate(_)), "{begun:?}");
    }
    let later = Operation::new("later");
    let grant = later.granted(&*store, FIRST).await;
    server.step_clock(Step::Forward(7 * HOUR)).unwrap();
    // What lapsed was not taken over: its owner still completes it.
    assert_eq!(later.complete(&*store, &grant, "done").await.unwrap(), Completed::Done);
    later.replays(&*store, "done").await;
    store.check().await.unwrap();
    let apart = store.check().await.unwrap();
    assert!(apart.iter().any(|finding| finding.message.contains("more than a second apart")), "{apart:?}");
    Operation::new("under another clock").cycle(&*store).await;
}

async fn full() {
    let server = start(Kind::Redis, &[]).await;
    let store = store(&server.url());
    let accounts = accounts(&store);
    accounts.race(true).await;
    let mut grants = Vec::new();
    for n in 0..KEYS {
        let operation = Operation::new(&format!("under way {n}"));
        grants.push((operation, operation.granted(&*store, FIRST).await));
    }
    config(&server, "maxmemory", "1").await;
    refused(Operation::new("new").begin(&*store, FIRST).await, Full, "memory is full");
    for (operation, grant) in &grants {
        assert_eq!(operation.complete(&*store, grant, "done").await.unwrap(), Completed::Done);
        operation.replays(&*store, "done").await;
    }
    accounts.are_kept().await;
    let findings = store.check().await.unwrap();
    assert!(says(&findings, "four fifths of the server's memory"), "{findings:?}");
}

async fn foreign() {
    let server = start(Kind::Redis, &[]).await;
    let store = store(&server.url());
    let (theirs, ours) = (Operation::new("theirs"), Operation::new("ours"));
    theirs.cycle(&*store).await;
    let (Reply::Bulk(record), _) = theirs.held(&server).await else { panic!("it is there") };
    let forged = [record.to_vec(), b"not a record".to_vec(), Vec::new(), vec![1], vec![0xff; 200]];
    for value in forged {
        ask(&server, &[b"SET", &ours.name()[..], &value]).await;
        let before = ours.held(&server).await;
        for owner in [FIRST, SECOND] {
            refused(ours.begin(&*store, owner).await, Damaged, "");
        }
        refused(store.read(&ours.0.record_key()).await, Damaged, "");
        assert_eq!(ours.held(&server).await, before, "it was overwritten");
        theirs.replays(&*store, "done").await;
    }
}

async fn synced(replica: &RedisServer) {
    until("the replica follows", || async { info(replica, "master_link_status").await == "up" }).await;
}

/// The replica has the sentinel: what it lost cannot be told, only that it is another server. It is granted again; only a ledger knows.
async fn promoted() {
    let (primary, replica) = (start(Kind::Redis, &[]).await, start(Kind::Redis, &[]).await);
    let link = Proxy::start(primary.address()).await.unwrap();
    let door = Proxy::start(primary.address()).await.unwrap();
    let store = store(&format!("redis://{}", door.address()));
    let accounts = accounts(&store);
    let kept = Operation::new("kept");
    kept.cycle(&*store).await;
    ask(&replica, &["REPLICAOF", "127.0.0.1", &link.address().port().to_string()]).await;
    synced(&replica).await;
    let name = kept.name();
    let there = || async { ask(&replica, &[b"EXISTS", &name[..]]).await == Reply::Integer(1) };
    until("the record has come over", there).await;
    link.inject(Fault::HalfOpen(Direction::ToClient));
    assert_eq!(accounts.race(true).await, KEYS as u64);

    let there = ask(&replica, &["DBSIZE"]).await;
    assert_eq!(there, Reply::Integer(2), "the loss was to be all of what came later");
    primary.kill();
    ask(&replica, &["REPLICAOF", "NO", "ONE"]).await;
    door.lead_to(replica.address());
    door.reset();
    let findings = answered(&store).await;
    assert!(says(&findings, "another process"), "{findings:?}");
    assert!(!says(&findings, "has lost records"), "the sentinel came over before the loss");
    assert!(!says(&store.check().await.unwrap(), "another process"), "it is told once");
    kept.replays(&*store, "done").await;
    accounts.forgets();
    assert_eq!(accounts.race(true).await, KEYS as u64, "each is granted again");
}

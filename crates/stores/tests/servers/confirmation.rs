//! Writes that count only when replicas, or the disk, have them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use hapax_core::ErrorKind::Unknown;
use hapax_core::gate::Recorded;
use hapax_core::journal::MemoryJournal;
use hapax_core::machine::{Begun, Claim, Completed};
use hapax_core::store::{Finding, Severity};
use hapax_core::{Gate, Inspect, Policy, Settings, Store};
use hapax_testkit::servers::{RedisCluster, RedisClusterOptions, RedisKind, RedisSentinelOptions, RedisSentinels};
use libtest_mimic::Trial;

use crate::refusals::assert_refused;
use crate::support::{FIRST, Operation, ask, config, executions, start, store, test, until};

pub(crate) fn tests() -> Vec<Trial> {
    let each = RedisKind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("a_write_that_too_few_replicas_confirm_is_unknown", name, move || stopped_replica(kind)),
            test("a_write_is_confirmed_when_it_is_on_disk", name, move || on_disk(kind)),
        ]
    });
    let redis = RedisKind::Redis.name();
    let once = [
        test("a_write_in_a_cluster_is_confirmed_by_the_replica_of_its_master", redis, in_cluster),
        test("calls_that_are_made_together_are_confirmed_by_one_wait", redis, shared),
        test("a_user_who_may_not_confirm_writes_is_refused_by_the_check", redis, without_permission),
        test("an_answer_that_a_master_without_replicas_refuses_is_kept_in_the_journal", redis, without_replicas),
    ];
    each.chain(once).collect()
}

/// A master with one replica, and sentinels that never replace it.
async fn pair(kind: RedisKind) -> RedisSentinels {
    RedisSentinels::start(RedisSentinelOptions::new(kind)).await.expect("the servers start")
}

const TOO_FEW: &str = "0 of 1 replicas have it";

/// By the URL of the master, and by that of the sentinels.
async fn stopped_replica(kind: RedisKind) {
    let sentinels = pair(kind).await;
    let [master, replica] = sentinels.servers() else { unreachable!("there are two servers") };
    for (url, place) in [(master.url(), "alone"), (sentinels.url(), "sentinels")] {
        let [begun, new, held] = ["begun", "new", "held"].map(|name| Operation::new(&format!("{place}-{name}")));
        // A replica that runs answers in time, and nobody waits long for one that is stopped.
        let (patient, hasty) = (format!("{url}?wait=1:10000"), format!("{url}?wait=1:100"));
        let (patient, store) = (store(&patient), store(&hasty));
        begun.cycle(&*patient).await;
        let grant = held.grant(&*patient, FIRST).await;
        replica.pause().unwrap();

        assert_refused(new.begin(&*store, FIRST).await, Unknown, TOO_FEW);
        assert_refused(new.begin(&*store, FIRST).await, Unknown, TOO_FEW);
        let claim = Claim::from(&grant);
        assert_refused(store.renew(&held.0.record_key(), &claim).await, Unknown, TOO_FEW);
        assert_refused(held.complete(&*store, &grant, "paid").await, Unknown, TOO_FEW);
        // It finds its own answer, and a connection that has written nothing yet.
        let other = crate::support::store(&hasty);
        assert_refused(held.complete(&*other, &grant, "paid").await, Unknown, TOO_FEW);
        begun.assert_replays(&*store, "done").await;

        replica.resume().unwrap();
        until("the replica has the record", || async { new.begin(&*store, FIRST).await.is_ok() }).await;
        assert!(matches!(new.begin(&*patient, FIRST).await, Ok(Begun::Mine(_))));
        until("the replica has the answer", || async {
            matches!(held.complete(&*store, &grant, "paid").await, Ok(Completed::Already))
        })
        .await;
        held.assert_replays(&*store, "paid").await;
    }
}

async fn in_cluster() {
    let cluster = RedisCluster::start(RedisClusterOptions::new(RedisKind::Redis)).await.unwrap();
    let [patient, hasty] = [10_000, 100].map(|millis| store(&format!("{}?wait=1:{millis}", cluster.url())));
    let mut of_master = [None; 3];
    for n in 0.. {
        let operation = Operation::new(&n.to_string());
        of_master[cluster.place_of(&operation.name()).await.unwrap().1] = Some(operation);
        if of_master.iter().all(Option::is_some) {
            break;
        }
    }
    let [first, second, _] = of_master.map(|operation| operation.unwrap());
    // The replicas may still copy their masters.
    until("the replica has the record", || async { first.begin(&*hasty, FIRST).await.is_ok() }).await;
    until("the other replica has the other record", || async { second.begin(&*hasty, FIRST).await.is_ok() }).await;
    cluster.replicas()[0].pause().unwrap();
    assert_refused(first.begin(&*hasty, FIRST).await, Unknown, TOO_FEW);
    assert!(matches!(second.begin(&*patient, FIRST).await, Ok(Begun::Mine(_))));
    cluster.replicas()[0].resume().unwrap();
}

/// Calls that wait for the replies to an earlier group are sent in one.
async fn shared() {
    let sentinels = pair(RedisKind::Redis).await;
    let master = &sentinels.servers()[0];
    let store = store(&format!("{}?wait=1:10000", master.url()));
    let operations: Vec<_> = (0..64).map(|n| Operation::new(&n.to_string())).collect();
    join_all(operations.iter().map(|operation| operation.cycle(&*store))).await;
    let waits = executions(master, "wait").await;
    println!("{waits} waits for {} writes", 2 * operations.len());
    assert!(waits > 0 && waits <= 32, "{waits} waits");
}

async fn on_disk(kind: RedisKind) {
    let server = start(kind, &["--appendonly", "yes", "--appendfsync", "always"]).await;
    let store = store(&format!("{}?wait=0:10000&aof=synced", server.url()));
    let refusals = async || {
        let findings = store.check().await.unwrap();
        findings.into_iter().filter(|finding| finding.severity == Severity::Refuse).collect::<Vec<Finding>>()
    };
    let has_command =
        server.command(&["WAITAOF", "0", "0", "1"]).await.is_ok_and(|reply| !reply.text().contains("ERR"));
    if !has_command {
        let found = refusals().await;
        assert!(matches!(&found[..], [one] if one.message.contains("Redis 7.2 or later")), "{found:?}");
        assert_refused(Operation::new("one").begin(&*store, FIRST).await, Unknown, "does not tell");
        return;
    }
    assert_eq!(refusals().await, []);
    Operation::new("one").cycle(&*store).await;
    config(&server, "appendonly", "no").await;
    let found = refusals().await;
    assert!(matches!(&found[..], [one] if one.message.contains("set appendonly yes")), "{found:?}");
    assert_refused(Operation::new("two").begin(&*store, FIRST).await, Unknown, "does not tell");
}

async fn without_permission() {
    let sentinels = pair(RedisKind::Redis).await;
    let master = &sentinels.servers()[0];
    let permissions = "~hx:* +set +get +getrange +exists +pexpiretime +pexpire +time +info +eval +evalsha";
    let allow = async |more: &[&str]| {
        let words = ["ACL", "SETUSER", "some", "reset", "on", ">secret"].into_iter();
        ask(master, &words.chain(permissions.split(' ')).chain(more.iter().copied()).collect::<Vec<_>>()).await
    };
    let url = format!("{}?wait=1:10000", master.url().replace("://", "://some:secret@"));
    let refused = async |url: &str| {
        let findings = store(url).check().await.unwrap();
        findings.into_iter().find(|finding| finding.severity == Severity::Refuse)
    };
    allow(&[]).await;
    let found = refused(&url).await.expect("it is refused");
    assert!(found.message.contains("+wait"), "{found:?}");
    assert_refused(Operation::new("one").begin(&*store(&url), FIRST).await, Unknown, "may be lost");
    allow(&["+wait"]).await;
    assert_eq!(refused(&url).await, None);
    Operation::new("two").cycle(&*store(&url)).await;
}

/// The replicas leave while the handler runs. The answer is given, and recorded when they are back.
async fn without_replicas() {
    let server = Arc::new(start(RedisKind::Redis, &[]).await);
    let store = store(&server.url());
    let policy = Policy::default().record_patience(Duration::from_millis(200));
    let builder = Gate::builder(Arc::clone(&store) as Arc<dyn Store>, Settings::default().policy(policy));
    let gate = builder.journal(Arc::new(MemoryJournal::new())).build().unwrap();
    let effects = Arc::new(AtomicUsize::new(0));
    let operation = Operation::new("one");
    let run = || {
        let (server, effects) = (Arc::clone(&server), Arc::clone(&effects));
        gate.run(operation.0, move |_| async move {
            effects.fetch_add(1, Ordering::SeqCst);
            config(&server, "min-replicas-to-write", "1").await;
            Ok(String::from("paid"))
        })
    };
    let ran = run().await.unwrap();
    assert_eq!((ran.answer.as_str(), ran.recorded, gate.spilled()), ("paid", Recorded::Pending, 1));
    let seen = store.read(&operation.0.record_key()).await.unwrap();
    assert!(seen.is_running(), "the server has refused the completion");
    config(&server, "min-replicas-to-write", "0").await;
    until("the answer is recorded", || async { gate.spilled() == 0 }).await;
    operation.assert_replays(&*store, "paid").await;
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}

//! Clusters whose slots move, whose nodes fail, and which a URL names wrongly.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::join_all;
use hapax_core::ErrorKind::{NotApplied, Unusable};
use hapax_core::machine::Completed;
use hapax_core::store::{Finding, Scan, Severity};
use hapax_core::{Inspect, RecordKey, Store};
use hapax_stores::Redis;
use hapax_testkit::servers::{RedisCluster, RedisClusterOptions, RedisKind, RedisServer, RespValue};
use libtest_mimic::Trial;
use parking_lot::Mutex;

use crate::refusals::assert_refused;
use crate::support::{FIRST, Operation, SECOND, ask, executions, start, store, test, until, with_timeout};

pub(crate) fn tests() -> Vec<Trial> {
    let each = RedisKind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("a_call_follows_a_slot_that_moves", name, move || moving_slots(kind)),
            test("a_replica_that_takes_over_is_found_and_reported", name, move || takeover(kind)),
            test("a_replica_of_a_silent_master_is_found_by_calls_that_give_up", name, move || silent_master(kind)),
            test("a_restricted_user_of_a_cluster_needs_two_more_commands", name, move || restricted_user(kind)),
        ]
    });
    let redis = RedisKind::Redis.name();
    let once = [
        test("a_scan_finds_every_record_although_slots_move", redis, moving_scan),
        test("a_master_that_restarts_empty_is_reported_by_name", redis, empty_restart),
        test("a_url_of_the_wrong_kind_names_the_right_one", redis, wrong_urls),
        test("a_user_without_asking_is_told_so_while_a_slot_moves", redis, without_asking),
        test("a_call_that_nodes_send_to_each_other_ends_as_not_applied", redis, naming_each_other),
    ];
    each.chain(once).collect()
}

/// A cluster whose slots this test moves, so that no other test may get it.
async fn own(kind: RedisKind, arguments: &[&str]) -> RedisCluster {
    RedisCluster::start(RedisClusterOptions::new(kind).with_args(arguments)).await.expect("the servers start")
}

/// An operation whose record this node has, at its place in the cluster.
async fn at(cluster: &RedisCluster, place: usize) -> (Operation, u16) {
    for n in 0.. {
        let operation = Operation::new(&format!("{place}-{n}"));
        let (slot, found) = cluster.place_of(&operation.name()).await.unwrap();
        if found == place {
            return (operation, slot);
        }
    }
    unreachable!("every node has slots")
}

async fn moving_slots(kind: RedisKind) {
    let cluster = own(kind, &[]).await;
    let store = store(&cluster.url());
    let ((present, slot), (absent, empty_slot)) = (at(&cluster, 0).await, at(&cluster, 1).await);
    let grant = present.grant(&*store, FIRST).await;
    cluster.begin_move(slot, 0, 2).await.unwrap();
    cluster.begin_move(empty_slot, 1, 2).await.unwrap();
    let read = async |operation: Operation| store.read(&operation.0.record_key()).await.unwrap().live().is_some();
    assert!(read(present).await, "the old node still has it");

    // The new node lacks the scripts: an error uses up an `ASKING`, so the next command needs its own.
    ask(&cluster.nodes()[2], &["SCRIPT", "FLUSH"]).await;
    let created = absent.grant(&*store, FIRST).await;
    assert!(matches!(absent.complete(&*store, &created, "done").await, Ok(Completed::Done)));
    absent.assert_replays(&*store, "done").await;
    let asked = executions(&cluster.nodes()[2], "asking").await;
    assert!(asked > 0, "the slot is still on its way");

    cluster.move_keys(slot, 0, 2).await.unwrap();
    assert!(matches!(present.complete(&*store, &grant, "paid").await, Ok(Completed::Done)));
    cluster.end_move(slot, 0, 2).await.unwrap();
    cluster.end_move(empty_slot, 1, 2).await.unwrap();
    present.assert_replays(&*store, "paid").await;
    absent.assert_replays(&*store, "done").await;
    // The slots stay where they are: nobody is asked any more.
    let asked = executions(&cluster.nodes()[2], "asking").await;
    present.assert_replays(&*store, "paid").await;
    assert_eq!(executions(&cluster.nodes()[2], "asking").await, asked);
    let findings = store.check().await.unwrap();
    assert!(!has(&findings, "has lost records") && !has(&findings, "has become the master"), "{findings:?}");
}

fn has(findings: &[Finding], text: &str) -> bool {
    findings.iter().any(|finding| finding.message.contains(text))
}

/// The rest of a scan in chunks that are as large as the nodes.
pub(crate) async fn rest(store: &Redis, mut ask: Scan, found: &mut HashSet<RecordKey>) {
    loop {
        let chunk = store.scan(&ask).await.unwrap();
        found.extend(chunk.records.iter().map(|scanned| scanned.rk));
        let Some(next) = chunk.next else { return };
        ask = ask.from(next);
    }
}

/// Records move from the master that the scan has not reached to the one that it has left.
async fn moving_scan() {
    let cluster = own(RedisKind::Redis, &[]).await;
    let store = store(&cluster.url());
    let mut order: Vec<usize> = (0..3).collect();
    order.sort_by_key(|place| cluster.nodes()[*place].address().to_string());
    let [first, .., last] = order[..] else { unreachable!("there are three masters") };
    let all: Vec<_> = (0..60).map(|n| Operation::new(&n.to_string())).collect();
    for operation in &all {
        operation.cycle(&*store).await;
    }
    let (moves, slot) = at(&cluster, last).await;
    let (stays_on_its_way, other_slot) = {
        let mut n = 0;
        loop {
            let operation = Operation::new(&format!("other-{n}"));
            let (found, place) = cluster.place_of(&operation.name()).await.unwrap();
            if place == last && found != slot {
                break (operation, found);
            }
            n += 1;
        }
    };
    moves.cycle(&*store).await;
    stays_on_its_way.cycle(&*store).await;
    for (slot, ends) in [(slot, true), (other_slot, false)] {
        let mut found = HashSet::new();
        let begun = store.scan(&Scan::new(1000)).await.unwrap();
        found.extend(begun.records.iter().map(|scanned| scanned.rk));
        cluster.begin_move(slot, last, first).await.unwrap();
        cluster.move_keys(slot, last, first).await.unwrap();
        if ends {
            cluster.end_move(slot, last, first).await.unwrap();
        }
        rest(&store, Scan::new(1000).from(begun.next.unwrap()), &mut found).await;
        let missing = all.iter().chain([&moves, &stays_on_its_way]);
        let missing: Vec<_> = missing.filter(|operation| !found.contains(&operation.0.record_key())).collect();
        assert!(missing.is_empty(), "{} are missing; the move has ended: {ends}", missing.len());
    }
}

/// A master is killed, and then all nodes but one.
async fn takeover(kind: RedisKind) {
    let cluster = own(kind, &["--cluster-node-timeout", "1000"]).await;
    let store = store(&cluster.url());
    let ((lost, _), (kept, _)) = (at(&cluster, 0).await, at(&cluster, 2).await);
    lost.cycle(&*store).await;
    kept.cycle(&*store).await;
    // A replica is a node of the cluster only after it has copied something.
    let replica = cluster.replicas()[0].address().to_string();
    until("the store knows the replica", || async { has(&store.check().await.unwrap(), &replica) }).await;
    cluster.masters()[0].kill();
    let next = Operation::new("after the failover");
    until("the replica has taken over", || async {
        lost.begin(&*store, SECOND).await.is_ok() && next.begin(&*store, FIRST).await.is_ok()
    })
    .await;
    until("the takeover is reported", || async {
        store.check().await.is_ok_and(|found| has(&found, "has become the master"))
    })
    .await;
    // Every answer about a record is a definite one, or says that nothing was done.
    cluster.replicas().iter().for_each(RedisServer::kill);
    cluster.masters()[1].kill();
    until("the rest of the cluster refuses", || async {
        let begun = Operation::new("refused").begin(&*store, FIRST).await;
        begun.is_err_and(|error| error.kind() == NotApplied)
    })
    .await;
    assert_refused(store.read(&lost.0.record_key()).await, NotApplied, "");
}

/// A master is paused. Its callers give up after the time that opening a connection takes, so none of them learns that
/// it cannot be reached.
async fn silent_master(kind: RedisKind) {
    let cluster = own(kind, &["--cluster-node-timeout", "1000"]).await;
    let store = store(&cluster.url());
    let (operation, _) = at(&cluster, 0).await;
    operation.cycle(&*store).await;
    cluster.masters()[0].pause().unwrap();
    let call = || with_timeout(Duration::from_secs(1), operation.begin(&*store, SECOND));
    until("a call finds the replica", || async {
        join_all((0..4).map(|_| call())).await.into_iter().any(|begun| begun.is_some_and(|begun| begun.is_ok()))
    })
    .await;
    cluster.masters()[0].resume().unwrap();
}

/// A master that is back within the node timeout stays a master, and has nothing.
async fn empty_restart() {
    let cluster = own(RedisKind::Redis, &[]).await;
    let store = store(&cluster.url());
    let (operation, _) = at(&cluster, 1).await;
    operation.cycle(&*store).await;
    assert!(!has(&store.check().await.unwrap(), "has lost records"));
    cluster.masters()[1].restart().await.unwrap();
    let node = format!("node {}: ", cluster.masters()[1].address());
    let reported = Mutex::default();
    until("the loss is reported", || async {
        *reported.lock() = store.check().await.unwrap();
        has(&reported.lock(), "has lost records")
    })
    .await;
    let reported: Vec<Finding> = reported.into_inner();
    let loss = reported.iter().find(|finding| finding.message.contains("has lost records")).unwrap();
    assert!(loss.message.starts_with(&node), "{loss:?}");
    assert_eq!(reported.iter().filter(|finding| finding.message.contains("has lost records")).count(), 1);
    assert!(!has(&store.check().await.unwrap(), "has lost records"), "it is reported once");
    operation.grant(&*store, SECOND).await;
}

async fn wrong_urls() {
    let (server, cluster) = (start(RedisKind::Redis, &[]).await, own(RedisKind::Redis, &[]).await);
    let alone = store(&format!("redis+cluster://{}", server.address()));
    assert_refused(Operation::new("one").begin(&*alone, FIRST).await, Unusable, "is redis://HOST");
    assert_refused(alone.check().await, Unusable, "is redis://HOST");
    let node = store(&format!("redis://{}", cluster.nodes()[0].address()));
    let findings = node.check().await.unwrap();
    let refusal = findings.iter().find(|finding| finding.severity == Severity::Refuse).expect("it is refused");
    assert!(refusal.message.contains("write redis+cluster://"), "{refusal:?}");
    let (elsewhere, _) = at(&cluster, 1).await;
    assert_refused(elsewhere.begin(&*node, FIRST).await, NotApplied, "redis+cluster://HOST");
    let nowhere = store("redis+cluster://127.0.0.1:1");
    assert_refused(Operation::new("one").begin(&*nowhere, FIRST).await, NotApplied, "cannot be reached");
}

/// Behind the refusal of `ASKING` comes a redirection to the old node, which would hide it.
async fn without_asking() {
    let cluster = own(RedisKind::Redis, &[]).await;
    let commands = "+set +get +getrange +exists +pexpiretime +pexpire +time +info +eval +evalsha +cluster|slots";
    for node in cluster.nodes() {
        let words = ["ACL", "SETUSER", "some", "reset", "on", ">secret", "~hx:*"];
        ask(node, &words.into_iter().chain(commands.split(' ')).collect::<Vec<_>>()).await;
    }
    let store = store(&cluster.url().replace("://", "://some:secret@"));
    let (operation, slot) = at(&cluster, 0).await;
    let rk = operation.0.record_key();
    store.read(&rk).await.unwrap();
    cluster.begin_move(slot, 0, 2).await.unwrap();
    assert_refused(operation.begin(&*store, FIRST).await, Unusable, "+asking");
    assert_refused(store.read(&rk).await, Unusable, "+asking");
}

/// Two nodes name each other for one slot.
async fn naming_each_other() {
    let cluster = own(RedisKind::Redis, &[]).await;
    let store = store(&cluster.url());
    let (operation, slot) = at(&cluster, 0).await;
    store.read(&operation.0.record_key()).await.unwrap();
    let other = ask(&cluster.nodes()[1], &["CLUSTER", "MYID"]).await.text();
    ask(&cluster.nodes()[0], &["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &other]).await;
    assert_refused(operation.begin(&*store, FIRST).await, NotApplied, "another node of the cluster has the key");
    assert_refused(store.read(&operation.0.record_key()).await, NotApplied, "another node of the cluster has the key");
}

async fn restricted_user(kind: RedisKind) {
    let cluster = RedisCluster::lent(RedisClusterOptions::new(kind)).await.unwrap();
    let commands = "+set +get +getrange +exists +pexpiretime +pexpire +time +info +eval +evalsha +scan \
                    +cluster|slots +cluster|nodes +asking";
    for node in cluster.nodes() {
        let mut words = vec!["ACL", "SETUSER", "some", "reset", "on", ">secret", "~hx:*"];
        words.extend(commands.split_whitespace());
        assert_eq!(ask(node, &words).await, RespValue::Status("OK".into()));
    }
    let store = store(&cluster.url().replace("://", "://some:secret@"));
    Operation::new("one").cycle(&*store).await;
    let findings = store.check().await.unwrap();
    assert!(!has(&findings, "hx:amnesia") && !has(&findings, "cannot be checked"), "{findings:?}");
    let mut found = HashSet::new();
    rest(&store, Scan::new(100), &mut found).await;
    assert_eq!(found.len(), 1);
    for node in cluster.nodes() {
        ask(node, &["ACL", "DELUSER", "some"]).await;
    }
}

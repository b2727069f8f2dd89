//! Two attempts race for each key of a cluster or behind sentinels, while something happens to the servers. Each effect
//! is counted by key.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use hapax_core::machine::{Begun, Completed, Grant};
use hapax_core::store::Finding;
use hapax_core::{ErrorKind, Inspect, Owner};
use hapax_stores::Redis;
use hapax_testkit::servers::{
    RedisCluster, RedisClusterOptions, RedisKind, RedisSentinelOptions, RedisSentinels, RedisServer, RespValue,
};
use libtest_mimic::Trial;
use parking_lot::Mutex;

use crate::sentinel::{is_master, is_replica};
use crate::support::{FIRST, Operation, SECOND, ask, info, store, test, until, with_timeout};

/// How many pairs of attempts run at once.
const WORKERS: usize = 16;

/// How many keys each worker uses at least.
const KEYS: usize = 20;

/// After this long an attempt takes a call for lost, as the engine does.
const CALL: Duration = Duration::from_secs(1);

pub(crate) fn tests() -> Vec<Trial> {
    let each = RedisKind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("no_key_has_two_effects_while_slots_move_and_scripts_vanish", name, move || moved_to_and_fro(kind)),
            test("no_key_has_two_effects_while_masters_hand_over", name, move || handed_over(kind)),
        ]
    });
    let redis = RedisKind::Redis.name();
    let once = [
        test("a_second_effect_after_the_death_of_a_master_is_a_reported_loss", redis, killed),
        test("a_second_effect_after_the_pause_of_a_master_is_a_reported_loss", redis, paused),
        test("a_second_effect_after_a_master_came_back_empty_is_a_reported_loss", redis, emptied),
        test("a_second_effect_after_the_loss_of_two_masters_is_a_reported_loss", redis, without_majority),
        test("no_key_has_two_effects_where_the_replica_of_a_dead_master_confirms", redis, killed_with_confirmation),
        test("no_key_has_two_effects_where_the_replica_confirms_behind_sentinels", redis, killed_behind_sentinels),
    ];
    each.chain(once).collect()
}

/// What became of the keys.
#[derive(Default)]
struct KeyedEffects {
    effects: Mutex<BTreeMap<String, u32>>,
    unknown: AtomicU32,
}

impl KeyedEffects {
    fn twice(&self) -> Vec<String> {
        let effects = self.effects.lock();
        effects.iter().filter(|(_, count)| **count > 1).map(|(key, _)| key.clone()).collect()
    }

    /// Every key has had its effect.
    fn assert_all(&self) {
        let effects = self.effects.lock();
        assert!(effects.len() >= WORKERS * KEYS, "{} keys", effects.len());
        assert!(effects.values().all(|count| *count > 0), "{effects:?}");
    }

    /// One attempt, until its outcome is known.
    async fn attempt(&self, store: &Redis, key: &str, owner: Owner) {
        let operation = Operation::new(key);
        loop {
            match with_timeout(CALL, operation.begin(store, owner)).await {
                Some(Ok(Begun::Granted(grant) | Begun::Mine(grant))) => {
                    *self.effects.lock().entry(key.into()).or_default() += 1;
                    return self.complete(store, operation, &grant).await;
                }
                Some(Ok(Begun::Replay(_))) => return,
                Some(Ok(Begun::Busy(_))) => {}
                Some(Ok(other)) => panic!("{key}: {other:?}"),
                Some(Err(error)) => self.count(error.kind()),
                None => self.count(ErrorKind::Unknown),
            }
            hapax_testkit::pause().await;
        }
    }

    async fn complete(&self, store: &Redis, operation: Operation, grant: &Grant) {
        loop {
            match with_timeout(CALL, operation.complete(store, grant, "done")).await {
                Some(Ok(Completed::Done | Completed::Already | Completed::Recreated | Completed::Lost(_))) => return,
                Some(Ok(other)) => panic!("{other:?}"),
                Some(Err(error)) => self.count(error.kind()),
                None => self.count(ErrorKind::Unknown),
            }
            hapax_testkit::pause().await;
        }
    }

    fn count(&self, kind: ErrorKind) {
        assert!([ErrorKind::Unknown, ErrorKind::NotApplied].contains(&kind), "{kind:?} is no passing failure");
        if kind == ErrorKind::Unknown {
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Lets attempts race until the events are over.
async fn race(store: &Arc<Redis>, events: impl Future<Output = ()>) -> KeyedEffects {
    let (effects, is_over) = (KeyedEffects::default(), AtomicBool::default());
    let (counted, over) = (&effects, &is_over);
    let workers = join_all((0..WORKERS).map(|worker| async move {
        let mut number = 0;
        while number < KEYS || !over.load(Ordering::Relaxed) {
            let key = format!("{worker}-{number}");
            join(counted.attempt(store, &key, FIRST), counted.attempt(store, &key, SECOND)).await;
            number += 1;
        }
    }));
    let events = async {
        events.await;
        is_over.store(true, Ordering::Relaxed);
    };
    join(workers, events).await;
    effects.assert_all();
    effects
}

async fn cluster(kind: RedisKind, node_timeout: &str) -> (RedisCluster, Arc<Redis>) {
    let options = RedisClusterOptions::new(kind).with_args(&["--cluster-node-timeout", node_timeout]);
    let cluster = RedisCluster::start(options).await.unwrap();
    let store = store(&cluster.url());
    (cluster, store)
}

async fn moved_to_and_fro(kind: RedisKind) {
    let (cluster, store) = cluster(kind, "60000").await;
    let effects = race(&store, async {
        for round in 0..2 {
            let (from, to) = if round == 0 { (0, 1) } else { (1, 0) };
            for slot in (0..5461).step_by(128) {
                cluster.begin_move(slot, from, to).await.unwrap();
                cluster.move_keys(slot, from, to).await.unwrap();
                cluster.end_move(slot, from, to).await.unwrap();
            }
            for node in cluster.masters() {
                ask(node, &["SCRIPT", "FLUSH"]).await;
            }
        }
    })
    .await;
    assert_eq!(effects.twice(), [""; 0]);
    let findings = store.check().await.unwrap();
    assert!(!lost(&findings), "{findings:?}");
}

async fn handed_over(kind: RedisKind) {
    let (cluster, store) = cluster(kind, "60000").await;
    let effects = race(&store, async {
        for (master, replica) in cluster.masters().iter().zip(cluster.replicas()) {
            assert_eq!(ask(replica, &["CLUSTER", "FAILOVER"]).await, RespValue::Status("OK".into()));
            until("the replica is the master", || async { info(replica, "role").await == "master" }).await;
            until("the master is a replica", || async { info(master, "role").await == "slave" }).await;
        }
    })
    .await;
    assert_eq!(effects.twice(), [""; 0]);
    assert_eq!(effects.unknown.load(Ordering::Relaxed), 0, "a master that hands over answers each call");
}

fn lost(findings: &[Finding]) -> bool {
    ["has lost records", "has become the master", "another process"]
        .iter()
        .any(|words| findings.iter().any(|finding| finding.message.contains(words)))
}

/// The master may have died with confirmed writes that its replica lacks, so a key may have had its effect twice. The
/// store must report the takeover, and only writes of one moment may be missing.
async fn assert_reported(store: &Redis, effects: &KeyedEffects) {
    until("the takeover is reported", || async { store.check().await.is_ok_and(|findings| lost(&findings)) }).await;
    let twice = effects.twice();
    println!("{} of {} keys had two effects", twice.len(), effects.effects.lock().len());
    // No more than were in flight at once.
    assert!(twice.len() <= WORKERS, "{twice:?}");
}

async fn killed() {
    let (cluster, store) = cluster(RedisKind::Redis, "1000").await;
    let replica = &cluster.replicas()[0];
    let address = replica.address().to_string();
    let effects = race(&store, async {
        knows(&store, &address).await;
        cluster.masters()[0].kill();
        until("the replica is the master", || async { info(replica, "role").await == "master" }).await;
    })
    .await;
    assert_reported(&store, &effects).await;
}

/// As [`killed`], and each write waits for the replica. The old master comes back as the replica of the new one.
async fn killed_with_confirmation() {
    let options = RedisClusterOptions::new(RedisKind::Redis).with_args(&["--cluster-node-timeout", "1000"]);
    let cluster = RedisCluster::start(options).await.unwrap();
    let store = store(&format!("{}?wait=1:200", cluster.url()));
    let (master, replica) = (&cluster.masters()[0], &cluster.replicas()[0]);
    let address = replica.address().to_string();
    let effects = race(&store, async {
        knows(&store, &address).await;
        master.kill();
        until("the replica is the master", || async { info(replica, "role").await == "master" }).await;
        master.restart().await.unwrap();
    })
    .await;
    assert_eq!(effects.twice(), [""; 0], "a confirmed record is not lost");
}

/// As [`killed_with_confirmation`], behind sentinels. The replica is stopped for a while before the master dies.
async fn killed_behind_sentinels() {
    let options = RedisSentinelOptions::new(RedisKind::Redis).down_after(1000);
    let sentinels = RedisSentinels::start(options.with_args(&["--min-replicas-to-write", "0"])).await.unwrap();
    let [old, new] = sentinels.servers() else { unreachable!("there are two servers") };
    let store = store(&format!("{}?min-replicas=unchecked&wait=1:200", sentinels.url()));
    let effects = race(&store, async {
        new.pause().unwrap();
        let probe = Operation::new("probe");
        let begun = probe.begin(&*store, FIRST).await;
        assert!(begun.is_err_and(|error| error.kind() == ErrorKind::Unknown), "no replica has it");
        old.kill();
        new.resume().unwrap();
        until("the replica is the master", || is_master(new)).await;
        old.restart().await.unwrap();
        until("the old master is a replica", || is_replica(old)).await;
    })
    .await;
    assert_eq!(effects.twice(), [""; 0], "a confirmed record is not lost");
}

/// The master is back within the node timeout, and has nothing.
async fn emptied() {
    let (cluster, store) = cluster(RedisKind::Redis, "60000").await;
    store.check().await.unwrap();
    let effects = race(&store, async { cluster.masters()[0].restart().await.unwrap() }).await;
    assert_reported(&store, &effects).await;
}

/// Two of three masters die, so that no replica is elected, and come back without their data.
async fn without_majority() {
    let (cluster, store) = cluster(RedisKind::Redis, "1000").await;
    store.check().await.unwrap();
    let effects = race(&store, async {
        cluster.masters()[1..].iter().for_each(RedisServer::kill);
        until("the cluster refuses within the time of a call", || async {
            let begun = with_timeout(CALL, Operation::new("probe").begin(&*store, FIRST)).await;
            begun.is_some_and(|begun| begun.is_err_and(|error| error.kind() == ErrorKind::NotApplied))
        })
        .await;
        for master in &cluster.masters()[1..] {
            master.restart().await.unwrap();
        }
    })
    .await;
    assert_reported(&store, &effects).await;
}

/// The store knows this replica, so it will notice that it takes over.
async fn knows(store: &Redis, address: &str) {
    let named = |findings: &[Finding]| findings.iter().any(|finding| finding.message.contains(address));
    until("the store knows the replica", || async { store.check().await.is_ok_and(|findings| named(&findings)) }).await;
}

/// The paused master wakes up when its replica has taken over. What was sent to it meanwhile must have no effect.
async fn paused() {
    let (cluster, store) = cluster(RedisKind::Redis, "1000").await;
    let (master, replica) = (&cluster.masters()[0], &cluster.replicas()[0]);
    let address = replica.address().to_string();
    let effects = race(&store, async {
        knows(&store, &address).await;
        master.pause().unwrap();
        until("the replica is the master", || async { info(replica, "role").await == "master" }).await;
        master.resume().unwrap();
        until("the master is a replica", || async { info(master, "role").await == "slave" }).await;
    })
    .await;
    assert_reported(&store, &effects).await;
}

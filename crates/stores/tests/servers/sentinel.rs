//! Masters whose sentinels replace them.

use std::collections::HashSet;

use futures_util::future::join;
use hapax_core::ErrorKind::{NotApplied, Unknown, Unusable};
use hapax_core::Inspect;
use hapax_core::machine::{Begun, Completed};
use hapax_core::store::{Finding, Scan, Severity};
use hapax_testkit::servers::{RedisKind, RedisSentinelOptions, RedisSentinels, RedisServer, RespValue};
use libtest_mimic::Trial;

use crate::cluster::rest;
use crate::refusals::assert_refused;
use crate::support::{FIRST, Operation, SECOND, ask, config, info, start, store, test, until, write_secret};

pub(crate) fn tests() -> Vec<Trial> {
    let each = RedisKind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("a_store_follows_the_sentinels_to_a_new_master", name, move || failover(kind)),
            test("a_store_leaves_a_killed_master_and_never_returns_to_it", name, move || killed(kind)),
            test("restricted_users_of_a_master_and_its_sentinels_need_one_more_command_each", name, move || {
                restricted_users(kind)
            }),
        ]
    });
    let redis = RedisKind::Redis.name();
    let once = [
        test("servers_that_need_no_replica_are_refused_behind_sentinels", redis, lone_master),
        test("a_master_that_has_lost_its_replicas_is_asked_for_again", redis, cut_off),
        test("sentinels_that_do_not_agree_name_no_master", redis, no_majority),
        test("a_replica_that_sentinels_name_is_not_used", redis, named_replica),
        test("a_write_on_a_master_that_was_replaced_meanwhile_is_unknown", redis, paused),
        test("a_url_with_the_wrong_sentinels_names_the_remedy", redis, wrong_urls),
    ];
    each.chain(once).collect()
}

async fn started(options: RedisSentinelOptions) -> RedisSentinels {
    RedisSentinels::start(options).await.expect("the servers start")
}

fn refusals(findings: Vec<Finding>) -> Vec<Finding> {
    findings.into_iter().filter(|finding| finding.severity == Severity::Refuse).collect()
}

/// Sentinels close all connections of a server that they make a replica, also that of an operator.
pub(crate) async fn is_replica(server: &RedisServer) -> bool {
    server.command(&["INFO", "replication"]).await.is_ok_and(|info| info.text().contains("role:slave"))
}

/// As [`is_replica`]: they also close the connections of a server that they make a master.
pub(crate) async fn is_master(server: &RedisServer) -> bool {
    server.command(&["INFO", "replication"]).await.is_ok_and(|info| info.text().contains("role:master"))
}

/// How many records there are when the master is replaced. A scan has found a few of them by then.
const RECORDS: usize = 60;

/// The switch is made while nobody calls: the check notices it. A scan goes on at the new master, whose keys are in
/// another order.
async fn failover(kind: RedisKind) {
    let sentinels = started(RedisSentinelOptions::new(kind)).await;
    let [old, new] = sentinels.servers() else { unreachable!("there are two servers") };
    let store = store(&sentinels.url());
    let all: Vec<_> = (0..RECORDS).map(|n| Operation::new(&n.to_string())).collect();
    for operation in &all {
        operation.cycle(&*store).await;
    }
    assert_eq!(refusals(store.check().await.unwrap()), []);
    let begun = store.scan(&Scan::new(5)).await.unwrap();
    let mut found: HashSet<_> = begun.records.iter().map(|scanned| scanned.rk).collect();
    assert!(found.len() < RECORDS, "the scan has not ended");
    // With the mark of the server.
    let keys = format!("keys={},", RECORDS + 1);
    until("the replica has the records", || async { info(new, "db0").await.starts_with(&keys) }).await;
    sentinels.fail_over().await.unwrap();
    until("the old master is a replica", || is_replica(old)).await;
    until("the check finds the new master", || async {
        let checked = store.check().await;
        checked.is_ok_and(|found| found.iter().any(|finding| finding.message.contains("another process")))
    })
    .await;
    rest(&store, Scan::new(5).from(begun.next.unwrap()), &mut found).await;
    assert_eq!(found.len(), RECORDS);
    all[0].assert_replays(&*store, "done").await;
    until("the new master takes writes", || async { Operation::new("next").begin(&*store, FIRST).await.is_ok() }).await;
    assert!(info(new, "cmdstat_set").await.starts_with("calls="));
}

/// How many keys a server has of these.
async fn keys_at(server: &RedisServer, operation: Operation) -> RespValue {
    ask(server, &[b"EXISTS".as_slice(), &operation.name()]).await
}

async fn killed(kind: RedisKind) {
    let options = RedisSentinelOptions::new(kind).down_after(500).with_args(&["--min-replicas-to-write", "0"]);
    let sentinels = started(options).await;
    let [old, new] = sentinels.servers() else { unreachable!("there are two servers") };
    let url = format!("{}?min-replicas=unchecked", sentinels.url());
    let store = store(&url);
    Operation::new("one").cycle(&*store).await;
    old.kill();
    until("the new master takes writes", || async { Operation::new("two").begin(&*store, FIRST).await.is_ok() }).await;
    assert!(is_master(new).await);
    // It begins as a master and takes writes until the sentinels have told it. One of them still names it, as one may
    // that was down while the others agreed.
    let [behind, ..] = sentinels.sentinels() else { unreachable!("there are three sentinels") };
    ask(behind, &["SENTINEL", "REMOVE", "main"]).await;
    old.restart().await.unwrap();
    let port = old.address().port().to_string();
    ask(behind, &["SENTINEL", "MONITOR", "main", "127.0.0.1", &port, "3"]).await;
    let fresh = crate::support::store(&url);
    for (operation, store) in [(Operation::new("three"), &store), (Operation::new("four"), &fresh)] {
        until("the record is made", || async { operation.begin(&**store, FIRST).await.is_ok() }).await;
        assert_eq!(keys_at(new, operation).await, RespValue::Integer(1));
    }
    until("the old master is a replica", || is_replica(old)).await;
    until("the record is still there", || async {
        matches!(Operation::new("four").begin(&*fresh, FIRST).await, Ok(Begun::Mine(_)))
    })
    .await;
}

/// A server that the sentinels name is used only if it says itself that it is a master.
async fn named_replica() {
    let sentinels = started(RedisSentinelOptions::new(RedisKind::Redis)).await;
    let replica = &sentinels.servers()[1];
    name_master(&sentinels, replica).await;
    let store = store(&sentinels.url());
    assert_refused(Operation::new("one").begin(&*store, FIRST).await, NotApplied, "is no master yet");
}

/// Makes all sentinels name this server.
async fn name_master(sentinels: &RedisSentinels, server: &RedisServer) {
    for sentinel in sentinels.sentinels() {
        ask(sentinel, &["SENTINEL", "REMOVE", "main"]).await;
    }
    let port = server.address().port().to_string();
    for sentinel in sentinels.sentinels() {
        ask(sentinel, &["SENTINEL", "MONITOR", "main", "127.0.0.1", &port, "2"]).await;
    }
}

/// A paused master carries out what waits in its socket when it goes on. The store knows by then that another server
/// has taken its place.
async fn paused() {
    let options = RedisSentinelOptions::new(RedisKind::Redis).with_args(&["--min-replicas-to-write", "0"]);
    let sentinels = started(options).await;
    let [old, new] = sentinels.servers() else { unreachable!("there are two servers") };
    let store = store(&format!("{}?min-replicas=unchecked", sentinels.url()));
    // Its scripts are known there, so that no call is sent again.
    Operation::new("first").cycle(&*store).await;
    let (held, late) = (Operation::new("held"), Operation::new("late"));
    let grant = held.grant(&*store, FIRST).await;
    until("the replica has the record", || async { keys_at(new, held).await == RespValue::Integer(1) }).await;
    old.pause().unwrap();
    let switched = async {
        ask(new, &["REPLICAOF", "NO", "ONE"]).await;
        name_master(&sentinels, new).await;
        until("the check finds the new master", || async {
            let checked = store.check().await;
            checked.is_ok_and(|found| found.iter().any(|finding| finding.message.contains("another process")))
        })
        .await;
        old.resume().unwrap();
    };
    let calls = join(late.begin(&*store, FIRST), held.complete(&*store, &grant, "paid"));
    let ((begun, completed), ()) = join(calls, switched).await;
    assert_refused(begun, Unknown, "named another master meanwhile");
    assert_refused(completed, Unknown, "named another master meanwhile");
    assert_eq!(keys_at(old, late).await, RespValue::Integer(1), "the old master has carried it out");
    late.grant(&*store, SECOND).await;
    assert!(matches!(held.complete(&*store, &grant, "paid").await, Ok(Completed::Done)));
}

/// Every server is asked, because each may become the master.
async fn lone_master() {
    let options = RedisSentinelOptions::new(RedisKind::Redis).with_args(&["--min-replicas-to-write", "0"]);
    let sentinels = started(options).await;
    let [master, replica] = sentinels.servers() else { unreachable!("there are two servers") };
    let strict = store(&sentinels.url());
    let refused = refusals(strict.check().await.unwrap());
    assert!(refused.iter().all(|one| one.message.contains("min-replicas-to-write 1")), "{refused:?}");
    let of_replica = format!("replica {}: ", replica.address());
    let named = |found: &[Finding]| found.iter().map(|one| one.message.starts_with(&of_replica)).collect::<Vec<_>>();
    assert_eq!(named(&refused), [false, true]);
    config(master, "min-replicas-to-write", "1").await;
    assert_eq!(named(&refusals(strict.check().await.unwrap())), [true]);
    config(replica, "min-replicas-to-write", "1").await;
    assert_eq!(refusals(strict.check().await.unwrap()), []);
    config(replica, "maxmemory-policy", "allkeys-lru").await;
    assert_eq!(named(&refusals(strict.check().await.unwrap())), [true]);
    config(replica, "maxmemory-policy", "noeviction").await;
    config(replica, "min-replicas-to-write", "0").await;
    let accepted = store(&format!("{}?min-replicas=unchecked", sentinels.url()));
    assert_eq!(refusals(accepted.check().await.unwrap()), []);
}

/// The old master is not told that the sentinels have named another one, and its connection stands. It refuses writes,
/// because its replica has left it.
async fn cut_off() {
    let sentinels = started(RedisSentinelOptions::new(RedisKind::Redis)).await;
    let [old, new] = sentinels.servers() else { unreachable!("there are two servers") };
    let store = store(&format!("{}?min-replicas=unchecked", sentinels.url()));
    Operation::new("one").cycle(&*store).await;
    ask(new, &["REPLICAOF", "NO", "ONE"]).await;
    config(new, "min-replicas-to-write", "0").await;
    name_master(&sentinels, new).await;
    until("the store finds the new master", || async { Operation::new("two").begin(&*store, FIRST).await.is_ok() })
        .await;
    assert_eq!(info(old, "role").await, "master");
    assert_eq!(keys_at(old, Operation::new("two")).await, RespValue::Integer(0));
}

async fn no_majority() {
    let sentinels = started(RedisSentinelOptions::new(RedisKind::Redis)).await;
    let operation = Operation::new("one");
    let unknown = store(&sentinels.url().replace("/main", "/other"));
    assert_refused(operation.begin(&*unknown, FIRST).await, Unusable, "no master of the name");
    let connected = store(&sentinels.url());
    operation.cycle(&*connected).await;
    let [first, second, _] = sentinels.sentinels() else { unreachable!("there are three sentinels") };
    first.kill();
    let down = format!("sentinel {}: ", first.address());
    let has = |findings: &[Finding], text: &str| findings.iter().any(|finding| finding.message.contains(text));
    let findings = connected.check().await.unwrap();
    assert!(has(&findings, &down) && !has(&findings, "would go unnoticed"), "{findings:?}");
    operation.assert_replays(&*store(&sentinels.url()), "done").await;
    second.kill();
    let without = store(&sentinels.url());
    assert_refused(Operation::new("two").begin(&*without, FIRST).await, NotApplied, "do not agree");
    assert_refused(without.check().await, NotApplied, "do not agree");
    // A connection that stands is still used.
    operation.assert_replays(&*connected, "done").await;
    let findings = connected.check().await.unwrap();
    assert!(has(&findings, "a new master would go unnoticed"), "{findings:?}");
}

async fn wrong_urls() {
    let server = start(RedisKind::Redis, &[]).await;
    let begun = async |url: &str| Operation::new("one").begin(&*store(url), FIRST).await;
    let no_sentinel = begun(&format!("redis+sentinel://{}/main", server.address())).await;
    assert_refused(no_sentinel, Unusable, "it is no sentinel");
    let options = RedisSentinelOptions::new(RedisKind::Redis).with_passwords("one-password", "other-password");
    let sentinels = started(options).await;
    assert_refused(begun(&sentinels.url()).await, Unusable, "name its file by ?sentinel-password-file=");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    let with_file = format!("{}?sentinel-password-file={}", sentinels.url(), file.display());
    write_secret(&file, "one-password");
    assert_refused(begun(&with_file).await, Unusable, "it rejects sentinel-user");
    write_secret(&file, "other-password");
    assert!(begun(&with_file).await.is_ok());
}

async fn restricted_users(kind: RedisKind) {
    let sentinels = started(RedisSentinelOptions::new(kind)).await;
    let of_servers = "~hx:* +set +get +getrange +exists +pexpiretime +pexpire +time +info +eval +evalsha";
    let of_sentinels = "+sentinel|get-master-addr-by-name";
    let allow = async |servers: &[RedisServer], permissions: &str| {
        for server in servers {
            let words = ["ACL", "SETUSER", "some", "reset", "on", ">secret"];
            let words: Vec<&str> = words.into_iter().chain(permissions.split(' ')).collect();
            ask(server, &words).await;
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    write_secret(&file, "secret");
    let url = sentinels.url().replace("://", "://some:secret@");
    let url = format!("{url}?sentinel-user=some&sentinel-password-file={}", file.display());
    let begun = async || Operation::new("one").begin(&*store(&url), FIRST).await;
    allow(sentinels.sentinels(), "+ping").await;
    allow(sentinels.servers(), &format!("{of_servers} +role")).await;
    assert_refused(begun().await, Unusable, of_sentinels);
    allow(sentinels.sentinels(), of_sentinels).await;
    allow(sentinels.servers(), of_servers).await;
    assert_refused(begun().await, Unusable, "behind sentinels +role");
    allow(sentinels.servers(), &format!("{of_servers} +role")).await;
    Operation::new("one").cycle(&*store(&url)).await;
    assert_eq!(refusals(store(&url).check().await.unwrap()), []);
}

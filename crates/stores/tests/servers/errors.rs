//! Every error that a test can make a server return, and the records after it.

use std::fs;

use hapax_core::ErrorKind::{Damaged, Full, NotApplied, Unknown, Unusable};
use hapax_core::machine::{Begun, Claim, Renewed, Settled};
use hapax_core::store::Protocol;
use hapax_core::{Inspect, Store};
use hapax_testkit::proxy::{CutPoint, NetworkFault, Proxy};
use hapax_testkit::servers::{RedisKind, RedisServer, RedisServerOptions, RespValue};
use libtest_mimic::Trial;

use crate::refusals::{RefusalCheck, assert_refused};
use crate::support::{
    DAY, FIRST, Operation, SECOND, ask, config, expect_error, info, start, store, store_behind_proxy, test, until,
};

pub(crate) fn tests() -> Vec<Trial> {
    let each = RedisKind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("a_replica_refuses", name, move || replica(kind)),
            test("a_replica_without_its_primary_refuses", name, move || replica_without_primary(kind)),
            test("a_server_without_its_replicas_refuses", name, move || too_few_replicas(kind)),
            test("a_server_that_cannot_save_refuses", name, move || cannot_save(kind)),
            test("a_replica_that_cannot_save_returns_no_record", name, move || replica_that_cannot_save(kind)),
            test("a_full_server_refuses_only_begins", name, move || full(kind)),
            test("a_server_busy_with_a_script_refuses", name, move || busy(kind)),
            test("a_server_that_loads_its_data_refuses", name, move || loading(kind)),
            test("a_node_of_a_cluster_refuses", name, move || cluster(kind)),
            test("a_renamed_command_leaves_the_outcome_unknown", name, move || renamed(kind)),
        ]
    });
    let redis = RedisKind::Redis.name();
    let once = [
        test("a_missing_or_wrong_password_is_refused", redis, password),
        test("a_key_of_another_type_is_damaged", redis, wrong_type),
        test("a_server_that_is_down_refuses", redis, down),
        test("a_connection_lost_during_a_call_leaves_the_outcome_unknown", redis, lost_connection),
    ];
    each.chain(once).collect()
}

async fn prepare(server: &RedisServer) -> RefusalCheck<'_> {
    RefusalCheck::prepare(server, store(&server.url())).await
}

async fn replica(kind: RedisKind) {
    let server = start(kind, &[]).await;
    let check = prepare(&server).await;
    ask(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    check.assert_refuses(NotApplied, "the server is a replica; use the URL of the primary").await;
    ask(&server, &["REPLICAOF", "NO", "ONE"]).await;
    check.assert_recovers().await;
}

/// The replica is writable, so that only the lost primary can be the reason for a refusal.
async fn replica_without_primary(kind: RedisKind) {
    let server = start(kind, &["--replica-serve-stale-data", "no", "--replica-read-only", "no"]).await;
    let check = prepare(&server).await;
    ask(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    check.assert_refuses(NotApplied, "the server is a replica that has lost its primary").await;
    ask(&server, &["REPLICAOF", "NO", "ONE"]).await;
    check.assert_recovers().await;
}

async fn too_few_replicas(kind: RedisKind) {
    let server = start(kind, &[]).await;
    let check = prepare(&server).await;
    config(&server, "min-replicas-to-write", "1").await;
    check.assert_refuses_writes(Full, "fewer replicas than it demands").await;
    let findings = store(&server.url()).check().await.unwrap();
    assert!(findings.iter().any(|finding| finding.message.contains("none is connected and current")), "{findings:?}");
    config(&server, "min-replicas-to-write", "0").await;
    check.assert_recovers().await;
}

async fn cannot_save(kind: RedisKind) {
    let server = start(kind, &["--save", "3600 1"]).await;
    let check = prepare(&server).await;
    break_saving(&server).await;
    check.assert_refuses_writes(Full, "cannot write to its disk").await;
    let findings = store(&server.url()).check().await.unwrap();
    assert!(findings.iter().any(|finding| finding.message.contains("disk")), "{findings:?}");
    config(&server, "stop-writes-on-bgsave-error", "no").await;
    check.assert_recovers().await;
}

async fn break_saving(server: &RedisServer) {
    // A directory with the name of the snapshot makes each save fail.
    fs::create_dir_all(server.data_folder().join("dump.rdb/full")).unwrap();
    ask(server, &["BGSAVE"]).await;
    until("a save fails", || async { info(server, "rdb_last_bgsave_status").await == "err" }).await;
}

/// Begins are refused because of the disk, and reads are refused because a replica's data may be old.
async fn replica_that_cannot_save(kind: RedisKind) {
    let server = start(kind, &["--save", "3600 1"]).await;
    let (store, done) = (store(&server.url()), Operation::new("done"));
    done.cycle(&*store).await;
    break_saving(&server).await;
    done.assert_replays(&*store, "done").await;
    ask(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    assert_refused(done.begin(&*store, FIRST).await, NotApplied, "the server is a replica; use the URL of the primary");
    ask(&server, &["REPLICAOF", "NO", "ONE"]).await;
    done.assert_replays(&*store, "done").await;
}

async fn full(kind: RedisKind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let (in_progress, done, absent) = (Operation::new("in progress"), Operation::new("done"), Operation::new("absent"));
    let grant = in_progress.grant(&*store, FIRST).await;
    let left = Operation::new("left").grant(&*store, FIRST).await;
    let freed = Operation::new("freed").grant(&*store, FIRST).await;
    done.cycle(&*store).await;
    config(&server, "maxmemory", "1").await;
    assert_refused(absent.begin(&*store, FIRST).await, Full, "memory is full");
    assert_eq!(ask(&server, &[b"EXISTS", &absent.name()[..]]).await, RespValue::Integer(0));
    done.assert_replays(&*store, "done").await;
    let busy = in_progress.begin(&*store, SECOND).await.unwrap();
    assert!(matches!(busy, Begun::Busy(_)), "{busy:?}");
    assert_eq!(store.renew(&grant.rk, &Claim::from(&grant)).await.unwrap(), Renewed::Yes);
    let protocol = Protocol::over(&*store);
    assert_eq!(protocol.abandon(&left.rk, &Claim::from(&left)).await.unwrap(), Settled::Yes);
    assert_eq!(protocol.release(&freed.rk, &Claim::from(&freed), DAY).await.unwrap(), Settled::Yes);
    in_progress.complete(&*store, &grant, "done").await.unwrap();
    in_progress.assert_replays(&*store, "done").await;
    config(&server, "maxmemory", "0").await;
    absent.cycle(&*store).await;
}

async fn busy(kind: RedisKind) {
    let server = start(kind, &["--lua-time-limit", "5"]).await;
    let check = prepare(&server).await;
    let looping = async {
        let ended = server.command(&["EVAL", "while true do end", "0"]).await.unwrap();
        assert!(matches!(ended, RespValue::Error(_)), "{ended:?}");
    };
    let meanwhile = async {
        until("the server reports the script", || async {
            matches!(server.command(&["PING"]).await.unwrap(), RespValue::Error(error) if error.starts_with("BUSY"))
        })
        .await;
        check.assert_refuses(NotApplied, "a long-running script blocks the server").await;
        ask(&server, &["SCRIPT", "KILL"]).await;
    };
    tokio::join!(looping, meanwhile);
    check.assert_recovers().await;
}

async fn loading(kind: RedisKind) {
    // While it loads, the server handles clients once a kilobyte, and each key takes some milliseconds to load.
    let slow = ["--loading-process-events-interval-bytes", "1024", "--key-load-delay", "4000"];
    let server = start(kind, &slow).await;
    let check = prepare(&server).await;
    let filler = "for i = 1, 400 do redis.call('SET', 'filler' .. i, string.rep(tostring(i), 1000)) end";
    ask(&server, &["EVAL", filler, "0"]).await;
    ask(&server, &["SAVE"]).await;
    let refusals = async {
        until("the server loads", || async {
            matches!(server.command(&["GET", "x"]).await, Ok(RespValue::Error(error)) if error.starts_with("LOADING"))
        })
        .await;
        // A new store: the old store's connection broke when the server was killed.
        check.assert_refuses_store(&*store(&server.url()), NotApplied, "the server is still loading its data").await;
    };
    let (restarted, ()) = tokio::join!(server.restart(), refusals);
    restarted.unwrap();
    use_broken_connection(check.store()).await;
    check.assert_recovers().await;
}

/// Two nodes of a cluster, of which the other one owns the operation's slot.
async fn cluster(kind: RedisKind) {
    // Without full coverage a node serves its own slots although the others have no node.
    let cluster = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"];
    let (node, other) = (start(kind, &cluster).await, start(kind, &cluster).await);
    let store = store(&node.url());
    let operation = Operation::new("absent");
    assert_refused(operation.begin(&*store, FIRST).await, NotApplied, "ClusterDown");

    let (mine, theirs) =
        (ask(&node, &["CLUSTER", "MYID"]).await.text(), ask(&other, &["CLUSTER", "MYID"]).await.text());
    let port = other.address().port().to_string();
    ask(&node, &["CLUSTER", "MEET", "127.0.0.1", &port]).await;
    let met = || async { ask(&node, &["CLUSTER", "NODES"]).await.text().contains(&theirs) };
    until("the nodes know each other", met).await;
    let slot = ask(&node, &[b"CLUSTER".as_slice(), b"KEYSLOT", &operation.name()]).await.text();
    ask(&node, &["CLUSTER", "SETSLOT", &slot, "NODE", &theirs]).await;
    // The node redirects only after it considers the cluster complete.
    let moved = || async { format!("{:?}", expect_error(operation.begin(&*store, FIRST).await)).contains("Moved") };
    until("the slot has moved", moved).await;
    assert_refused(operation.begin(&*store, FIRST).await, NotApplied, "redis+cluster://HOST");
    assert_refused(store.read(&operation.0.record_key()).await, NotApplied, "redis+cluster://HOST");

    ask(&node, &["CLUSTER", "SETSLOT", &slot, "NODE", &mine]).await;
    ask(&node, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &theirs]).await;
    assert_refused(operation.begin(&*store, FIRST).await, NotApplied, "Ask");
    assert_eq!(ask(&node, &["DBSIZE"]).await, RespValue::Integer(0));
    assert_eq!(ask(&other, &["DBSIZE"]).await, RespValue::Integer(0));
}

async fn renamed(kind: RedisKind) {
    let server = start(kind, &["--rename-command", "EVALSHA", "HIDDEN"]).await;
    let store = store(&server.url());
    let operation = Operation::new("in progress");
    let grant = operation.grant(&*store, FIRST).await;
    let before = operation.stored_value(&server).await;
    // The server's error repeats the raw bytes of the call, which the driver cannot parse.
    assert_refused(operation.complete(&*store, &grant, "done").await, Unknown, "it may lack SET, EVAL or EVALSHA");
    assert_eq!(operation.stored_value(&server).await, before);
}

async fn password() {
    let server = RedisServer::start(RedisServerOptions::new(RedisKind::Redis).with_password("open")).await.unwrap();
    let check = prepare(&server).await;
    let address = server.address();
    let missing = "the server asks for a password";
    for url in [format!("redis://{address}"), format!("redis://{address}/1")] {
        check.assert_refuses_store(&*store(&url), Unusable, missing).await;
    }
    let wrong = "rejects this user or password";
    for user in ["redis://:wrong@", "redis://default:wrong@", "redis://nobody:open@"] {
        check.assert_refuses_store(&*store(&format!("{user}{address}")), Unusable, wrong).await;
    }
    check.assert_recovers().await;
}

async fn wrong_type() {
    let server = start(RedisKind::Redis, &[]).await;
    let check = prepare(&server).await;
    for operation in check.operations() {
        ask(&server, &[b"DEL", &operation.name()[..]]).await;
        ask(&server, &[b"RPUSH", &operation.name()[..], b"one"]).await;
    }
    // Twice: the first round must not have repaired a key by overwriting it.
    for _ in 0..2 {
        check.assert_refuses(Damaged, "another type").await;
    }
    for operation in check.operations() {
        assert_eq!(ask(&server, &[b"LLEN", &operation.name()[..]]).await, RespValue::Integer(1));
    }
}

async fn down() {
    let server = start(RedisKind::Redis, &["--appendonly", "yes", "--appendfsync", "always"]).await;
    let check = prepare(&server).await;
    let socket = format!("unix://{}", server.socket_path().display());
    server.kill();
    use_broken_connection(check.store()).await;
    check.assert_refuses(NotApplied, "cannot be reached").await;
    check.assert_refuses_store(&*store(&socket), NotApplied, "cannot be reached").await;
    check.assert_refuses_store(&*store("redis://127.0.0.1:1"), NotApplied, "cannot be reached").await;
    server.restart().await.unwrap();
    check.assert_recovers().await;
}

/// The first call after a connection broke may fail, with its outcome unknown.
async fn use_broken_connection(store: &dyn Store) {
    if let Err(error) = store.read(&Operation::new("any").0.record_key()).await {
        assert!(matches!(error.kind(), Unknown | NotApplied), "{error:?}");
    }
}

/// The client cannot know whether the call reached the server.
async fn lost_connection() {
    let server = start(RedisKind::Redis, &[]).await;
    let (proxy, store) = store_behind_proxy(&server).await;
    for (cut_point, is_applied) in [(CutPoint::Unsent, false), (CutPoint::Sent, true), (CutPoint::Answered, true)] {
        let operation = Operation::new(&format!("{cut_point:?}"));
        // Connect first, so that the cut hits the call and not the handshake.
        store.read(&operation.0.record_key()).await.unwrap();
        cut(&proxy, cut_point, "SET");
        assert_unknown(operation.begin(&*store, FIRST).await);
        wait_for_record(&server, operation, is_applied).await;
        let grant = operation.grant(&*store, FIRST).await;

        cut(&proxy, cut_point, "EVALSHA");
        let before = operation.stored_value(&server).await;
        assert_unknown(operation.complete(&*store, &grant, "done").await);
        if is_applied {
            until("the server has applied the call", || async { operation.stored_value(&server).await != before })
                .await;
        } else {
            assert_eq!(operation.stored_value(&server).await, before);
        }
        operation.complete(&*store, &grant, "done").await.unwrap();
        operation.assert_replays(&*store, "done").await;
    }
    assert_eq!(proxy.counts().cuts, 6);
}

fn cut(proxy: &Proxy, cut_point: CutPoint, command: &str) {
    proxy.inject(NetworkFault::cut(cut_point, format!("{command}\r\n")).times(1));
}

fn assert_unknown<T: std::fmt::Debug>(result: hapax_core::Result<T>) {
    assert_eq!(expect_error(result).kind(), Unknown);
}

async fn wait_for_record(server: &RedisServer, operation: Operation, is_applied: bool) {
    let name = operation.name();
    let exists = || async { ask(server, &[b"EXISTS", &name[..]]).await == RespValue::Integer(1) };
    if is_applied {
        until("the server has applied the call", exists).await;
    } else {
        assert!(!exists().await);
    }
}

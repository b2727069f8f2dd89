//! Every error that a server can be made to give, and what it leaves behind.

use std::fs;

use hapax_core::ErrorKind::{Damaged, Full, NotApplied, Unknown, Unusable};
use hapax_core::machine::Begun;
use hapax_core::{Inspect, Store};
use hapax_testkit::proxy::{Fault, Moment, Proxy};
use hapax_testkit::servers::{Kind, Options, RedisServer, Reply};
use libtest_mimic::Trial;

use crate::plight::{Plight, refused};
use crate::world::{FIRST, Operation, SECOND, ask, behind, config, failure, info, start, store, test, until};

pub(crate) fn tests() -> Vec<Trial> {
    let each = Kind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("a_replica_refuses", name, move || replica(kind)),
            test("a_replica_that_lost_its_primary_refuses", name, move || orphan(kind)),
            test("a_server_without_its_replicas_refuses", name, move || too_few_replicas(kind)),
            test("a_server_that_cannot_save_refuses", name, move || cannot_save(kind)),
            test("a_replica_that_cannot_save_shows_nothing", name, move || replica_that_cannot_save(kind)),
            test("a_full_server_refuses_begins_alone", name, move || full(kind)),
            test("a_server_busy_with_a_script_refuses", name, move || busy(kind)),
            test("a_server_that_reads_its_data_refuses", name, move || loading(kind)),
            test("a_node_of_a_cluster_refuses", name, move || cluster(kind)),
            test("a_renamed_command_is_missed", name, move || renamed(kind)),
        ]
    });
    let redis = Kind::Redis.name();
    let once = [
        test("a_password_is_asked_for", redis, password),
        test("a_key_of_another_type_is_damaged", redis, wrong_type),
        test("a_server_that_is_down_refuses", redis, down),
        test("a_connection_lost_under_way_leaves_it_unknown", redis, lost),
    ];
    each.chain(once).collect()
}

async fn plight(server: &RedisServer) -> Plight<'_> {
    Plight::ahead(server, store(&server.url())).await
}

async fn replica(kind: Kind) {
    let server = start(kind, &[]).await;
    let plight = plight(&server).await;
    ask(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    plight.refuses(NotApplied, "the server is a replica; name the primary").await;
    ask(&server, &["REPLICAOF", "NO", "ONE"]).await;
    plight.passes().await;
}

async fn orphan(kind: Kind) {
    let server = start(kind, &["--replica-serve-stale-data", "no", "--replica-read-only", "no"]).await;
    let plight = plight(&server).await;
    ask(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    plight.refuses(NotApplied, "the server is a replica that has lost its primary").await;
    ask(&server, &["REPLICAOF", "NO", "ONE"]).await;
    plight.passes().await;
}

async fn too_few_replicas(kind: Kind) {
    let server = start(kind, &[]).await;
    let plight = plight(&server).await;
    config(&server, "min-replicas-to-write", "1").await;
    plight.refuses_writes(Full, "fewer replicas than it wants").await;
    let findings = store(&server.url()).check().await.unwrap();
    assert!(findings.iter().any(|finding| finding.message.contains("none keeps up")), "{findings:?}");
    config(&server, "min-replicas-to-write", "0").await;
    plight.passes().await;
}

async fn cannot_save(kind: Kind) {
    let server = start(kind, &["--save", "3600 1"]).await;
    let plight = plight(&server).await;
    cannot_save_any_more(&server).await;
    plight.refuses_writes(Full, "cannot write to its disk").await;
    let findings = store(&server.url()).check().await.unwrap();
    assert!(findings.iter().any(|finding| finding.message.contains("disk")), "{findings:?}");
    config(&server, "stop-writes-on-bgsave-error", "no").await;
    plight.passes().await;
}

async fn cannot_save_any_more(server: &RedisServer) {
    // What is saved cannot take the place of a folder.
    fs::create_dir_all(server.data_folder().join("dump.rdb/full")).unwrap();
    ask(server, &["BGSAVE"]).await;
    until("it could not save", || async { info(server, "rdb_last_bgsave_status").await == "err" }).await;
}

/// It refuses begins because of its disk, and may be behind: what it has is not shown.
async fn replica_that_cannot_save(kind: Kind) {
    let server = start(kind, &["--save", "3600 1"]).await;
    let (store, done) = (store(&server.url()), Operation::new("done"));
    done.cycle(&*store).await;
    cannot_save_any_more(&server).await;
    done.replays(&*store, "done").await;
    ask(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    refused(done.begin(&*store, FIRST).await, NotApplied, "the server is a replica; name the primary");
    ask(&server, &["REPLICAOF", "NO", "ONE"]).await;
    done.replays(&*store, "done").await;
}

async fn full(kind: Kind) {
    let server = start(kind, &[]).await;
    let store = store(&server.url());
    let (under_way, done, absent) = (Operation::new("under way"), Operation::new("done"), Operation::new("absent"));
    let grant = under_way.granted(&*store, FIRST).await;
    done.cycle(&*store).await;
    config(&server, "maxmemory", "1").await;
    refused(absent.begin(&*store, FIRST).await, Full, "memory is full");
    assert_eq!(ask(&server, &[b"EXISTS", &absent.name()[..]]).await, Reply::Integer(0));
    done.replays(&*store, "done").await;
    let busy = under_way.begin(&*store, SECOND).await.unwrap();
    assert!(matches!(busy, Begun::Busy(_)), "{busy:?}");
    under_way.complete(&*store, &grant, "done").await.unwrap();
    under_way.replays(&*store, "done").await;
    config(&server, "maxmemory", "0").await;
    absent.cycle(&*store).await;
}

async fn busy(kind: Kind) {
    let server = start(kind, &["--lua-time-limit", "5"]).await;
    let plight = plight(&server).await;
    let looping = async {
        let ended = server.command(&["EVAL", "while true do end", "0"]).await.unwrap();
        assert!(matches!(ended, Reply::Error(_)), "{ended:?}");
    };
    let meanwhile = async {
        until("the script is noticed", || async {
            matches!(server.command(&["PING"]).await.unwrap(), Reply::Error(error) if error.starts_with("BUSY"))
        })
        .await;
        plight.refuses(NotApplied, "a script keeps the server busy").await;
        ask(&server, &["SCRIPT", "KILL"]).await;
    };
    tokio::join!(looping, meanwhile);
    plight.passes().await;
}

async fn loading(kind: Kind) {
    // It looks up from its reading as seldom as once a kilobyte, and a key takes it some milliseconds.
    let slow = ["--loading-process-events-interval-bytes", "1024", "--key-load-delay", "4000"];
    let server = start(kind, &slow).await;
    let plight = plight(&server).await;
    let filler = "for i = 1, 400 do redis.call('SET', 'filler' .. i, string.rep(tostring(i), 1000)) end";
    ask(&server, &["EVAL", filler, "0"]).await;
    ask(&server, &["SAVE"]).await;
    let refuses = async {
        until("it reads", || async {
            matches!(server.command(&["GET", "x"]).await, Ok(Reply::Error(error)) if error.starts_with("LOADING"))
        })
        .await;
        // The connection that was there before broke with the server.
        plight.refuses_to(&*store(&server.url()), NotApplied, "the server is reading its data").await;
    };
    let (restarted, ()) = tokio::join!(server.restart(), refuses);
    restarted.unwrap();
    meets_a_broken_connection(plight.store()).await;
    plight.passes().await;
}

/// Two nodes that have met; the other one owns every slot.
async fn cluster(kind: Kind) {
    let cluster = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"];
    let (node, other) = (start(kind, &cluster).await, start(kind, &cluster).await);
    let store = store(&node.url());
    let operation = Operation::new("absent");
    refused(operation.begin(&*store, FIRST).await, NotApplied, "ClusterDown");

    let (mine, theirs) =
        (ask(&node, &["CLUSTER", "MYID"]).await.text(), ask(&other, &["CLUSTER", "MYID"]).await.text());
    let port = other.address().port().to_string();
    ask(&node, &["CLUSTER", "MEET", "127.0.0.1", &port]).await;
    let met = || async { ask(&node, &["CLUSTER", "NODES"]).await.text().contains(&theirs) };
    until("the nodes have met", met).await;
    let slot = ask(&node, &[b"CLUSTER".as_slice(), b"KEYSLOT", &operation.name()]).await.text();
    ask(&node, &["CLUSTER", "SETSLOT", &slot, "NODE", &theirs]).await;
    // It takes a while until the node believes that the cluster is whole.
    let moved = || async { format!("{:?}", failure(operation.begin(&*store, FIRST).await)).contains("Moved") };
    until("the slot has moved", moved).await;
    refused(operation.begin(&*store, FIRST).await, NotApplied, "not supported yet");
    refused(store.read(&operation.0.record_key()).await, NotApplied, "not supported yet");

    ask(&node, &["CLUSTER", "SETSLOT", &slot, "NODE", &mine]).await;
    ask(&node, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &theirs]).await;
    refused(operation.begin(&*store, FIRST).await, NotApplied, "Ask");
    assert_eq!(ask(&node, &["DBSIZE"]).await, Reply::Integer(0));
    assert_eq!(ask(&other, &["DBSIZE"]).await, Reply::Integer(0));
}

async fn renamed(kind: Kind) {
    let server = start(kind, &["--rename-command", "EVALSHA", "HIDDEN"]).await;
    let store = store(&server.url());
    let operation = Operation::new("under way");
    let grant = operation.granted(&*store, FIRST).await;
    let before = operation.held(&server).await;
    // It repeats the bytes of the call, which no driver can read.
    refused(operation.complete(&*store, &grant, "done").await, Unknown, "it may lack SET, EVAL or EVALSHA");
    assert_eq!(operation.held(&server).await, before);
}

async fn password() {
    let server = RedisServer::start(Options::new(Kind::Redis).with_password("open")).await.unwrap();
    let plight = plight(&server).await;
    let address = server.address();
    let asked = "the server asks for a password";
    for url in [format!("redis://{address}"), format!("redis://{address}/1")] {
        plight.refuses_to(&*store(&url), Unusable, asked).await;
    }
    let unknown = "does not know this user and password";
    for user in ["redis://:wrong@", "redis://default:wrong@", "redis://nobody:open@"] {
        plight.refuses_to(&*store(&format!("{user}{address}")), Unusable, unknown).await;
    }
    plight.passes().await;
}

async fn wrong_type() {
    let server = start(Kind::Redis, &[]).await;
    let plight = plight(&server).await;
    for operation in plight.operations() {
        ask(&server, &[b"DEL", &operation.name()[..]]).await;
        ask(&server, &[b"RPUSH", &operation.name()[..], b"one"]).await;
    }
    // Twice: none of them may have mended it by overwriting it.
    for _ in 0..2 {
        plight.refuses(Damaged, "another type").await;
    }
    for operation in plight.operations() {
        assert_eq!(ask(&server, &[b"LLEN", &operation.name()[..]]).await, Reply::Integer(1));
    }
}

async fn down() {
    let server = start(Kind::Redis, &["--appendonly", "yes", "--appendfsync", "always"]).await;
    let plight = plight(&server).await;
    let socket = format!("unix://{}", server.socket_path().display());
    server.kill();
    meets_a_broken_connection(plight.store()).await;
    plight.refuses(NotApplied, "cannot be reached").await;
    plight.refuses_to(&*store(&socket), NotApplied, "cannot be reached").await;
    plight.refuses_to(&*store("redis://127.0.0.1:1"), NotApplied, "cannot be reached").await;
    server.restart().await.unwrap();
    plight.passes().await;
}

/// The first call after a connection broke may be the one that learns of it; it might have been carried out.
async fn meets_a_broken_connection(store: &dyn Store) {
    if let Err(error) = store.read(&Operation::new("any").0.record_key()).await {
        assert!(matches!(error.kind(), Unknown | NotApplied), "{error:?}");
    }
}

/// Whether it got there or not, nobody who sent it can tell.
async fn lost() {
    let server = start(Kind::Redis, &[]).await;
    let (proxy, store) = behind(&server).await;
    for (moment, gets_there) in [(Moment::Unsent, false), (Moment::Sent, true), (Moment::Answered, true)] {
        let operation = Operation::new(&format!("{moment:?}"));
        // So that there is a connection, and the next call is what is lost.
        store.read(&operation.0.record_key()).await.unwrap();
        lose(&proxy, moment, "SET");
        unknown(operation.begin(&*store, FIRST).await);
        arrives(&server, operation, gets_there).await;
        let grant = operation.granted(&*store, FIRST).await;

        lose(&proxy, moment, "EVALSHA");
        let before = operation.held(&server).await;
        unknown(operation.complete(&*store, &grant, "done").await);
        if gets_there {
            until("it is carried out", || async { operation.held(&server).await != before }).await;
        } else {
            assert_eq!(operation.held(&server).await, before);
        }
        operation.complete(&*store, &grant, "done").await.unwrap();
        operation.replays(&*store, "done").await;
    }
    assert_eq!(proxy.counts().cuts, 6);
}

fn lose(proxy: &Proxy, moment: Moment, command: &str) {
    proxy.inject(Fault::cut(moment, format!("{command}\r\n")).times(1));
}

fn unknown<T: std::fmt::Debug>(result: hapax_core::Result<T>) {
    assert_eq!(failure(result).kind(), Unknown);
}

async fn arrives(server: &RedisServer, operation: Operation, gets_there: bool) {
    let name = operation.name();
    let there = || async { ask(server, &[b"EXISTS", &name[..]]).await == Reply::Integer(1) };
    if gets_there {
        until("it is carried out", there).await;
    } else {
        assert!(!there().await);
    }
}

//! Errors of the server while a connection is opened, and the messages that users get.

use hapax_core::ErrorKind::{NotApplied, Unusable};
use hapax_core::Store;
use hapax_core::machine::Completed;
use hapax_testkit::servers::{RedisKind, RedisServer, RedisServerOptions};
use libtest_mimic::Trial;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::refusals::assert_refused;
use crate::support::{FIRST, Operation, ask, expect_error, start, store, test, until};

pub(crate) fn tests() -> Vec<Trial> {
    let each = RedisKind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("a_server_at_its_connection_limit_names_the_limit", name, move || too_many_clients(kind)),
            test("a_failed_handshake_does_not_reveal_the_password", name, move || renamed_hello(kind)),
            test("a_rotated_password_is_read_again", name, move || rotated_password(kind)),
        ]
    });
    let redis = RedisKind::Redis.name();
    let once = [
        test("each_handshake_error_is_classified", redis, handshake_errors),
        test("a_missing_database_is_refused", redis, missing_database),
        test("an_error_contains_its_cause_once", redis, no_repetition),
    ];
    each.chain(once).collect()
}

async fn too_many_clients(kind: RedisKind) {
    let options = RedisServerOptions::new(kind).with_password("open").with_args(&["--maxclients", "3"]);
    let server = RedisServer::start(options).await.unwrap();
    let operation = Operation::new("absent");
    let connect = || async { TcpStream::connect(server.address()).await.unwrap() };
    let clients = [connect().await, connect().await, connect().await];
    // The server accepts connections asynchronously.
    until("the server is at its limit", || async { server.command(&["PING"]).await.is_err() }).await;
    let (address, socket) = (server.address(), server.socket_path().display().to_string());
    let with_password = [format!("redis://:open@{address}"), format!("redis://:open@{address}/1")];
    for url in with_password.into_iter().chain([format!("redis://{address}"), format!("unix://{socket}?pass=open")]) {
        assert_refused(operation.begin(&*store(&url), FIRST).await, NotApplied, "raise its maxclients");
    }
    drop(clients);
    let store = store(&server.url());
    until("the server accepts connections again", || async { operation.begin(&*store, FIRST).await.is_ok() }).await;
    operation.cycle(&*store).await;
}

/// Serves connections: waits for the first bytes of each, sends this error and closes the connection.
async fn send_error(listener: &TcpListener, line: &str) {
    while let Ok((mut client, _)) = listener.accept().await {
        let mut greeting = [0; 1024];
        assert!(client.read(&mut greeting).await.unwrap() > 0);
        client.write_all(format!("-{line}\r\n").as_bytes()).await.unwrap();
    }
}

/// Errors that a real server does not send over loopback, or only with a module.
async fn handshake_errors() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for (line, kind, text) in [
        ("DENIED Redis is running in protected mode", Unusable, "is in protected mode"),
        ("LOADING Redis is loading the dataset in memory", NotApplied, "is still loading its data"),
        ("BUSY Redis is busy running a script", NotApplied, "a long-running script blocks the server"),
        ("WRONGPASS invalid username-password pair or user is disabled.", Unusable, "this user or password"),
        ("NOPERM this user has no permissions", Unusable, "lacks a permission"),
        ("ERR something new", NotApplied, "something new"),
    ] {
        let calls = async {
            for url in [format!("redis://{address}"), format!("redis://payments:secret@{address}/1")] {
                assert_refused(Operation::new("absent").begin(&*store(&url), FIRST).await, kind, text);
            }
            let by_tls = store(&format!("rediss://{address}"));
            assert_refused(Operation::new("absent").begin(&*by_tls, FIRST).await, NotApplied, "write redis://");
        };
        tokio::select! {
            () = send_error(&listener, line) => panic!("the server stopped accepting"),
            () = calls => {}
        }
    }
}

async fn renamed_hello(kind: RedisKind) {
    let options =
        RedisServerOptions::new(kind).with_password("hush").with_args(&["--rename-command", "HELLO", "HIDDEN"]);
    let server = RedisServer::start(options).await.unwrap();
    let begun = Operation::new("absent").begin(&*store(&server.url()), FIRST).await;
    assert!(!format!("{begun:?}").contains("hush"), "{begun:?}");
    assert_refused(begun, Unusable, "lacks a command");
}

async fn missing_database() {
    let server = start(RedisKind::Redis, &[]).await;
    let store = store(&format!("redis://{}/99", server.address()));
    assert_refused(Operation::new("absent").begin(&*store, FIRST).await, Unusable, "no database with the number");
}

/// The file is rewritten, then the server's password changes. Open connections stay open; the next one needs the new
/// password.
async fn rotated_password(kind: RedisKind) {
    let server = start(kind, &[]).await;
    ask(&server, &["ACL", "SETUSER", "payments", "on", ">old", "~hx:*", "+@all"]).await;
    let file = server.data_folder().join("password");
    crate::support::write_secret(&file, "old\n");
    let store = store(&format!("redis://payments@{}?password-file={}", server.address(), file.display()));
    let operation = Operation::new("one");
    let grant = operation.grant(&*store, FIRST).await;
    std::fs::write(&file, "new\n").unwrap();
    ask(&server, &["ACL", "SETUSER", "payments", ">new", "<old"]).await;
    store.read(&operation.0.record_key()).await.unwrap();
    ask(&server, &["CLIENT", "KILL", "TYPE", "normal"]).await;
    // The first call may fail because its connection was closed.
    let _ = store.read(&operation.0.record_key()).await;
    let completed = operation.complete(&*store, &grant, "done").await.unwrap();
    assert_eq!(completed, Completed::Done);
    std::fs::remove_file(&file).unwrap();
    ask(&server, &["CLIENT", "KILL", "TYPE", "normal"]).await;
    let _ = store.read(&operation.0.record_key()).await;
    assert_refused(operation.begin(&*store, FIRST).await, Unusable, "cannot read");
}

async fn no_repetition() {
    let server = start(RedisKind::Redis, &[]).await;
    let operation = Operation::new("one");
    let refused_connection = expect_error(operation.begin(&*store("redis://127.0.0.1:1"), FIRST).await);
    ask(&server, &[b"RPUSH", &operation.name()[..], b"one"]).await;
    let wrong_type = expect_error(operation.begin(&*store(&server.url()), FIRST).await);
    for (error, once) in [(refused_connection, "Connection refused"), (wrong_type, "WRONGTYPE")] {
        assert_eq!(format!("{error:?}").matches(once).count(), 1, "{error:?}");
    }
}

//! What a server says to a connection that is being made, and what is said of that.

use hapax_core::ErrorKind::{NotApplied, Unusable};
use hapax_core::Store;
use hapax_core::machine::Completed;
use hapax_testkit::servers::{Kind, Options, RedisServer};
use libtest_mimic::Trial;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::plight::refused;
use crate::world::{FIRST, Operation, ask, failure, start, store, test, until};

pub(crate) fn tests() -> Vec<Trial> {
    let each = Kind::ALL.into_iter().flat_map(|kind| {
        let name = kind.name();
        [
            test("a_server_with_too_many_clients_names_the_limit", name, move || too_many_clients(kind)),
            test("a_password_is_not_repeated_by_a_server_that_cannot_be_greeted", name, move || not_greeted(kind)),
            test("a_password_that_was_rotated_is_read_again", name, move || rotated(kind)),
        ]
    });
    let redis = Kind::Redis.name();
    let once = [
        test("what_a_server_says_to_a_greeting_is_taken_at_its_word", redis, taken_at_its_word),
        test("a_database_that_is_not_there_is_refused", redis, no_such_database),
        test("an_error_says_nothing_twice", redis, nothing_twice),
    ];
    each.chain(once).collect()
}

async fn too_many_clients(kind: Kind) {
    let options = Options::new(kind).with_password("open").with_args(&["--maxclients", "3"]);
    let server = RedisServer::start(options).await.unwrap();
    let operation = Operation::new("absent");
    let connect = || async { TcpStream::connect(server.address()).await.unwrap() };
    let crowd = [connect().await, connect().await, connect().await];
    // The server takes them in its own time.
    until("the crowd is in", || async { server.command(&["PING"]).await.is_err() }).await;
    let (address, socket) = (server.address(), server.socket_path().display().to_string());
    let named = [format!("redis://:open@{address}"), format!("redis://:open@{address}/1")];
    for url in named.into_iter().chain([format!("redis://{address}"), format!("unix://{socket}?pass=open")]) {
        refused(operation.begin(&*store(&url), FIRST).await, NotApplied, "raise its maxclients");
    }
    drop(crowd);
    let store = store(&server.url());
    until("the crowd is gone", || async { operation.begin(&*store, FIRST).await.is_ok() }).await;
    operation.cycle(&*store).await;
}

/// A server that says this to whatever it is sent first, and hangs up.
async fn says(listener: &TcpListener, line: &str) {
    while let Ok((mut client, _)) = listener.accept().await {
        let mut greeting = [0; 1024];
        assert!(client.read(&mut greeting).await.unwrap() > 0);
        client.write_all(format!("-{line}\r\n").as_bytes()).await.unwrap();
    }
}

/// What no server can be brought to say over loopback, or only by a module of its own.
async fn taken_at_its_word() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for (line, kind, why) in [
        ("DENIED Redis is running in protected mode", Unusable, "is in protected mode"),
        ("LOADING Redis is loading the dataset in memory", NotApplied, "is reading its data"),
        ("BUSY Redis is busy running a script", NotApplied, "a script keeps the server busy"),
        ("WRONGPASS invalid username-password pair or user is disabled.", Unusable, "this user and password"),
        ("NOPERM this user has no permissions", Unusable, "lacks a right"),
        ("ERR something new", NotApplied, "something new"),
    ] {
        let asks = async {
            for url in [format!("redis://{address}"), format!("redis://payments:secret@{address}/1")] {
                refused(Operation::new("absent").begin(&*store(&url), FIRST).await, kind, why);
            }
            let by_tls = store(&format!("rediss://{address}"));
            refused(Operation::new("absent").begin(&*by_tls, FIRST).await, NotApplied, "write redis://");
        };
        tokio::select! {
            () = says(&listener, line) => panic!("nobody can reach it any more"),
            () = asks => {}
        }
    }
}

async fn not_greeted(kind: Kind) {
    let options = Options::new(kind).with_password("hush").with_args(&["--rename-command", "HELLO", "HIDDEN"]);
    let server = RedisServer::start(options).await.unwrap();
    let begun = Operation::new("absent").begin(&*store(&server.url()), FIRST).await;
    assert!(!format!("{begun:?}").contains("hush"), "{begun:?}");
    refused(begun, Unusable, "lacks a command");
}

async fn no_such_database() {
    let server = start(Kind::Redis, &[]).await;
    let store = store(&format!("redis://{}/99", server.address()));
    refused(Operation::new("absent").begin(&*store, FIRST).await, Unusable, "no database of the number");
}

/// The file is written anew, then the server is told; connections that are open go on, and the next one needs the new password.
async fn rotated(kind: Kind) {
    let server = start(kind, &[]).await;
    ask(&server, &["ACL", "SETUSER", "payments", "on", ">old", "~hx:*", "+@all"]).await;
    let file = server.data_folder().join("password");
    std::fs::write(&file, "old\n").unwrap();
    let store = store(&format!("redis://payments@{}?password-file={}", server.address(), file.display()));
    let operation = Operation::new("one");
    let grant = operation.granted(&*store, FIRST).await;
    std::fs::write(&file, "new\n").unwrap();
    ask(&server, &["ACL", "SETUSER", "payments", ">new", "<old"]).await;
    store.read(&operation.0.record_key()).await.unwrap();
    ask(&server, &["CLIENT", "KILL", "TYPE", "normal"]).await;
    // The first call may be the one that learns that its connection broke.
    let _ = store.read(&operation.0.record_key()).await;
    let completed = operation.complete(&*store, &grant, "done").await.unwrap();
    assert_eq!(completed, Completed::Done);
    std::fs::remove_file(&file).unwrap();
    ask(&server, &["CLIENT", "KILL", "TYPE", "normal"]).await;
    let _ = store.read(&operation.0.record_key()).await;
    refused(operation.begin(&*store, FIRST).await, Unusable, "cannot read");
}

async fn nothing_twice() {
    let server = start(Kind::Redis, &[]).await;
    let operation = Operation::new("one");
    let refused = failure(operation.begin(&*store("redis://127.0.0.1:1"), FIRST).await);
    ask(&server, &[b"RPUSH", &operation.name()[..], b"one"]).await;
    let wrong = failure(operation.begin(&*store(&server.url()), FIRST).await);
    for (error, once) in [(refused, "Connection refused"), (wrong, "WRONGTYPE")] {
        assert_eq!(format!("{error:?}").matches(once).count(), 1, "{error:?}");
    }
}

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;
use rustix::process::{Resource, Signal, getrlimit, kill_process};
use tokio::time::timeout;

use crate::harness::{Api, Gateway, free_address, hapax, sqlite, until};

/// Kills a gateway while the API runs a request, and starts another one on the same file.
pub(crate) async fn kill_during_request(api: &Api, store: &str, on_lapse: &str) -> Gateway {
    let flags = ["--lease", "1s", "--on-lapse", on_lapse];
    let mut gateway = Gateway::start(api.address, store, &flags).await;
    tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        kill_process(gateway.pid(), Signal::KILL).unwrap();
    });
    gateway.kill();
    // The API's first run must not wait for ever, and must not take the permit of a later run.
    api.release_slow();
    Gateway::start(api.address, store, &flags).await
}

#[tokio::test(flavor = "multi_thread")]
async fn under_hold_a_crash_makes_the_outcome_unknown() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let gateway = kill_during_request(&api, &sqlite(directory.path()), "hold").await;
    let got = gateway.retry_until_settled("/slow", "key-1", "{}").await;
    assert_eq!((got.status.as_u16(), got.problem()), (409, "outcome-unknown"));
    assert_eq!(api.seen().len(), 1, "the request ran again");
    assert_eq!(
        gateway.post("/slow", "key-1", "{ }").await.unwrap().problem(),
        "key-reused",
        "the fingerprint must be kept"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn under_retry_a_crash_is_followed_by_an_attempt_with_a_higher_token() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let gateway = kill_during_request(&api, &sqlite(directory.path()), "retry").await;
    api.release_slow();
    let got = gateway.retry_until_settled("/slow", "key-1", "{}").await;
    assert_eq!((got.status.as_u16(), got.body.as_str()), (201, "answer 2"));
    let seen = api.seen();
    let number = |at: usize, name: &str| seen[at].headers[name].to_str().unwrap().parse::<u64>().unwrap();
    assert!(number(1, "hapax-token") > number(0, "hapax-token"));
    assert_eq!((number(0, "hapax-attempt"), number(1, "hapax-attempt")), (1, 2));
    assert_eq!(seen[0].headers["hapax-operation"], seen[1].headers["hapax-operation"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_replayed_after_a_restart() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let mut gateway = Gateway::start(api.address, &sqlite(directory.path()), &[]).await;
    gateway.post("/charges", "key-1", "{}").await.unwrap();
    gateway.kill();
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &[]).await;
    let retry = gateway.post("/charges", "key-1", "{}").await.unwrap();
    assert!(retry.is_replayed() && retry.body == "answer 1");
}

/// Takes the write lock of the file, as another writer does. The lock is held until the connection is dropped.
pub(crate) fn lock_database(directory: &Path) -> Connection {
    let connection = Connection::open(directory.join("hapax.db")).unwrap();
    connection.execute_batch("begin immediate").unwrap();
    connection
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unconfirmed_answer_is_sent_and_recorded_later() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &["--lease", "1s"]).await;
    let (first, lock) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        let lock = lock_database(directory.path());
        api.release_slow();
        lock
    });
    let first = first.unwrap();
    assert_eq!((first.status.as_u16(), first.body.as_str()), (201, "answer 1"));
    assert_eq!(first.headers["hapax-recorded"], "pending");
    drop(lock);
    let retry = gateway.retry_until_settled("/slow", "key-1", "{}").await;
    assert!(retry.is_replayed() && retry.body == "answer 1", "{}", retry.body);
    assert_eq!(api.seen().len(), 1);
}

/// The lease is longer than the patience of the test.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_waits_for_its_answer_no_longer_than_the_record_patience_h30() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let flags = ["--lease", "10min", "--record-patience", "300ms"];
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &flags).await;
    let outage = async {
        api.wait_for_requests(1).await;
        let lock = lock_database(directory.path());
        api.release_slow();
        lock
    };
    let answered = async { tokio::join!(gateway.post("/slow", "key-1", "{}"), outage) };
    let (first, lock) = timeout(Duration::from_secs(60), answered).await.expect("an answer before the lease ends");
    let first = first.unwrap();
    assert_eq!((first.status.as_u16(), first.body.as_str()), (201, "answer 1"));
    assert_eq!(first.headers["hapax-recorded"], "pending");
    drop(lock);
    let retry = gateway.retry_until_settled("/slow", "key-1", "{}").await;
    assert!(retry.is_replayed() && retry.body == "answer 1", "{}", retry.body);
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_is_not_ready_while_its_file_is_locked() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &["--store-timeout", "300ms"]).await;
    // While another process holds the file's write lock, the gateway's checks time out.
    let lock = lock_database(directory.path());
    until("the gateway is not ready", async || {
        let got = gateway.get(gateway.admin, "/readyz").await.unwrap();
        got.status == 503 && got.body.starts_with("not ready: ")
    })
    .await;
    drop(lock);
    until("the gateway is ready", async || gateway.get(gateway.admin, "/readyz").await.unwrap().status == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_the_journal_of_a_killed_process_is_recorded_by_the_next() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = sqlite(directory.path());
    let mut gateway = Gateway::start(api.address, &store, &["--lease", "1s"]).await;
    let (first, lock) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        let lock = lock_database(directory.path());
        api.release_slow();
        lock
    });
    assert_eq!(first.unwrap().headers["hapax-recorded"], "pending");
    gateway.kill();
    drop(lock);
    let gateway = Gateway::start(api.address, &store, &["--lease", "1s"]).await;
    until("the answer is recorded", async || {
        gateway.post("/slow", "key-1", "{}").await.is_some_and(|got| got.is_replayed() && got.body == "answer 1")
    })
    .await;
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_request_ends_before_the_process_stops() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let (got, ()) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        gateway.terminate();
        api.release_slow();
    });
    assert_eq!(got.unwrap().status, 201);
    let (code, logs) = gateway.wait_for_exit();
    assert_eq!(code, Some(0), "{logs}");
}

/// The store cannot be reached, so its checks are repeated.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_signal_does_not_end_a_gateway_that_waits_for_its_store() {
    let directory = tempfile::tempdir().unwrap();
    let flags = ["--upstream", "http://127.0.0.1:9", "--data-dir", directory.path().to_str().unwrap()];
    let gateway = Gateway::spawn(hapax(), "redis://127.0.0.1:1", &flags, free_address());
    until("the process catches the signal", async || catches(&gateway, Signal::HUP)).await;
    kill_process(gateway.pid(), Signal::HUP).unwrap();
    gateway.wait_for_log("SIGHUP").await;
    // It listens only after the first checks of the store, and handles the signal before.
    until("the gateway listens", async || gateway.get(gateway.admin, "/readyz").await.is_some()).await;
    gateway.terminate();
    let (code, logs) = gateway.wait_for_exit();
    assert_eq!(code, Some(0), "{logs}");
}

/// Whether the process handles this signal, instead of ending.
fn catches(gateway: &Gateway, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid().as_raw_nonzero())).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
    u64::from_str_radix(caught, 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_signal_does_not_end_a_gateway_that_drains() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let (got, ()) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        kill_process(gateway.pid(), Signal::HUP).unwrap();
        gateway.terminate();
        until("the gateway drains", async || {
            gateway.get(gateway.admin, "/readyz").await.is_some_and(|got| got.status == 503)
        })
        .await;
        kill_process(gateway.pid(), Signal::HUP).unwrap();
        assert_eq!(gateway.get(gateway.admin, "/healthz").await.unwrap().status, 200);
        api.release_slow();
    });
    assert_eq!(got.unwrap().status, 201);
    assert_eq!(gateway.wait_for_exit().0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn during_the_drain_delay_the_gateway_is_not_ready_and_still_accepts() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--drain-delay", "110s", "--drain", "120s"]).await;
    gateway.terminate();
    until("the gateway is not ready", async || {
        let got = gateway.get(gateway.admin, "/readyz").await.unwrap();
        got.status == 503 && got.body == "not ready: the process is stopping\n"
    })
    .await;
    // A new client opens a new connection.
    let client = crate::harness::GatewayClient::of(gateway.public);
    assert_eq!(client.post("/charges", "key-1", "{}").await.unwrap().status, 201);
    assert_eq!(gateway.get(gateway.admin, "/healthz").await.unwrap().status, 200);
    // A second signal ends the process at once.
    gateway.terminate();
    let (code, logs) = gateway.wait_for_exit();
    assert!(code == Some(1) && logs.lines().last().unwrap().contains("stopped at once"), "{logs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_at_its_limit_and_the_last_line_names_the_answers_in_the_journal() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let flags = ["--lease", "1s", "--drain", "2s"];
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &flags).await;
    let (first, lock) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        let lock = lock_database(directory.path());
        api.release_slow();
        lock
    });
    assert_eq!(first.unwrap().headers["hapax-recorded"], "pending");
    // This request never ends.
    let (cut, ()) = tokio::join!(gateway.post("/stalls", "key-2", "{}"), async {
        gateway.terminate();
    });
    assert!(cut.is_none_or(|got| got.status != 201));
    let (code, logs) = gateway.wait_for_exit();
    drop(lock);
    let last: serde_json::Value = serde_json::from_str(logs.lines().last().unwrap()).unwrap();
    let journal = directory.path().join("hapax.db.spill").display().to_string();
    assert_eq!((code, &last["answers_in_journal"], &last["journal"]), (Some(0), &1.into(), &journal.into()), "{logs}");
    assert!(last["message"].as_str().unwrap().starts_with("stopped"), "{last}");
}

#[test]
fn a_drain_delay_must_leave_time_for_requests() {
    for (delay, drain, margin) in [
        ("30s", "25s", "2s"),
        ("25s", "25s", "2s"),
        ("24s", "25s", "2s"),
        ("600ms", "1s", "500ms"),
        ("18446744073709551615s", "25s", "2s"),
    ] {
        let (code, message) = refusal(&["--drain-delay", delay, "--drain", drain]);
        let rule = format!("must be at least {margin} shorter than drain {drain}");
        assert!(code == Some(2) && message.contains("--drain-delay") && message.contains(&rule), "{message}");
    }
    let (code, message) = refusal(&["--drain", "0s"]);
    assert!(code == Some(2) && message.contains("--drain: "), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_no_body_and_no_credential_is_ever_logged() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &["--upstream-timeout", "300ms"]).await;
    for path in ["/charges", "/charges", "/slow", "/slow"] {
        gateway.post(path, "very-private-key", "{\"card\":\"4242\"}").await.unwrap();
    }
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    let started = logs.lines().find(|line| line.contains("POST and PATCH are protected")).expect(&logs);
    for part in [env!("CARGO_PKG_VERSION"), "memory:", "hold"] {
        assert!(started.contains(part), "{part}: {started}");
    }
    assert!(logs.contains("does not ask the API whether the credential still holds"), "{logs}");
    for secret in ["very-private-key", "4242", "tenant-secret"] {
        assert!(!logs.contains(secret), "{secret} is in {logs}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_listener_reports_health_and_readiness() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/nothing", 404)] {
        assert_eq!(gateway.get(gateway.admin, path).await.unwrap().status.as_u16(), status, "{path}");
    }
}

/// Starts a gateway with these soft and hard limits of open files.
async fn start_with_file_limits(api: &Api, soft: u64, hard: u64) -> Gateway {
    let mut command = Command::new("sh");
    let limits = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
    command.args(["-c", &limits, hapax().get_program().to_str().unwrap()]).env_clear().env("HAPAX_LOG", "info");
    Gateway::run(command, "memory:", &["--upstream", &format!("http://{}", api.address)], free_address()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_open_files_is_raised_and_a_warning_is_logged_if_it_stays_too_low() {
    // One file for each of 4,096 client connections, one for each connection to the API, and 128 for everything else.
    const NEEDED: u64 = 2 * 4096 + 128;
    let api = Api::start().await;
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    assert!(most >= NEEDED, "this test needs a limit of {NEEDED} open files, and the limit is {most}");
    for (soft, hard, expected, is_logged) in [(256, NEEDED, NEEDED, false), (256, 512, 512, true)] {
        let gateway = start_with_file_limits(&api, soft, hard).await;
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", gateway.pid().as_raw_nonzero())).unwrap();
        let row = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        assert_eq!(row.split_whitespace().next(), Some(&*expected.to_string()), "{row}");
        gateway.terminate();
        let (code, logs) = gateway.wait_for_exit();
        assert_eq!(code, Some(0));
        assert_eq!(
            logs.contains("too few files may be open for 4096 connections; raise the limit"),
            is_logged,
            "{logs}"
        );
    }
}

/// Returns the exit code and standard error of a gateway that must not start.
fn refusal(flags: &[&str]) -> (Option<i32>, String) {
    let (public, admin) = (free_address().to_string(), free_address().to_string());
    let mut command = hapax();
    let defaults = [("HAPAX_UPSTREAM", "http://127.0.0.1:9"), ("HAPAX_LISTEN", &public), ("HAPAX_ADMIN", &admin)];
    let output = command.envs(defaults).arg("gateway").args(flags).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn an_impossible_start_is_refused_with_its_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("notes.txt");
    std::fs::write(&text, "no database, ".repeat(400)).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let absent = format!("sqlite://{}/absent/hapax.db", directory.path().display());
    let (text, memory) = (format!("sqlite://{}", text.display()), ["--store", "memory:"]);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--store", "mysql://localhost"], 2, "sqlite://PATH, redis://HOST,"),
        (&["--store", "postgres://localhost?pool=3"], 2, "the URL of a PostgreSQL server has no parameter `pool`"),
        (&["--store", "memory:", "--lease", "10ms"], 2, "--lease: \"10ms\": must be at least 1s"),
        (&["--store", "memory:", "--tenant", "nobody"], 2, "authorization, header:NAME, optional-header:NAME or none"),
        (&["--store", "memory:", "--upstream", "ftp://api"], 2, "http://HOST:PORT"),
        (&["--store", "memory:", "--upstream", "http://u:p@api"], 2, "http://HOST:PORT"),
        (&["--store", "memory:", "--upstream-timeout", "0s"], 2, "write for instance 1s"),
        (&["--store", "memory:", "--namespace", ""], 2, "namespace is empty"),
        (&["--store", &absent], 3, "check that its directory exists"),
        (&["--store", &text], 3, "is not an SQLite database"),
        (&[memory[0], memory[1], "--listen", &taken], 3, "another process listens there"),
    ];
    for (flags, code, remedy) in cases {
        let (exit_code, message) = refusal(flags);
        assert!(exit_code == Some(*code) && message.contains(remedy), "{flags:?}: {exit_code:?} {message}");
    }
}

//! Full disks and read-only disks: real file systems in a mount namespace of the test.

use std::collections::HashSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Resource, Rlimit, prlimit};

use crate::harness::{Api, ClientResponse, Gateway, free_address, hapax, sqlite, until};

/// The path of the disk when the test runs in its mount namespace.
const DISK: &str = "HAPAX_TEST_DISK";

/// Returns the disk of this test. The first run gets None: it runs the test a second time in a mount namespace with the
/// disk and waits until that passed.
pub(crate) fn run_on_small_disk(test: &str) -> Option<PathBuf> {
    if let Some(disk) = env::var_os(DISK) {
        return Some(disk.into());
    }
    let directory = tempfile::tempdir().unwrap();
    // Only root may mount, and every user is root in its own user namespace.
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
        .arg("mount -t tmpfs -o size=4m none \"$0\" && exec \"$1\" --exact \"$2\" --nocapture")
        .args([directory.path().as_os_str(), env::current_exe().unwrap().as_os_str(), test.as_ref()])
        .env(DISK, directory.path())
        .output()
        .expect("unshare, of util-linux, is needed to mount a small disk");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "on the disk: {text}{errors}");
    None
}

/// Fills the disk and returns the file that does so.
pub(crate) fn fill(disk: &Path) -> PathBuf {
    let ballast = disk.join("ballast");
    // Smaller and smaller pieces, so that not even a page or a byte is left.
    for size in [1 << 20, 1 << 12, 1] {
        let piece = vec![1; size];
        while fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&ballast)
            .and_then(|mut file| std::io::Write::write_all(&mut file, &piece))
            .is_ok()
        {}
    }
    ballast
}

/// Sends new keys until one is refused, and checks that it did not run.
async fn assert_refuses_new_keys(api: &Api, gateway: &Gateway) {
    let mut number = 0;
    until("a new key is refused", async || {
        number += 1;
        let got = gateway.post("/charges", &format!("new-{number}"), "{}").await.unwrap();
        let is_refused = got.status == 503 && got.problem() == "store-unavailable";
        assert!(!is_refused || got.headers.contains_key("retry-after"));
        is_refused
    })
    .await;
    assert!(!keys(api).contains(&format!("new-{number}")), "a refused request ran");
    until("the gateway says that it is not ready", async || {
        gateway.get(gateway.admin, "/readyz").await.is_some_and(|page| page.status == 503)
    })
    .await;
    assert_eq!(gateway.get(gateway.public, "/charges").await.unwrap().status, 201, "unprotected requests must pass");
}

/// Breaks the store while a request runs, repairs it after the response, and returns that response. Checks that nothing
/// new runs meanwhile, that the response is replayed later, and that the gateway works again.
async fn survive_outage(
    api: &Api,
    gateway: &Gateway,
    break_store: impl FnOnce(),
    repair: impl FnOnce(),
) -> ClientResponse {
    gateway.post("/charges", "before", "{}").await.unwrap();
    let (response, ()) = tokio::join!(gateway.post("/slow", "running", "{}"), async {
        api.wait_for_requests(2).await;
        break_store();
        assert_refuses_new_keys(api, gateway).await;
        api.release_slow();
    });
    repair();
    until("the gateway works again", async || {
        gateway.post("/charges", "after", "{}").await.is_some_and(|got| got.status == 201)
    })
    .await;
    let retry = gateway.retry_until_settled("/charges", "before", "{}").await;
    assert!(retry.is_replayed() && retry.body == "answer 1", "{}", retry.body);
    let response = response.unwrap();
    if response.status == 201 {
        until("the response is recorded", async || {
            let later = gateway.retry_until_settled("/slow", "running", "{}").await;
            later.is_replayed() && later.body == response.body
        })
        .await;
    } else {
        let later = gateway.retry_until_settled("/slow", "running", "{}").await;
        assert_eq!((response.problem(), later.problem()), ("outcome-unrecorded", "outcome-unknown"), "{}", later.body);
    }
    let all = keys(api);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "a key had two effects");
    response
}

/// Returns the key of every request that the API received.
fn keys(api: &Api) -> Vec<String> {
    let seen = api.seen();
    let keys = seen.iter().filter_map(|seen| seen.headers.get("idempotency-key"));
    keys.map(|key| key.to_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_new_keys_and_loses_nothing_h28() {
    let name = "disk::a_full_disk_refuses_new_keys_and_loses_nothing_h28";
    let Some(disk) = run_on_small_disk(name) else { return };
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, &sqlite(&disk), &["--lease", "1s"]).await;
    let ballast = disk.join("ballast");
    survive_outage(&api, &gateway, || drop(fill(&disk)), || fs::remove_file(ballast).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_go_to_another_disk_while_the_store_is_full_h30() {
    let name = "disk::completions_go_to_another_disk_while_the_store_is_full_h30";
    let Some(disk) = run_on_small_disk(name) else { return };
    let (api, other) = (Api::start().await, tempfile::tempdir().unwrap());
    let flags = ["--lease", "1s", "--data-dir", other.path().to_str().unwrap()];
    let gateway = Gateway::start(api.address, &sqlite(&disk), &flags).await;
    let ballast = disk.join("ballast");
    let response = survive_outage(&api, &gateway, || drop(fill(&disk)), || fs::remove_file(ballast).unwrap()).await;
    assert_eq!((response.status.as_u16(), &response.headers["hapax-recorded"]), (201, &"pending".parse().unwrap()));
}

/// Limits the size of files that the process writes; a longer write fails.
fn limit_files(gateway: &Gateway, bytes: Option<u64>) {
    prlimit(Some(gateway.pid()), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
}

/// Returns the command of a process that ignores the signal XFSZ: a write beyond the limit fails with an error, as on a
/// broken disk.
fn without_file_signal() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", hapax().get_program().to_str().unwrap()]);
    command.env_clear().env("HAPAX_LOG", "debug");
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_line_after_one_that_was_cut_begins_on_a_line_of_its_own() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let file = directory.path().join("hapax.log");
    let flags = ["--upstream", &format!("http://{}", api.address), "--log-file", file.to_str().unwrap()];
    let gateway = Gateway::run(without_file_signal(), "memory:", &flags, free_address()).await;
    let log = || fs::read_to_string(&file).unwrap();
    until("the disk is full within a line", async || {
        let limit = log().len() + 50;
        limit_files(&gateway, Some(limit.try_into().unwrap()));
        gateway.get(gateway.public, "/full").await.unwrap();
        until("the disk is full", async || log().len() >= limit).await;
        !log().ends_with('\n')
    })
    .await;
    let cut = log().len();
    limit_files(&gateway, None);
    gateway.get(gateway.public, "/free").await.unwrap();
    until("the next line is written", async || log().len() > cut && log().ends_with('\n')).await;
    assert!(log()[cut..].starts_with("\n{"), "{}", &log()[cut - 50..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_go_to_the_journal_while_the_database_is_read_only_h30() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let command = without_file_signal();
    let flags = ["--lease", "1s", "--upstream", &format!("http://{}", api.address)];
    let gateway = Gateway::run(command, &sqlite(directory.path()), &flags, free_address()).await;
    // The limit leaves room for a journal entry, but not for a change of the database.
    let response =
        survive_outage(&api, &gateway, || limit_files(&gateway, Some(4096)), || limit_files(&gateway, None)).await;
    assert_eq!((response.status.as_u16(), &response.headers["hapax-recorded"]), (201, &"pending".parse().unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_disk_refuses_new_keys_and_keeps_all_records() {
    let name = "disk::a_read_only_disk_refuses_new_keys_and_keeps_all_records";
    let Some(disk) = run_on_small_disk(name) else { return };
    let (api, store) = (Api::start().await, sqlite(&disk));
    let upstream = format!("http://{}", api.address);
    let upstream = ["--upstream", &upstream];
    let gateway = Gateway::start(api.address, &store, &[]).await;
    gateway.post("/charges", "before", "{}").await.unwrap();
    gateway.terminate();
    assert_eq!(gateway.wait_for_exit().0, Some(0));
    let remount = |how: &str| Command::new("mount").args(["-o", how]).arg(&disk).status().unwrap().success();
    assert!(remount("remount,ro"));
    // With its journal on the read-only disk the gateway does not start. With the journal on another disk it starts,
    // and reports why it is not ready.
    let gateway = Gateway::spawn(hapax(), &store, &upstream, free_address());
    let (code, logs) = gateway.wait_for_exit();
    assert!(code == Some(3) && logs.contains("hapax: the journal cannot use"), "{logs}");
    let other = tempfile::tempdir().unwrap();
    let elsewhere = [&upstream[..], &["--data-dir", other.path().to_str().unwrap()]].concat();
    let gateway = Gateway::spawn(hapax(), &store, &elsewhere, free_address());
    until("the gateway reports why it is not ready", async || {
        let got = gateway.get(gateway.admin, "/readyz").await;
        got.is_some_and(|got| got.status == 503 && got.body.contains("readonly database"))
    })
    .await;
    let got = gateway.post("/charges", "new", "{}").await.unwrap();
    assert_eq!((got.status.as_u16(), got.problem()), (503, "store-unavailable"));
    assert_eq!(api.seen().len(), 1);
    drop(gateway);
    assert!(remount("remount,rw"));
    let gateway = Gateway::start(api.address, &store, &[]).await;
    let retry = gateway.post("/charges", "before", "{}").await.unwrap();
    assert!(retry.is_replayed() && retry.body == "answer 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_paused_beyond_its_lease_has_one_effect() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = sqlite(directory.path());
    let stopped = Gateway::start(api.address, &store, &["--lease", "1s"]).await;
    let other = Gateway::start(api.address, &store, &["--lease", "1s"]).await;
    let (first, ()) = tokio::join!(stopped.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        rustix::process::kill_process(stopped.pid(), rustix::process::Signal::STOP).unwrap();
        let got = other.retry_until_settled("/slow", "key-1", "{}").await;
        assert_eq!(
            (got.status.as_u16(), got.problem()),
            (409, "outcome-unknown"),
            "the lease of the paused process has expired"
        );
        api.release_slow();
        rustix::process::kill_process(stopped.pid(), rustix::process::Signal::CONT).unwrap();
    });
    let first = first.unwrap();
    assert!(first.status == 201 || first.problem() == "outcome-unknown", "{}", first.body);
    let later = other.retry_until_settled("/slow", "key-1", "{}").await;
    assert_eq!(
        first.status == 201,
        later.is_replayed(),
        "the first response must stay valid: {} {}",
        first.body,
        later.body
    );
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_stops_the_process_at_once() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let (got, ()) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        gateway.terminate();
        // After the first signal the gateway no longer accepts connections.
        until("the gateway stops", async || tokio::net::TcpStream::connect(gateway.public).await.is_err()).await;
        gateway.terminate();
    });
    assert!(got.is_none());
    let (code, logs) = gateway.wait_for_exit();
    assert!(code == Some(1) && logs.contains("stopped at once"), "{logs}");
}

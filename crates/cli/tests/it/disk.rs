//! A disk that fills up under a gateway, and one that can no longer be written: a real file system, in a mount namespace of its own.

use std::collections::HashSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Resource, Rlimit, prlimit};

use crate::world::{Api, Gateway, Got, free_address, hapax, sqlite, until};

/// Where the test finds its disk when it is run again on one.
const DISK: &str = "HAPAX_TEST_DISK";

/// The disk of this test; nothing at its first run, which ends when the second one on the disk has passed.
pub(crate) fn on_a_small_disk(test: &str) -> Option<PathBuf> {
    if let Some(disk) = env::var_os(DISK) {
        return Some(disk.into());
    }
    let directory = tempfile::tempdir().unwrap();
    // Only root may mount; in a user namespace of its own anybody is.
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
        .arg("mount -t tmpfs -o size=4m none \"$0\" && exec \"$1\" --exact \"$2\" --nocapture")
        .args([directory.path().as_os_str(), env::current_exe().unwrap().as_os_str(), test.as_ref()])
        .env(DISK, directory.path())
        .output()
        .expect("unshare, of util-linux, is needed to mount a small disk");
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && told.contains("1 passed"), "on the disk: {told}{errors}");
    None
}

/// Takes all room that is left, and what is freed by it.
pub(crate) fn fill(disk: &Path) -> PathBuf {
    let ballast = disk.join("ballast");
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

/// Sends new keys until one is refused: which did not run.
async fn refused(api: &Api, gateway: &Gateway) {
    let mut number = 0;
    until("a new key is refused", async || {
        number += 1;
        let got = gateway.post("/charges", &format!("new-{number}"), "{}").await.unwrap();
        let is_refused = got.status == 503 && got.problem() == "store-unavailable";
        assert!(!is_refused || got.headers.contains_key("retry-after"));
        is_refused
    })
    .await;
    assert!(!keys(api).contains(&format!("new-{number}")), "what is refused did not run");
    assert_eq!(gateway.get(gateway.public, "/charges").await.unwrap().status, 201, "what needs no record passes");
}

/// Hinders the store while a request runs, and mends it when that has been answered; what it was told. Nothing new runs meanwhile,
/// what was told stands, and service goes on.
async fn through(api: &Api, gateway: &Gateway, hinder: impl FnOnce(), mend: impl FnOnce()) -> Got {
    gateway.post("/charges", "before", "{}").await.unwrap();
    let (told, ()) = tokio::join!(gateway.post("/slow", "running", "{}"), async {
        api.has_seen(2).await;
        hinder();
        refused(api, gateway).await;
        api.let_go();
    });
    mend();
    until("service goes on", async || {
        gateway.post("/charges", "after", "{}").await.is_some_and(|got| got.status == 201)
    })
    .await;
    let retry = gateway.settled("/charges", "before", "{}").await;
    assert!(retry.replayed() && retry.body == "answer 1", "{}", retry.body);
    let told = told.unwrap();
    if told.status == 201 {
        until("what was told is recorded", async || {
            let later = gateway.settled("/slow", "running", "{}").await;
            later.replayed() && later.body == told.body
        })
        .await;
    } else {
        let later = gateway.settled("/slow", "running", "{}").await;
        assert_eq!((told.problem(), later.problem()), ("outcome-unrecorded", "outcome-unknown"), "{}", later.body);
    }
    let all = keys(api);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "one effect a key");
    told
}

/// The key of each request that the API saw.
fn keys(api: &Api) -> Vec<String> {
    let seen = api.seen();
    let keys = seen.iter().filter_map(|seen| seen.headers.get("idempotency-key"));
    keys.map(|key| key.to_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_nothing_new_runs_and_nothing_is_lost_h28() {
    let name = "disk::on_a_full_disk_nothing_new_runs_and_nothing_is_lost_h28";
    let Some(disk) = on_a_small_disk(name) else { return };
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, &sqlite(&disk), &["--lease", "1s"]).await;
    let ballast = disk.join("ballast");
    through(&api, &gateway, || drop(fill(&disk)), || fs::remove_file(ballast).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_disk_of_the_store_is_full_answers_are_kept_on_another_h30() {
    let name = "disk::while_the_disk_of_the_store_is_full_answers_are_kept_on_another_h30";
    let Some(disk) = on_a_small_disk(name) else { return };
    let (api, other) = (Api::start().await, tempfile::tempdir().unwrap());
    let flags = ["--lease", "1s", "--data-dir", other.path().to_str().unwrap()];
    let gateway = Gateway::start(api.address, &sqlite(&disk), &flags).await;
    let ballast = disk.join("ballast");
    let told = through(&api, &gateway, || drop(fill(&disk)), || fs::remove_file(ballast).unwrap()).await;
    assert_eq!((told.status.as_u16(), &told.headers["hapax-recorded"]), (201, &"pending".parse().unwrap()));
}

/// No file of this process may be longer from now on: what would make it so fails.
fn limit_files(gateway: &Gateway, bytes: Option<u64>) {
    prlimit(Some(gateway.pid()), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_database_cannot_be_written_answers_are_kept_in_the_journal_h30() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    // A process that is not told by a signal is told by an error, as one is whose disk has failed.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", hapax().get_program().to_str().unwrap()]);
    command.env_clear().env("HAPAX_LOG", "debug");
    let flags = ["--lease", "1s", "--upstream", &format!("http://{}", api.address)];
    let gateway = Gateway::run(command, &sqlite(directory.path()), &flags, free_address()).await;
    // There is room for an entry of the journal, and for no change of the database.
    let told = through(&api, &gateway, || limit_files(&gateway, Some(4096)), || limit_files(&gateway, None)).await;
    assert_eq!((told.status.as_u16(), &told.headers["hapax-recorded"]), (201, &"pending".parse().unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_disk_that_can_only_be_read_nothing_runs_and_all_is_there_when_it_is_mended() {
    let name = "disk::on_a_disk_that_can_only_be_read_nothing_runs_and_all_is_there_when_it_is_mended";
    let Some(disk) = on_a_small_disk(name) else { return };
    let (api, store) = (Api::start().await, sqlite(&disk));
    let upstream = format!("http://{}", api.address);
    let upstream = ["--upstream", &upstream];
    let gateway = Gateway::start(api.address, &store, &[]).await;
    gateway.post("/charges", "before", "{}").await.unwrap();
    gateway.terminate();
    assert_eq!(gateway.ended().0, Some(0));
    let remount = |how: &str| Command::new("mount").args(["-o", how]).arg(&disk).status().unwrap().success();
    assert!(remount("remount,ro"));
    // Where the journal cannot be written either, it does not start; else it starts, and says why nothing runs.
    let gateway = Gateway::spawn(hapax(), &store, &upstream, free_address());
    let (code, told) = gateway.ended();
    assert!(code == Some(3) && told.contains("hapax: the journal cannot use"), "{told}");
    let other = tempfile::tempdir().unwrap();
    let elsewhere = [&upstream[..], &["--data-dir", other.path().to_str().unwrap()]].concat();
    let gateway = Gateway::spawn(hapax(), &store, &elsewhere, free_address());
    until("it says why it is not ready", async || {
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
    assert!(retry.replayed() && retry.body == "answer 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stood_still_beyond_its_lease_gives_no_second_effect() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = sqlite(directory.path());
    let stopped = Gateway::start(api.address, &store, &["--lease", "1s"]).await;
    let other = Gateway::start(api.address, &store, &["--lease", "1s"]).await;
    let (first, ()) = tokio::join!(stopped.post("/slow", "key-1", "{}"), async {
        api.has_seen(1).await;
        rustix::process::kill_process(stopped.pid(), rustix::process::Signal::STOP).unwrap();
        let got = other.settled("/slow", "key-1", "{}").await;
        assert_eq!((got.status.as_u16(), got.problem()), (409, "outcome-unknown"), "its lease is over");
        api.let_go();
        rustix::process::kill_process(stopped.pid(), rustix::process::Signal::CONT).unwrap();
    });
    let first = first.unwrap();
    assert!(first.status == 201 || first.problem() == "outcome-unknown", "{}", first.body);
    let later = other.settled("/slow", "key-1", "{}").await;
    assert_eq!(first.status == 201, later.replayed(), "what was told stands: {} {}", first.body, later.body);
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_process_at_once() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let (got, ()) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.has_seen(1).await;
        gateway.terminate();
        // It no longer listens once it has taken the first signal.
        until("it stops", async || tokio::net::TcpStream::connect(gateway.public).await.is_err()).await;
        gateway.terminate();
    });
    assert!(got.is_none());
    let (code, logs) = gateway.ended();
    assert!(code == Some(1) && logs.contains("stopped at once"), "{logs}");
}

//! A disk that fills up under a gateway, and one that can no longer be written: a real file system, in a mount namespace of its own.

use std::collections::HashSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::{Api, Gateway, sqlite, until};

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

/// What was answered before is answered still, nothing new runs, and service goes on when the trouble is over.
async fn trouble(api: &Api, gateway: &Gateway, mend: impl FnOnce()) {
    let mut number = 0;
    until("a new key is refused", async || {
        number += 1;
        let got = gateway.post("/charges", &format!("new-{number}"), "{}").await.unwrap();
        let is_refused = got.status == 503 && got.problem() == "store-unavailable";
        assert!(!is_refused || got.headers.contains_key("retry-after"));
        is_refused
    })
    .await;
    let refused = format!("new-{number}");
    assert!(!keys(api).contains(&refused), "what is refused did not run");
    assert_eq!(gateway.get(gateway.public, "/charges").await.unwrap().status, 201, "what needs no record passes");
    mend();
    until("service goes on", async || {
        gateway.post("/charges", "after", "{}").await.is_some_and(|got| got.status == 201)
    })
    .await;
    let retry = gateway.settled("/charges", "before", "{}").await;
    assert!(retry.replayed() && retry.body == "answer 1", "{}", retry.body);
    let all = keys(api);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "one effect a key");
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
    gateway.post("/charges", "before", "{}").await.unwrap();
    let ballast = fill(&disk);
    trouble(&api, &gateway, || fs::remove_file(ballast).unwrap()).await;
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

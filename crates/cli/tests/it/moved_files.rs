//! An operator restores a backup with `mv` while a gateway runs: nothing is confirmed in a file that nobody keeps.

use std::path::Path;
use std::process::Command;

use rusqlite::Connection;

use crate::harness::{Api, Gateway, sqlite, until};

/// Replaces a file by a copy of itself, as `mv` does.
pub(crate) fn replace(path: &Path) {
    let copy = path.with_extension("backup");
    Connection::open(path).unwrap().execute("vacuum into ?1", [copy.to_str()]).unwrap();
    assert!(Command::new("mv").arg(&copy).arg(path).status().unwrap().success());
    // The log of the old file.
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", path.display()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_confirms_nothing_after_its_file_was_replaced() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let (store, path) = (sqlite(directory.path()), directory.path().join("hapax.db"));
    let gateway = Gateway::start(api.address, &store, &["--lease", "1s"]).await;
    assert_eq!(gateway.post("/charges", "key-1", "{}").await.unwrap().status, 201);
    // One request runs while the file is replaced. Its answer waits in the journal.
    let (running, ()) = tokio::join!(gateway.post("/slow", "slow-key", "{}"), async {
        api.wait_for_requests(2).await;
        replace(&path);
        api.release_slow();
    });
    let running = running.unwrap();
    assert_eq!((running.status.as_u16(), &running.headers["hapax-recorded"]), (201, &"pending".parse().unwrap()));
    let refused = gateway.post("/charges", "key-2", "{}").await.unwrap();
    assert_eq!((refused.status.as_u16(), refused.problem()), (503, "store-unavailable"), "{}", refused.body);
    assert_eq!(api.count(), 2, "the refused request did not run");
    let ready = gateway.get(gateway.admin, "/readyz").await.unwrap();
    assert!(ready.status == 503 && ready.body.contains("hapax.db was replaced by another file"), "{}", ready.body);
    let page = gateway.get(gateway.admin, "/metrics").await.unwrap().body;
    assert!(page.contains("hapax_store_findings{severity=\"refuse\"} 1\n"), "{page}");
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    let remedy = format!("stop the process, remove {0}-wal and {0}-shm of the old file", path.display());
    assert!(logs.contains("the store should no longer be used") && logs.contains(&remedy), "{logs}");

    let gateway = Gateway::start(api.address, &store, &["--lease", "1s"]).await;
    assert!(gateway.post("/charges", "key-1", "{}").await.unwrap().is_replayed());
    until("the answer of the journal is recorded", async || {
        gateway.post("/slow", "slow-key", "{}").await.is_some_and(|got| got.is_replayed())
    })
    .await;
    assert_eq!(gateway.post("/charges", "key-2", "{}").await.unwrap().body, "answer 3");
}

/// As before a restore with `cp`, or by mistake. What is only in the removed log can be saved as long as the gateway
/// runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_confirms_nothing_after_its_log_was_removed_and_says_how_to_save_it() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let (store, path) = (sqlite(directory.path()), directory.path().join("hapax.db"));
    let gateway = Gateway::start(api.address, &store, &["--lease", "1s"]).await;
    assert_eq!(gateway.post("/charges", "key-1", "{}").await.unwrap().status, 201);
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", path.display())).unwrap();
    }
    let refused = gateway.post("/charges", "key-2", "{}").await.unwrap();
    assert_eq!((refused.status.as_u16(), refused.problem()), (503, "store-unavailable"), "{}", refused.body);
    let told = gateway.get(gateway.admin, "/readyz").await.unwrap();
    let lost = format!("{}-wal was removed or replaced", path.display());
    assert!(told.status == 503 && told.body.contains(&lost), "{}", told.body);
    let copy = told.body.split_once("copy ").and_then(|(_, rest)| rest.split_once("; then")).unwrap().0;
    let (from, to) = copy.split_once(" to ").unwrap();
    std::fs::copy(from, to).unwrap();
    gateway.terminate();
    gateway.wait_for_exit();

    let gateway = Gateway::start(api.address, &store, &["--lease", "1s"]).await;
    assert!(gateway.post("/charges", "key-1", "{}").await.unwrap().is_replayed());
    assert_eq!(gateway.post("/charges", "key-2", "{}").await.unwrap().body, "answer 2");
}

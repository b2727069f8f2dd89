//! A journal carries the place of its store: its answers are recorded there, and in another store only by command.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::harness::{Api, Gateway, hapax, sqlite, until};
use crate::lifecycle::lock_database;

/// Leaves two answers in the journal of a gateway that was killed, `key-1` with the body "answer 1" and `key-2`.
async fn leave_two_answers(api: &Api, store: &Path, flags: &[&str]) {
    let mut gateway = Gateway::start(api.address, &sqlite(store), flags).await;
    let outage = async {
        api.wait_for_requests(2).await;
        let lock = lock_database(store);
        api.release_slow();
        api.release_slow();
        lock
    };
    let (first, second, lock) =
        tokio::join!(gateway.post("/slow", "key-1", "{}"), gateway.post("/slow", "key-2", "{}"), outage);
    for answer in [first, second] {
        assert_eq!(answer.unwrap().headers["hapax-recorded"], "pending");
    }
    gateway.kill();
    drop(lock);
}

async fn metric(gateway: &Gateway, series: &str) -> String {
    // Readiness looks at the journal again.
    assert_eq!(gateway.get(gateway.admin, "/readyz").await.unwrap().status, 200);
    let page = gateway.get(gateway.admin, "/metrics").await.unwrap().body;
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_default().to_owned()
}

fn adopt(data_dir: &str, from: &str, store: &str) -> Output {
    hapax().args(["journal", "adopt", "--data-dir", data_dir, "--from", from, "--store", store]).output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answers_of_another_store_are_left_alone_and_adopted_by_a_command_that_names_both() {
    let (api, one, two) = (Api::start().await, tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (journal, from, store) = (tempfile::tempdir().unwrap(), sqlite(one.path()), sqlite(two.path()));
    let data_dir = journal.path().to_str().unwrap();
    let flags = ["--lease", "1s", "--data-dir", data_dir];
    leave_two_answers(&api, one.path(), &flags).await;
    let left = fs::read_dir(data_dir).unwrap().count();

    let gateway = Gateway::start(api.address, &store, &flags).await;
    assert_eq!(metric(&gateway, "hapax_journal_foreign").await, "2");
    assert_eq!(metric(&gateway, "hapax_store_findings{severity=\"warn\"}").await, "1");
    api.release_slow();
    let got = gateway.post("/slow", "key-1", "{}").await.unwrap();
    assert!(got.status == 201 && !got.is_replayed() && got.body == "answer 3", "it never ran here: {}", got.body);

    for (from, store) in [(&store, &store), (&from, &"memory:".to_owned())] {
        let refused = adopt(data_dir, from, store);
        assert!(!refused.status.success(), "{refused:?}");
    }
    assert_eq!(metric(&gateway, "hapax_journal_foreign").await, "2");
    // The command takes one answer, and no other one in place of what is recorded.
    for told in ["recorded: 1; kept, because the key has another attempt or answer: 1", "recorded: 0; kept, because"] {
        let adopted = adopt(data_dir, &from, &store);
        let printed = String::from_utf8(adopted.stdout).unwrap();
        assert!(adopted.status.code() == Some(1) && printed.contains(told), "{printed}");
        // The gateway has counted the answers of the file at its start.
        assert_eq!(metric(&gateway, "hapax_journal_foreign").await, "2");
    }
    let got = gateway.post("/slow", "key-2", "{}").await.unwrap();
    assert!(got.is_replayed() && got.body.starts_with("answer "), "{}", got.body);
    let got = gateway.post("/slow", "key-1", "{}").await.unwrap();
    assert!(got.is_replayed() && got.body == "answer 3", "its own answer stands: {}", got.body);
    assert_eq!(api.count(), 3);
    // The kept answer gets where it belongs.
    let adopted = adopt(data_dir, &from, &from);
    assert!(adopted.status.success() && adopted.stdout == b"recorded: 1\n", "{adopted:?}");
    assert_eq!(metric(&gateway, "hapax_journal_foreign").await, "0");
    assert_eq!(fs::read_dir(data_dir).unwrap().count(), left, "the file of the gateway that runs");
    gateway.terminate();
    let (_, logs) = gateway.wait_for_exit();
    let command = format!("hapax journal adopt --data-dir '{data_dir}' --from '{from}' --store '{store}'");
    assert!(logs.contains(&command), "{command}: {logs}");
    let gateway = Gateway::start(api.address, &from, &["--lease", "1s"]).await;
    let got = gateway.post("/slow", "key-1", "{}").await.unwrap();
    assert!(got.is_replayed() && got.body != "answer 3", "{}", got.body);
    assert_eq!(api.count(), 3);
}

/// The journal has what a store needs that has lost everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_lost_its_records_gets_the_answers_of_its_journal() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    leave_two_answers(&api, directory.path(), &["--lease", "1s"]).await;
    for name in ["hapax.db", "hapax.db-wal", "hapax.db-shm"] {
        // Without a process, SQLite has removed the last two.
        let _ = fs::remove_file(directory.path().join(name));
    }
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &["--lease", "1s"]).await;
    until("the journal is empty", async || metric(&gateway, "hapax_spill_depth").await == "0").await;
    let got = gateway.post("/slow", "key-1", "{}").await.unwrap();
    assert!(got.is_replayed() && got.body.starts_with("answer "), "{}", got.body);
    assert_eq!(api.count(), 2);
}

#[cfg(feature = "redis")]
#[test]
fn the_default_directory_is_one_for_each_store() {
    let data_dir = |store: &str| {
        let mut command = hapax();
        command.args(["gateway", "--check", "--upstream", "http://127.0.0.1:9", "--store", store]);
        let output = command.env("HOME", "/home/u").output().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        let line = shown.lines().find_map(|line| line.strip_prefix("data-dir "));
        line.unwrap_or_else(|| panic!("{shown}")).trim().to_owned()
    };
    let one = data_dir("redis://redis.example");
    assert!(one.starts_with("/home/u/.local/state/hapax/redis-redis.example-6379-0-"), "{one}");
    assert_eq!(one, data_dir("redis://user:secret@redis.example:6379/0"));
    for other in ["redis://redis.example/1", "redis://other.example", "redis://redis.example:6380"] {
        assert_ne!(one, data_dir(other), "{other}");
    }
}

//! A full disk and a read-only disk: real file systems, each in its own mount namespace.

#![cfg(target_os = "linux")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use hapax_core::machine::{Claim, Complete, Completed, Grant};
use hapax_core::runtime::{Tokio, timeout};
use hapax_core::store::{Inserted, Inspect};
use hapax_core::{Error, ErrorKind, Seconds, Store, Timestamp};
use hapax_stores::Sqlite;

use crate::sqlite::{begin, open};

/// Holds the mount point when the test runs again on its disk.
const DISK: &str = "HAPAX_TEST_DISK";

/// Returns the disk if the test runs on one. Otherwise mounts a disk, runs the test again on it, and returns `None`.
fn run_on_disk(size: &str, test: &str) -> Option<PathBuf> {
    // A mount namespace belongs to a process, so the test needs a process of its own.
    if let Some(disk) = env::var_os(DISK) {
        return Some(disk.into());
    }
    let directory = tempfile::tempdir().unwrap();
    // Only root may mount, and in a new user namespace every user is root.
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
        .arg("mount -t tmpfs -o size=\"$0\" none \"$1\" && exec \"$2\" --exact \"$3\" --nocapture")
        .args([size.as_ref(), directory.path().as_os_str(), env::current_exe().unwrap().as_os_str(), test.as_ref()])
        .env(DISK, directory.path())
        .output()
        .expect("unshare, of util-linux, is needed to mount a small disk");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "on the disk: {text}{errors}");
    None
}

async fn complete(store: &Sqlite, grant: &Grant) -> Result<Completed, Error> {
    let ask = Complete {
        claim: Claim::from(grant),
        fingerprint: grant.fingerprint,
        answer: "the answer".into(),
        retention: Seconds(3600),
        ended: Timestamp(0),
        age: Duration::ZERO,
    };
    store.complete(&grant.rk, &ask).await
}

/// Begins until the disk is full. Returns the grants, and the number of the key that was refused.
async fn fill(store: &Sqlite) -> (Vec<Grant>, u32) {
    let mut grants = Vec::new();
    for key in 0..100_000 {
        match store.begin(&begin(key)).await {
            Ok(Inserted::Granted(grant)) => grants.push(grant),
            Ok(Inserted::Found(seen)) => panic!("key {key} was never begun, but has a record: {seen:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error:?}");
                return (grants, key);
            }
        }
    }
    panic!("the disk did not fill up");
}

#[tokio::test]
async fn a_full_disk_is_reported_loses_nothing_and_works_again_once_there_is_room() {
    let name = "disk::a_full_disk_is_reported_loses_nothing_and_works_again_once_there_is_room";
    let Some(disk) = run_on_disk("3m", name) else { return };
    // Removing this file later makes room on the full disk.
    let ballast = disk.join("ballast");
    fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let store = open(&disk.join("hapax.db")).unwrap();
    let (grants, refused) = fill(&store).await;
    let mut refused_completions = 0;
    for grant in &grants {
        if let Err(error) = complete(&store, grant).await {
            assert_eq!(error.kind(), ErrorKind::Full, "{error:?}");
            refused_completions += 1;
        }
    }
    assert!(refused_completions > 0, "the disk had room for all {} answers", grants.len());

    fs::remove_file(&ballast).unwrap();
    for grant in &grants {
        let completed = complete(&store, grant).await.unwrap();
        assert!(matches!(completed, Completed::Done | Completed::Already), "{completed:?}");
    }
    assert!(
        matches!(store.begin(&begin(refused)).await.unwrap(), Inserted::Granted(_)),
        "the refused begin was not applied"
    );
    for grant in &grants {
        let seen = store.read(&grant.rk).await.unwrap();
        assert_eq!(seen.live().expect("each granted record exists").token, grant.token);
    }
    assert_eq!(store.check().await.unwrap(), []);
}

#[tokio::test]
async fn a_read_only_disk_is_refused_with_a_remedy() {
    let name = "disk::a_read_only_disk_is_refused_with_a_remedy";
    let Some(disk) = run_on_disk("3m", name) else { return };
    let path = disk.join("hapax.db");
    drop(open(&path).unwrap());
    wait_until_closed(&path).await;
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(&disk).status().unwrap();
    assert!(remounted.success());
    let error = Sqlite::open(&path).expect_err("the disk is read-only");
    assert_eq!(error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains("cannot be"), "{error}");
}

/// Waits until the store's threads have closed the file: the last one deletes the log.
pub(crate) async fn wait_until_closed(path: &Path) {
    let log = path.with_file_name("hapax.db-wal");
    let closed = async {
        while log.exists() {
            hapax_testkit::pause().await;
        }
    };
    timeout(&Tokio::current(), Duration::from_secs(60), closed).await.expect("the file is closed");
}

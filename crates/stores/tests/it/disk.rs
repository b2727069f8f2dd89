//! A disk that is full, and one that cannot be written: real file systems, each in a mount namespace of its own.

#![cfg(target_os = "linux")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::machine::{Claim, Complete, Completed, Grant};
use hapax_core::runtime::Tokio;
use hapax_core::store::{Inserted, Inspect};
use hapax_core::{Error, ErrorKind, Seconds, Store};
use hapax_stores::Sqlite;

use crate::sqlite::{begin, open};

/// Where the test finds its disk when it is run again on one.
const DISK: &str = "HAPAX_TEST_DISK";

/// The disk of this test; nothing at its first run, which ends when the second one on the disk has passed.
fn on_a_disk_of(size: &str, test: &str) -> Option<PathBuf> {
    if let Some(disk) = env::var_os(DISK) {
        return Some(disk.into());
    }
    let directory = tempfile::tempdir().unwrap();
    // Only root may mount; in a user namespace of its own anybody is.
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
        .arg("mount -t tmpfs -o size=\"$0\" none \"$1\" && exec \"$2\" --exact \"$3\" --nocapture")
        .args([size.as_ref(), directory.path().as_os_str(), env::current_exe().unwrap().as_os_str(), test.as_ref()])
        .env(DISK, directory.path())
        .output()
        .expect("unshare, of util-linux, is needed to mount a small disk");
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && told.contains("1 passed"), "on the disk: {told}{errors}");
    None
}

async fn complete(store: &Sqlite, grant: &Grant) -> Result<Completed, Error> {
    let ask = Complete {
        claim: Claim::from(grant),
        fingerprint: grant.fingerprint,
        answer: "the answer".into(),
        retention: Seconds(3600),
        age: Duration::ZERO,
    };
    store.complete(&grant.rk, &ask).await
}

/// Begins until the disk takes no more; the grants so far, and the number of the key that was refused.
async fn fill(store: &Sqlite) -> (Vec<Grant>, u32) {
    let mut grants = Vec::new();
    for key in 0..100_000 {
        match store.begin(&begin(key)).await {
            Ok(Inserted::Granted(grant)) => grants.push(grant),
            Ok(Inserted::Found(seen)) => panic!("key {key} is new, and yet: {seen:?}"),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Full | ErrorKind::Unknown), "{error:?}");
                return (grants, key);
            }
        }
    }
    panic!("the disk is never full");
}

#[tokio::test]
async fn what_a_full_disk_took_stays_and_service_goes_on_when_there_is_room() {
    let name = "disk::what_a_full_disk_took_stays_and_service_goes_on_when_there_is_room";
    let Some(disk) = on_a_disk_of("3m", name) else { return };
    let ballast = disk.join("ballast");
    fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let store = open(&disk.join("hapax.db")).unwrap();
    let (grants, refused) = fill(&store).await;
    let mut kept_out = 0;
    for grant in &grants {
        kept_out += usize::from(complete(&store, grant).await.is_err());
    }
    assert!(kept_out > 0, "there was room for {} answers", grants.len());

    fs::remove_file(&ballast).unwrap();
    for grant in &grants {
        let completed = complete(&store, grant).await.unwrap();
        assert!(matches!(completed, Completed::Done | Completed::Already), "{completed:?}");
    }
    assert!(matches!(store.begin(&begin(refused)).await.unwrap(), Inserted::Granted(_)), "it was not applied");
    for grant in &grants {
        let seen = store.read(&grant.rk).await.unwrap();
        assert_eq!(seen.live().expect("what was granted is there").token, grant.token);
    }
    assert_eq!(store.check().await.unwrap(), []);
}

#[tokio::test]
async fn a_disk_that_cannot_be_written_is_refused_with_the_remedy() {
    let name = "disk::a_disk_that_cannot_be_written_is_refused_with_the_remedy";
    let Some(disk) = on_a_disk_of("3m", name) else { return };
    let path = disk.join("hapax.db");
    drop(open(&path).unwrap());
    released(&path).await;
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(&disk).status().unwrap();
    assert!(remounted.success());
    let error = Sqlite::open(&path, Arc::new(Tokio::current())).expect_err("it cannot be written");
    assert_eq!(error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains("cannot be"), "{error}");
}

/// Waits until the store's threads have let go of the file: the last one takes the log with it.
async fn released(path: &Path) {
    let log = path.with_file_name("hapax.db-wal");
    for _ in 0..100_000 {
        if !log.exists() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the file is never let go");
}

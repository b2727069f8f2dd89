//! A server whose disk is full: a small file system in memory, in a mount namespace.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use hapax_core::machine::Begun;
use hapax_core::{ErrorKind, Store};
use libtest_mimic::Trial;

use super::{POSTGRES, start, store};
use crate::grant_audit::GrantAudit;
use crate::support::{Operation, SECOND, test};

pub(super) fn tests() -> Vec<Trial> {
    vec![test("a_full_disk_loses_nothing", POSTGRES, full)]
}

/// The folder of the server's data, if the test runs on a disk of its own.
const DISK: &str = "HAPAX_TEST_DISK";

/// Runs the test again on a small disk, and as a user other than root, because PostgreSQL refuses to run as root.
fn run_on_small_disk(test: &str) {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
        .arg(
            "mount -t tmpfs -o size=160m none \"$0\" \
             && exec unshare --user --map-user=1000 --map-group=1000 \"$1\" --exact \"$2\" --nocapture",
        )
        .args([folder.path().as_os_str(), env::current_exe().unwrap().as_os_str(), test.as_ref()])
        .env(DISK, folder.path())
        .env("TMPDIR", folder.path())
        .output()
        .expect("unshare, of util-linux, is needed to mount a small disk");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "on the disk: {text}{errors}");
}

async fn full() {
    let Some(disk) = env::var_os(DISK).map(PathBuf::from) else {
        return run_on_small_disk("postgres::a_full_disk_loses_nothing");
    };
    let server = start().await;
    let store = store(&server.url());
    let audit = GrantAudit::new(Arc::clone(&store) as Arc<dyn Store>, 100);
    assert_eq!(audit.race(true).await, 100);
    let ballast = disk.join("ballast");
    let filled = fs::write(&ballast, vec![1; 160 << 20]).unwrap_err();
    assert_eq!(filled.kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(fill(&*store).await, ErrorKind::Full);
    audit.assert_answers_stand().await;
    fs::remove_file(&ballast).unwrap();
    let begun = Operation::new("one more").begin(&*store, SECOND).await;
    assert!(matches!(begun, Ok(Begun::Granted(_))), "{begun:?}");
    assert_eq!(audit.race(true).await, 0, "these keys have answers");
}

/// Begins new keys until one is refused.
async fn fill(store: &dyn Store) -> ErrorKind {
    for key in 0..100_000 {
        let operation = Operation::new(&format!("filler {key}"));
        if let Err(error) = operation.begin(store, SECOND).await {
            return error.kind();
        }
    }
    panic!("the disk did not fill up");
}

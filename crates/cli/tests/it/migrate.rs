//! `hapax migrate` on SQLite files, and its errors.

use std::path::Path;
use std::process::Output;

use crate::harness::hapax;

fn migrate(arguments: &[&str]) -> Output {
    hapax().arg("migrate").args(arguments).output().unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn url(file: &Path) -> String {
    format!("sqlite://{}", file.display())
}

#[test]
fn a_missing_file_is_created_and_a_second_run_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.db");
    let database = ["--database", &url(&file)];
    let check = || migrate(&[database[0], database[1], "--check"]);
    let before = check();
    assert_eq!((before.status.code(), &*printed(&before)), (Some(1), MISSING));
    assert!(!file.exists(), "a check creates no file");

    let first = migrate(&database);
    assert_eq!((first.status.code(), &*printed(&first)), (Some(0), "applied: versions 1, 2, 3, 4, 5\n"));
    let second = migrate(&database);
    assert_eq!((second.status.code(), &*printed(&second)), (Some(0), NOTHING));
    assert_eq!(check().status.code(), Some(0));
}

const MISSING: &str = "missing: versions 1, 2, 3, 4, 5; run `hapax migrate` without --check\n";
const NOTHING: &str = "nothing to do: the tables are there, in the newest version\n";

#[test]
fn the_printed_script_is_what_is_missing_and_nothing_is_changed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.db");
    let output = migrate(&["--database", &url(&file), "--print"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(!file.exists(), "printing creates no file");

    let database = rusqlite::Connection::open(&file).unwrap();
    database.execute_batch(&printed(&output)).unwrap();
    drop(database);
    let check = migrate(&["--database", &url(&file), "--check"]);
    assert_eq!(check.status.code(), Some(0), "{}", printed(&check));
    let nothing = migrate(&["--database", &url(&file), "--print"]);
    assert!(!printed(&nothing).contains("create"), "{}", printed(&nothing));
}

#[test]
fn wrong_urls_are_2_and_a_server_that_cannot_be_reached_is_3() {
    for wrong in ["shop.db", "redis://localhost", "memory:", "mysql://localhost/shop"] {
        let output = migrate(&["--database", wrong]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{wrong}: {error}");
        assert!(error.contains("--database takes sqlite://PATH, postgres://HOST/DATABASE"), "{error}");
    }
    let output = migrate(&["--database", "postgres://shop:hush-hush@127.0.0.1:1/shop"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(!error.contains("hush-hush"), "{error}");
}

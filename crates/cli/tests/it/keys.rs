//! `hapax keys` on an SQLite file, and its errors.

use hapax::stores::Sqlite;

use crate::harness::{hapax, sqlite};
use crate::keys_commands::{
    Planted, changes_each_state_as_the_protocol_allows, drill, keys, lists_more_than_a_page, plant,
};

#[tokio::test(flavor = "multi_thread")]
async fn each_state_allows_what_the_protocol_says() {
    let directory = tempfile::tempdir().unwrap();
    let store = Sqlite::open(directory.path().join("hapax.db")).unwrap();
    changes_each_state_as_the_protocol_allows(&store, &sqlite(directory.path()), directory.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_longer_than_a_page_is_printed_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let store = Sqlite::open(directory.path().join("hapax.db")).unwrap();
    lists_more_than_a_page(&store, &sqlite(directory.path())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_outcomes_of_a_killed_gateway_are_resolved_by_an_operator() {
    let directory = tempfile::tempdir().unwrap();
    drill(&sqlite(directory.path()), directory.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_gets_a_table_and_both_states_of_a_write() {
    let directory = tempfile::tempdir().unwrap();
    let (path, url) = (directory.path().join("hapax.db"), sqlite(directory.path()));
    let rk = plant(&Sqlite::open(&path).unwrap(), "order", Planted::Abandoned).await.to_string();
    let run = |arguments: &[&str]| {
        let output = hapax().arg("keys").args(arguments).args(["--store", &url]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let table = run(&["list"]);
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("RECORD KEY") && lines[1].starts_with(&rk), "{table}");
    assert!(lines[1].contains("unknown") && lines.len() == 2, "{table}");
    let token = keys(&["show", &rk, "--store", &url]).1[0]["token"].to_string();
    let written = run(&["release", &rk, "--token", &token]);
    assert!(written.contains("before: unknown, token") && written.contains("after:  released"), "{written}");
    // Beside the file, where the gateway on it would write.
    assert!(directory.path().join("hapax.db.spill/audit.jsonl").exists());
    // What cannot be noted does not happen.
    let token = keys(&["show", &rk, "--store", &url]).1[0]["token"].to_string();
    let place = ["--store", &url, "--audit-file", "/dev/full"];
    let (code, _, error) = keys(&[&["purge", &rk, "--token", &token], &place[..]].concat());
    assert!(code == 3 && error.contains("nothing is written"), "{code} {error}");
    assert_eq!(keys(&["show", &rk, "--store", &url]).1[0]["state"], "released");
}

#[test]
fn wrong_usage_is_2_and_a_place_that_cannot_be_reached_is_3() {
    let rk = "0123456789abcdef0123456789abcdef";
    let nowhere = "http://127.0.0.1:1";
    for (arguments, code, message) in [
        (&["list"][..], 2, "--admin URL or --store URL"),
        (&["list", "--store", "memory:"], 2, "memory:"),
        (&["list", "--store", "mysql://localhost"], 2, "--store takes"),
        (&["list", "--admin", nowhere, "--state", "odd"], 2, "odd"),
        (&["list", "--admin", nowhere, "--operation", "7"], 2, "UUID"),
        (&["list", "--admin", "ftp://127.0.0.1"], 2, "--admin takes"),
        (&["show", "xyz", "--admin", nowhere], 2, "32 lower-case"),
        (&["show", "--admin", nowhere], 2, "required"),
        (&["release", rk, "--admin", nowhere], 2, "add --token N"),
        (&["release", "--admin", nowhere], 2, "required"),
        (&["release", rk, "--token", "1", "--state", "dead", "--admin", nowhere], 2, "RK is one"),
        (&["resolve", rk, "--token", "1", "--admin", nowhere], 2, "<--done|--not-done>"),
        (&["resolve", rk, "--token", "1", "--done", "--admin", nowhere], 2, "--status"),
        (&["resolve", rk, "--token", "1", "--done", "--not-done", "--admin", nowhere], 2, "cannot be used with"),
        (&["list", "--admin", nowhere], 3, "cannot be asked"),
        (&["list", "--store", "sqlite:///tmp/hapax/there/is/no/such.db"], 3, "does not exist"),
        (&["list", "--store", "redis://:hush-hush@127.0.0.1:1"], 3, "redis://127.0.0.1:1"),
    ] {
        let (found, _, error) = keys(arguments);
        assert!(found == code && error.contains(message), "{arguments:?}: {found} {error}");
        assert!(!error.contains("hush-hush"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_that_a_refusal_names_works_as_it_is_printed() {
    let directory = tempfile::tempdir().unwrap();
    let (path, url) = (directory.path().join("hapax.db"), sqlite(directory.path()));
    let rk = plant(&Sqlite::open(&path).unwrap(), "order", Planted::Abandoned).await.to_string();
    let token = keys(&["show", &rk, "--store", &url]).1[0]["token"].to_string();
    let audit = directory.path().join("the operator's file");
    let place = ["--store", &url, "--namespace", "shop", "--audit-file", audit.to_str().unwrap()];
    let refused = keys(&[&["purge", &rk, "--token", &token], &place[..]].concat());
    let command = refused.2.split_once("; run: hapax ").unwrap().1.trim_end();
    assert!(command.contains("--namespace shop"), "{command}");
    let script = format!("exec '{}' {command}", hapax().get_program().display());
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    assert_eq!(keys(&["show", &rk, "--store", &url]).0, 1, "the record is purged");
    assert!(std::fs::read_to_string(&audit).unwrap().contains("\"result\":\"done\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_found_by_what_the_log_prints_of_its_key_and_by_its_operation() {
    let directory = tempfile::tempdir().unwrap();
    let (path, url) = (directory.path().join("hapax.db"), sqlite(directory.path()));
    let store = Sqlite::open(&path).unwrap();
    let rk = plant(&store, "order", Planted::Abandoned).await.to_string();
    plant(&store, "other", Planted::Completed).await;
    let show = |name: &str| keys(&["show", name, "--store", &url]);
    let operation = show(&rk).1[0]["operation"].as_str().unwrap().to_owned();
    for name in [&rk[..8], &rk[..20], &operation] {
        let (code, shown, error) = show(name);
        assert_eq!((code, shown.first().map(|record| record["rk"].clone())), (0, Some(rk.clone().into())), "{error}");
    }
    for (name, code, told) in [
        (&rk[..7], 2, "8 or more"),
        ("00000000", 1, "no record"),
        ("00000000-0000-8000-8000-000000000000", 1, "no record"),
    ] {
        let (found, _, error) = show(name);
        assert!(found == code && error.contains(told), "{name}: {found} {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_file_in_use_has_its_records_and_replaces_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let (path, url) = (directory.path().join("hapax.db"), sqlite(directory.path()));
    let store = Sqlite::open(&path).unwrap();
    let rk = plant(&store, "order", Planted::Completed).await.to_string();
    let copy = directory.path().join("copy.db");
    let backup = |store: &str| hapax().args(["backup", "--store", store, "--to"]).arg(&copy).output().unwrap();
    assert!(backup(&url).status.success());
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&copy).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let later = plant(&store, "later", Planted::Completed).await.to_string();
    let of_copy = format!("sqlite://{}", copy.display());
    assert_eq!(keys(&["show", &rk, "--store", &of_copy]).1[0]["state"], "completed");
    assert_eq!(keys(&["show", &later, "--store", &of_copy]).0, 1);
    let parts = std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name());
    assert_eq!(parts.filter(|name| name.to_string_lossy().ends_with(".part")).count(), 0);
    // SQLite would write under another name, and leave an empty file under this one.
    let strange = directory.path().join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"copy-\xff.db"));
    let refused = hapax().args(["backup", "--store", &url, "--to"]).arg(&strange).output().unwrap();
    assert!(refused.status.code() == Some(3) && !strange.exists(), "{}", String::from_utf8_lossy(&refused.stderr));
    for (store, code, told) in [
        (&*url, 3, "copy.db"),
        ("sqlite:///tmp/hapax/there/is/no/such.db", 3, "does not exist"),
        ("redis://127.0.0.1:1", 2, "use the tools of its server"),
    ] {
        let refused = backup(store);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(code) && error.contains(told), "{store}: {error}");
    }
}

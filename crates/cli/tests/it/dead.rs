//! `hapax dead` on an SQLite file, and its errors.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use hapax::broker::{DeadLetterStore, DeadLetters, DeadReason};
use hapax::runtime::{Runtime, Tokio};
use hapax::stores::SqliteDeadLetters;
use serde_json::json;
use tempfile::TempDir;

use crate::dead_letters::{SOURCE, id, letter, objects};
use crate::harness::hapax;

/// A file with letters of these reasons.
async fn file(reasons: impl IntoIterator<Item = DeadReason>) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dead.db");
    let letters = SqliteDeadLetters::open(&path).unwrap();
    let all = (1..).zip(reasons).map(|(n, reason)| letter(n, reason));
    letters.put(all.collect()).await.into_iter().for_each(|result| result.unwrap());
    (directory, path)
}

fn dead(path: &Path, arguments: &[&str]) -> Output {
    hapax().arg("dead").args(arguments).args(["--store", &format!("sqlite://{}", path.display())]).output().unwrap()
}

/// Runs `redrive` or `drop` on one letter, as `show` prints it.
fn write(path: &Path, verb: &str, id: &str, more: &[&str]) -> Output {
    let shown = objects(&printed(&dead(path, &["show", id, "--json"])));
    dead(path, &[&[verb, id, "--seen", shown[0]["seen"].as_str().unwrap()], more].concat())
}

fn printed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[tokio::test]
async fn a_list_has_a_line_for_each_letter_and_no_payload() {
    let (_directory, path) = file([DeadReason::AttemptsExhausted, DeadReason::KeyMissing]).await;
    let text = printed(&dead(&path, &["list"]));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    for word in ["2023-11-14T22:13:21.123Z", &id(1), "attempts-exhausted", "8 attempts", SOURCE] {
        assert!(lines[0].contains(word), "{word}: {text}");
    }
    assert!(lines[1].contains("key-missing"), "{text}");
    let json = printed(&dead(&path, &["list", "--json"]));
    let first = &objects(&json)[0];
    assert_eq!((&first["id"], &first["reason"]), (&json!(id(1)), &json!("attempts-exhausted")));
    assert_eq!((&first["attempts"], &first["source"]), (&json!(8), &json!(SOURCE)));
    assert_eq!((&first["time"], &first["payload_bytes"]), (&json!("2023-11-14T22:13:21.123Z"), &json!(10)));
    assert!(!(text + &json).contains("secret"), "{json}");
}

#[tokio::test]
async fn a_list_longer_than_a_page_is_printed_as_a_whole_and_can_be_cut() {
    let (_directory, path) = file([DeadReason::Rejected; 250]).await;
    assert_eq!(printed(&dead(&path, &["list"])).lines().count(), 250);
    let cut = dead(&path, &["list", "--limit", "3"]);
    assert_eq!(printed(&cut).lines().count(), 3);
    let hint = String::from_utf8(cut.stderr).unwrap();
    let cursor = hint.trim().strip_prefix("there may be more: --after ").expect(&hint).to_owned();
    let rest = objects(&printed(&dead(&path, &["list", "--json", "--after", &cursor])));
    assert_eq!((rest.len(), &rest[0]["id"]), (247, &json!(id(4))));
    let two = objects(&printed(&dead(&path, &["list", "--json", "--limit", "2"])));
    let after = two[1]["cursor"].as_str().unwrap();
    let third = objects(&printed(&dead(&path, &["list", "--json", "--limit", "1", "--after", after])));
    assert_eq!(third[0]["id"], json!(id(3)));
}

#[tokio::test]
async fn a_letter_shows_its_headers_and_its_payload_on_request() {
    let (_directory, path) = file([DeadReason::OutcomeUnknown]).await;
    let text = printed(&dead(&path, &["show", &id(1)]));
    assert!(text.contains("reason: outcome-unknown") && text.contains(r#"["Idempotency-Key","order-1"]"#), "{text}");
    assert!(text.contains("cause: the target answered 503 Service Unavailable"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    assert!(printed(&dead(&path, &["show", &id(1), "--payload"])).contains("payload: top secret"));
    let shown = objects(&printed(&dead(&path, &["show", &id(1), "--payload", "--json"])));
    assert_eq!((shown.len(), &shown[0]["payload"]), (1, &json!("top secret")));
    assert_eq!(shown[0]["headers"][1], json!(["binary", { "hex": "ff01" }]));
    assert_eq!(dead(&path, &["show", &id(9)]).status.code(), Some(1), "there is no such letter");
}

#[tokio::test]
async fn a_redrive_marks_letters_for_the_worker_of_their_source() {
    use DeadReason::{AttemptsExhausted, KeyMissing};
    let (_directory, path) = file([AttemptsExhausted, KeyMissing, AttemptsExhausted, AttemptsExhausted]).await;
    let one = write(&path, "redrive", &id(1), &["--json"]);
    assert_eq!(objects(&printed(&one)), [json!({ "id": id(1), "marked": true })]);
    assert_eq!(printed(&write(&path, "redrive", &id(2), &[])), format!("marked: {}\n", id(2)));
    let absent = dead(&path, &["redrive", &id(9), "--seen", "1", "--json"]);
    assert_eq!(absent.status.code(), Some(1), "{absent:?}");
    assert!(String::from_utf8_lossy(&absent.stderr).contains("1 of 1 dead letters were not marked"), "{absent:?}");
    let line = objects(&String::from_utf8(absent.stdout).unwrap());
    assert_eq!(line, [json!({ "id": id(9), "marked": false, "error": "not-found" })]);
    let letters = SqliteDeadLetters::open(&path).unwrap();
    let hour = std::time::Duration::from_secs(3600);
    let taken = letters.take_marked(SOURCE, 10, hour).await.unwrap();
    assert_eq!(taken.iter().map(|marked| marked.letter.id.to_string()).collect::<Vec<_>>(), [id(1), id(2)]);
    let all = printed(&dead(&path, &["redrive", "--all", "--reason", "attempts-exhausted", "--source", SOURCE]));
    assert_eq!(all, format!("marked: {}\nmarked: {}\nmarked: {}\n", id(1), id(3), id(4)));
    assert_eq!(letters.take_marked(SOURCE, 10, hour).await.unwrap().len(), 2);
    assert!(printed(&dead(&path, &["list"])).lines().all(|line| line.ends_with("marked for a redrive")));
}

#[tokio::test]
async fn a_letter_whose_message_cannot_be_read_takes_no_word_that_it_was_processed() {
    let (_directory, path) = file([DeadReason::Unreadable, DeadReason::Rejected]).await;
    let refused = write(&path, "redrive", &id(1), &["--done"]);
    let told = String::from_utf8(refused.stdout).unwrap();
    assert!(refused.status.code() == Some(1) && told.contains("drop the letter, or redrive it without"), "{told}");
    let all = dead(&path, &["redrive", "--all", "--done", "--yes", "--json"]);
    assert_eq!(all.status.code(), Some(1), "{all:?}");
    let lines = objects(&String::from_utf8(all.stdout).unwrap());
    let unreadable = json!({ "id": id(1), "marked": false, "error": "unreadable" });
    assert_eq!(lines, [unreadable, json!({ "id": id(2), "marked": true })]);
    assert_eq!(printed(&write(&path, "redrive", &id(1), &[])), format!("marked: {}\n", id(1)));
}

#[tokio::test]
async fn a_redrive_with_the_word_of_an_operator_may_be_repeated() {
    use DeadReason::{OutcomeUnknown, Rejected};
    let (_directory, path) = file([OutcomeUnknown, Rejected]).await;
    let redrive = || {
        let marked = printed(&dead(&path, &["redrive", "--not-done", "--all", "--yes"]));
        assert_eq!(marked, format!("marked: {}\nmarked: {}\n", id(1), id(2)));
        objects(&printed(&dead(&path, &["list", "--json"])))
    };
    let first = redrive();
    let reasons: Vec<_> = first.iter().map(|letter| (&letter["id"], &letter["reason"])).collect();
    assert_eq!(reasons, [(&json!(id(1)), &json!("not-done")), (&json!(id(2)), &json!("rejected"))]);
    assert!(first[0]["redrive_at"].is_string(), "{first:?}");
    assert_eq!(redrive(), first);
}

#[tokio::test]
async fn a_letter_that_this_release_does_not_know_is_listed_and_a_redrive_of_all_passes_over_it() {
    let (_directory, path) = file([DeadReason::Rejected; 3]).await;
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute("update hapax_dead set reason = 'melted' where number = 2", []).unwrap();
    let text = printed(&dead(&path, &["list"]));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[1].contains(&id(2)) && lines[1].contains("melted") && lines[1].contains("8 attempts"), "{text}");
    assert!(!printed(&dead(&path, &["list", "--reason", "rejected"])).contains("melted"));
    let all = dead(&path, &["redrive", "--all", "--json"]);
    assert_eq!(all.status.code(), Some(1), "{all:?}");
    assert!(String::from_utf8_lossy(&all.stderr).contains("1 of 3 dead letters are passed over"), "{all:?}");
    let lines = objects(&String::from_utf8(all.stdout).unwrap());
    let (first, third) = (json!({ "id": id(1), "marked": true }), json!({ "id": id(3), "marked": true }));
    assert_eq!(lines, [json!({ "id": id(2), "marked": false, "reason": "melted" }), first, third]);
    let marked = printed(&dead(&path, &["list"]));
    let is_marked: Vec<_> = marked.lines().map(|line| line.ends_with("marked for a redrive")).collect();
    assert_eq!(is_marked, [true, false, true], "{marked}");
    assert_eq!(dead(&path, &["show", &id(2)]).status.code(), Some(3), "it cannot be decoded");
    let seen = objects(&printed(&dead(&path, &["list", "--json"])))[1]["seen"].as_str().unwrap().to_owned();
    assert_eq!(printed(&dead(&path, &["drop", &id(2), "--seen", &seen])), format!("dropped: {}\n", id(2)));
}

#[tokio::test]
async fn old_letters_are_dropped_and_young_ones_stay() {
    let (_directory, path) = file([DeadReason::Rejected, DeadReason::KeyMissing]).await;
    let letters = SqliteDeadLetters::open(&path).unwrap();
    let young = hapax::broker::DeadLetter { at: Tokio::current().wall_now(), ..letter(3, DeadReason::Rejected) };
    letters.put(vec![young]).await.into_iter().for_each(|result| result.unwrap());
    let old = ["drop", "--all", "--older-than", "90days", "--reason", "rejected"];
    let unsure = dead(&path, &old);
    assert_eq!(unsure.status.code(), Some(2), "{unsure:?}");
    assert!(String::from_utf8_lossy(&unsure.stderr).contains("--dry-run, then add --yes"), "{unsure:?}");
    let planned = printed(&dead(&path, &[&old[..], &["--dry-run"]].concat()));
    assert_eq!(planned, format!("would be dropped: {}  rejected\n", id(1)));
    assert_eq!(printed(&dead(&path, &["list"])).lines().count(), 3, "nothing is dropped");
    let old = [&old[..], &["--yes"]].concat();
    assert_eq!(printed(&dead(&path, &old)), format!("dropped: {}\n", id(1)));
    let left = objects(&printed(&dead(&path, &["list", "--json"])));
    assert_eq!(left.iter().map(|letter| letter["id"].clone()).collect::<Vec<_>>(), [json!(id(2)), json!(id(3))]);
    assert_eq!(dead(&path, &["drop", "--all", "--older-than", "ninety"]).status.code(), Some(2));
    // Beside the file, where a worker on it would write.
    let noted = std::fs::read_to_string(path.with_file_name("dead.db.spill").join("audit.jsonl")).unwrap();
    let events = objects(&noted);
    assert_eq!(events.iter().map(|event| event["result"].clone()).collect::<Vec<_>>(), ["begun", "done"]);
    assert_eq!((&events[1]["action"], &events[1]["dead_letter"]), (&json!("drop"), &json!(id(1))));
}

#[tokio::test]
async fn a_redrive_of_an_unknown_outcome_says_at_once_that_it_needs_a_word() {
    let (_directory, path) = file([DeadReason::OutcomeUnknown, DeadReason::Rejected]).await;
    let needs = |output: &Output| String::from_utf8_lossy(&output.stderr).contains("--not-done or --done");
    let one = write(&path, "redrive", &id(1), &[]);
    assert!(one.status.success() && needs(&one), "{one:?}");
    assert!(!needs(&write(&path, "redrive", &id(2), &[])), "its outcome is known");
    let all = dead(&path, &["redrive", "--all"]);
    assert!(all.status.success() && needs(&all), "{all:?}");
    assert!(!needs(&write(&path, "redrive", &id(1), &["--not-done"])), "the word is given");
    for word in ["--not-done", "--done"] {
        let unsure = dead(&path, &["redrive", "--all", word]);
        assert_eq!(unsure.status.code(), Some(2), "{unsure:?}");
        assert!(dead(&path, &["redrive", "--all", word, "--yes"]).status.success());
    }
}

#[tokio::test]
async fn an_old_word_does_not_count_for_a_newer_attempt() {
    let (_directory, path) = file([DeadReason::OutcomeUnknown]).await;
    let seen = objects(&printed(&dead(&path, &["show", &id(1), "--json"])))[0]["seen"].as_str().unwrap().to_owned();
    let (redrive, drop) = (["redrive", &id(1), "--not-done", "--seen", &seen], ["drop", &id(1), "--seen", &seen]);
    assert_eq!(printed(&dead(&path, &redrive)), format!("marked: {}\n", id(1)));
    // The redriven attempt has an unknown outcome, too.
    let letters = SqliteDeadLetters::open(&path).unwrap();
    assert_eq!(letters.take_marked(SOURCE, 10, std::time::Duration::ZERO).await.unwrap().len(), 1);
    letters.put(vec![letter(1, DeadReason::OutcomeUnknown)]).await.remove(0).unwrap();
    for write in [&redrive[..], &drop] {
        let stale = dead(&path, write);
        assert_eq!(stale.status.code(), Some(1), "{stale:?}");
        assert_eq!(
            String::from_utf8(stale.stdout).unwrap(),
            format!("the letter has changed since it was seen; look at it again: {}\n", id(1))
        );
    }
    let listed = &objects(&printed(&dead(&path, &["list", "--json"])))[0];
    assert_eq!((&listed["reason"], &listed["redrive_at"]), (&json!("outcome-unknown"), &json!(null)));
}

#[tokio::test]
async fn a_letter_in_processing_is_not_dropped_and_one_that_waits_is() {
    let (_directory, path) = file([DeadReason::Rejected]).await;
    printed(&write(&path, "redrive", &id(1), &[]));
    let letters = SqliteDeadLetters::open(&path).unwrap();
    let hour = std::time::Duration::from_secs(3600);
    let begun = humantime::format_rfc3339_millis(std::time::SystemTime::now()).to_string();
    let taken = letters.take_marked(SOURCE, 10, hour).await.unwrap();
    let refused = write(&path, "drop", &id(1), &["--json"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let line = &objects(&String::from_utf8(refused.stdout).unwrap())[0];
    assert_eq!((&line["dropped"], &line["error"]), (&json!(false), &json!("taken")));
    assert!(line["free_at"].as_str().unwrap() > &*begun, "{line}");
    let all = dead(&path, &["drop", "--all", "--yes"]);
    assert!(String::from_utf8(all.stdout).unwrap().starts_with("a worker processes the message"), "{line}");
    letters.postpone(&[taken[0].letter.id], hour).await.unwrap();
    assert_eq!(printed(&write(&path, "drop", &id(1), &[])), format!("dropped: {}\n", id(1)));
}

#[tokio::test]
async fn a_reader_that_ends_early_ends_the_list() {
    let (_directory, path) = file([DeadReason::Rejected; 200]).await;
    let mut list = hapax()
        .args(["dead", "list", "--json", "--database", &format!("sqlite://{}", path.display())])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(list.stdout.take());
    let output = list.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[tokio::test]
async fn wrong_usage_is_2_and_a_place_that_cannot_be_reached_is_3() {
    let (_directory, path) = file([]).await;
    let url = format!("sqlite://{}", path.display());
    let run = |arguments: &[&str]| hapax().arg("dead").args(arguments).output().unwrap();
    for (arguments, code, message) in [
        (&["list"][..], 2, "--store URL or --database URL"),
        (&["list", "--store", &url, "--database", &url], 2, "name one"),
        (&["list", "--store", "memory:"], 2, "memory:"),
        (&["list", "--store", "mysql://localhost"], 2, "--store takes sqlite://PATH"),
        (&["list", "--store", "nats://127.0.0.1:1/dead"], 2, "the broker's own tools"),
        (&["redrive", "--all", "--store", "kafka://me:hush-hush@127.0.0.1:1/dead"], 2, "the broker's own tools"),
        (&["list", "--database", &url, "--reason", "sad"], 2, "the reasons are key-missing"),
        (&["list", "--database", &url, "--after", "yesterday"], 2, "cursor"),
        (&["show", "7", "--database", &url], 2, "UUID"),
        (&["redrive", "--database", &url], 2, "required"),
        (&["redrive", &id(1), "--database", &url], 2, "--seen"),
        (&["drop", &id(1), "--database", &url], 2, "--seen"),
        (&["drop", "--all", "--seen", "1", "--database", &url], 2, "--seen"),
        (&["drop", &id(1), "--seen", "yesterday?", "--database", &url], 2, "`seen`"),
        (&["list", "--store", "sqlite:///tmp/hapax/there/is/no/such.db"], 3, "does not exist"),
        (&["list", "--store", "redis://:hush-hush@127.0.0.1:1"], 3, "hapax"),
        (&["list", "--database", "postgres://shop:hush-hush@127.0.0.1:1/shop"], 3, "postgres://127.0.0.1:1/shop"),
    ] {
        let output = run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(message) && !error.contains("hush-hush"), "{arguments:?}: {error}");
    }
    let other = path.with_file_name("other.db");
    rusqlite::Connection::open(&other).unwrap().execute_batch("create table mine (id integer)").unwrap();
    let before = std::fs::read(&other).unwrap();
    let wrong = run(&["list", "--store", &format!("sqlite://{}", other.display())]);
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(3) && error.contains("no table of dead letters"), "{error}");
    assert!(std::fs::read(&other).unwrap() == before, "nothing is created");
    let empty = run(&["list", "--store", &url]);
    assert_eq!((printed(&empty), empty.stderr), (String::new(), Vec::new()));
}

/// As after a restore, when the letter is written again.
#[tokio::test]
async fn what_was_seen_of_a_letter_does_not_count_for_a_later_one_with_its_number() {
    let (_directory, path) = file([DeadReason::OutcomeUnknown]).await;
    let seen = objects(&printed(&dead(&path, &["show", &id(1), "--json"])))[0]["seen"].as_str().unwrap().to_owned();
    let other = rusqlite::Connection::open(&path).unwrap();
    assert_eq!(other.execute("update hapax_dead set at = at + 1", []).unwrap(), 1);
    for arguments in [&["redrive", &id(1), "--not-done", "--seen", &seen][..], &["drop", &id(1), "--seen", &seen]] {
        let stale = dead(&path, arguments);
        assert_eq!(stale.status.code(), Some(1), "{stale:?}");
        assert!(String::from_utf8(stale.stdout).unwrap().contains("has changed since it was seen"));
    }
}

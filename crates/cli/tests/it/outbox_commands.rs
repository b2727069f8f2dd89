//! What `hapax outbox` does with an outbox of four events, on each database.

use std::process::Output;

use hapax::ledger::Event;
use hapax::outbox::{OpenRow, Outbox, ReadRequest, ReadStart};
use serde_json::{Value, json};

use crate::dead_letters::objects;
use crate::harness::hapax;

/// Two events of one key, one of a key that is no text, and one without a key.
pub(crate) fn events() -> [Event; 4] {
    [
        Event::new("withdrawals", "top secret").ordered_by("acme").kind("com.example.withdrawn"),
        Event::new("withdrawals", "later").ordered_by("acme"),
        Event::new("withdrawals", "bytes").ordered_by(vec![0xff, 0x00]),
        Event::new("audits", "no key"),
    ]
}

/// Parks both keys, publishes the event without a key, and does with the outbox what an operator does. The rows are
/// those of [`events`].
pub(crate) async fn operate(outbox: &dyn Outbox, database: &str) {
    let rows = open_rows(outbox).await;
    park(outbox, &rows[0], "it has more than 1 MiB").await;
    park(outbox, &rows[2], "the topic does not exist").await;
    outbox.mark(&[rows[3].named()], 0).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit.jsonl");
    let place = ["--database", database, "--audit-file", audit.to_str().unwrap()];
    let run = |arguments: &[&str]| hapax().arg("outbox").args(arguments).args(place).output().unwrap();
    lists(&run, &rows);
    shows(&run, &rows[0]);
    resumes(&run, &rows);
    drops(&run, &rows[2]);
    republishes(&run, &rows[3]);
    let noted = std::fs::read_to_string(&audit).unwrap();
    for action in ["resume", "drop", "republish"] {
        let is_it = |line: &&str| line.contains(&format!("\"action\":\"{action}\"")) && line.contains("\"done\"");
        assert!(noted.lines().any(|line| is_it(&line)), "{action}: {noted}");
    }
}

pub(crate) async fn open_rows(outbox: &dyn Outbox) -> Vec<OpenRow> {
    let mut rows = outbox.read(&ReadRequest::all_buckets(ReadStart::FIRST, 100, 1 << 20)).await.unwrap().rows;
    rows.sort_by_key(|row| row.id);
    rows
}

pub(crate) async fn park(outbox: &dyn Outbox, row: &OpenRow, reason: &str) {
    assert_eq!(outbox.park(&[row.refused(reason)]).await.unwrap(), []);
}

fn printed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn state(run: &impl Fn(&[&str]) -> Output, row: &OpenRow) -> Value {
    objects(&printed(&run(&["show", &row.event.id.to_string(), "--json"])))[0]["state"].clone()
}

fn lists(run: &impl Fn(&[&str]) -> Output, rows: &[OpenRow]) {
    let text = printed(&run(&["list"]));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    for word in ["  acme  ", "it has more than 1 MiB", "withdrawals", &rows[0].event.id.to_string()] {
        assert!(lines[0].contains(word), "{word}: {text}");
    }
    assert!(lines[1].contains("  hex:ff00  "), "{text}");
    assert_eq!(lines[2], "1 row not published; 2 keys parked", "the open row is of a parked key");
    let json = objects(&printed(&run(&["list", "--json"])));
    assert_eq!((&json[0]["key"], &json[1]["key"]), (&json!("acme"), &json!("hex:ff00")));
    assert_eq!(json[0]["event"], json!(rows[0].event.id.to_string()));
    assert_eq!((&json[0]["row"], &json[0]["topic"]), (&json!(rows[0].id.0), &json!("withdrawals")));
    assert_eq!(json[1]["reason"], json!("the topic does not exist"));
    assert!(json[0]["time"].as_str().unwrap().ends_with('Z'), "{}", json[0]);
    assert_eq!((&json[2]["counts"]["open"], &json[2]["counts"]["parked_keys"]), (&json!(1), &json!(2)));
    assert!(!text.contains("secret"), "{text}");
}

fn shows(run: &impl Fn(&[&str]) -> Output, row: &OpenRow) {
    let id = row.event.id.to_string();
    let text = printed(&run(&["show", &id]));
    assert!(text.contains("state: aside\n") && text.contains("type: com.example.withdrawn\n"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    assert!(printed(&run(&["show", &id, "--payload"])).contains("payload: top secret"));
    let shown = objects(&printed(&run(&["show", &id, "--payload", "--json"])));
    assert_eq!((&shown[0]["payload"], &shown[0]["key"]), (&json!("top secret"), &json!("acme")));
    let absent = run(&["show", "00000000-0000-8000-8000-000000000000"]);
    assert_eq!(absent.status.code(), Some(1), "{absent:?}");
}

fn resumes(run: &impl Fn(&[&str]) -> Output, rows: &[OpenRow]) {
    assert_eq!(printed(&run(&["resume", "acme"])), "resumed: acme, 1 row\n");
    assert_eq!(state(run, &rows[0]), "open");
    let again = run(&["resume", "acme"]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("1 of 1 keys are not parked"), "{again:?}");
}

fn drops(run: &impl Fn(&[&str]) -> Output, row: &OpenRow) {
    let unsure = run(&["drop", "hex:ff00"]);
    assert_eq!(unsure.status.code(), Some(2), "{unsure:?}");
    assert_eq!(state(run, row), "aside");
    let id = row.event.id.to_string();
    let planned = printed(&run(&["drop", "hex:ff00", "--dry-run"]));
    assert!(planned.starts_with("would be dropped") && planned.contains(&id), "{planned}");
    assert_eq!(state(run, row), "aside");
    let other = run(&["drop", "hex:ff00", "--yes", "--event", "00000000-0000-8000-8000-000000000000"]);
    assert_eq!((other.status.code(), state(run, row)), (Some(1), json!("aside")), "{other:?}");
    let dropped = printed(&run(&["drop", "hex:ff00", "--yes", "--event", &id]));
    assert!(dropped.contains("the key stays parked") && dropped.contains(&id), "{dropped}");
    assert_eq!(state(run, row), "dropped");
    assert_eq!(run(&["drop", "hex:ff00", "--yes"]).status.code(), Some(1), "it is dropped already");
    let all = objects(&printed(&run(&["resume", "--all", "--json"])));
    assert_eq!(all, [json!({ "key": "hex:ff00", "resumed": true, "rows": 0 })]);
    assert_eq!(objects(&printed(&run(&["list", "--json"])))[0]["counts"]["parked_keys"], 0);
}

fn republishes(run: &impl Fn(&[&str]) -> Output, row: &OpenRow) {
    let before = printed(&run(&["republish", "--since", "2020-01-31T12:00:00Z", "--until", "1h"]));
    assert_eq!((before.as_str(), state(run, row)), ("0 rows to be published again\n", json!("published")));
    let json = objects(&printed(&run(&["republish", "--since", "1h", "--json"])));
    assert_eq!((&json[0]["rows"], state(run, row)), (&json!(1), json!("open")));
}

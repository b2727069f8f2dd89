//! `hapax dead` and `hapax outbox` over the admin address of a process.

use serde_json::{Value, json};

use crate::admin_process::AdminProcess;
use crate::dead_letters::{id, objects};
use crate::harness::hapax;

/// Runs a command, and returns its exit code, its lines as JSON, and its errors.
fn run(process: &AdminProcess, arguments: &[&str]) -> (i32, Vec<Value>, String) {
    let admin = format!("http://{}", process.admin);
    let output = hapax().args(arguments).args(["--admin", &admin, "--json"]).output().unwrap();
    let lines = objects(&String::from_utf8(output.stdout).unwrap());
    (output.status.code().unwrap(), lines, String::from_utf8(output.stderr).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_shown_dropped_and_marked() {
    let (worker, ..) = AdminProcess::worker().await;
    let (code, listed, error) = run(&worker, &["dead", "list"]);
    assert_eq!(code, 0, "{error}");
    assert_eq!(listed.iter().map(|letter| letter["id"].clone()).collect::<Vec<_>>(), [id(1), id(2)]);
    assert_eq!(run(&worker, &["dead", "list", "--reason", "rejected"]).1.len(), 1);
    let shown = run(&worker, &["dead", "show", &id(1), "--payload"]).1.remove(0);
    assert_eq!((&shown["payload"], &shown["seen"]), (&json!("top secret"), &listed[0]["seen"]));
    let stale = run(&worker, &["dead", "drop", &id(1), "--seen", "7"]);
    assert_eq!((stale.0, &stale.1[0]["error"]), (1, &json!("stale")), "{}", stale.2);
    let seen = listed[0]["seen"].as_str().unwrap();
    assert_eq!(run(&worker, &["dead", "drop", &id(1), "--seen", seen]).1[0]["dropped"], json!(true));
    let word = ["dead", "redrive", "--all", "--not-done", "--yes"];
    assert_eq!(run(&worker, &word).1[0], json!({ "id": id(2), "marked": true }));
    let audit = worker.audit("hapax.db.spill");
    assert_eq!(audit.lines().count(), 6, "{audit}");
    assert!(audit.lines().all(|line| line.contains("admin-listener")), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_an_outbox_are_listed_resumed_and_dropped_and_events_published_again() {
    let (relay, event) = AdminProcess::relay().await;
    let (code, listed, error) = run(&relay, &["outbox", "list"]);
    assert_eq!(code, 0, "{error}");
    assert_eq!((&listed[0]["key"], &listed[1]["key"]), (&json!("acme"), &json!("hex:ff00")));
    assert_eq!(listed[2]["counts"]["parked_keys"], json!(2));
    assert_eq!(run(&relay, &["outbox", "show", &event]).1[0]["key"], json!("acme"));
    assert_eq!(run(&relay, &["outbox", "resume", "acme"]).1[0]["resumed"], json!(true));
    assert_eq!(run(&relay, &["outbox", "resume", "nobody"]).0, 1);
    // Without --event, it is the one for which the key is parked.
    let dropped = run(&relay, &["outbox", "drop", "hex:ff00", "--yes"]);
    assert_eq!(dropped.1[0]["event"], listed[1]["event"], "{}", dropped.2);
    assert_eq!(run(&relay, &["outbox", "republish", "--since", "2020-01-31T12:00:00Z", "--until", "1h"]).0, 0);
    let wrong = run(&relay, &["dead", "list"]);
    assert!(wrong.0 == 1 && wrong.2.contains("this relay has no dead letters"), "{} {}", wrong.0, wrong.2);
}

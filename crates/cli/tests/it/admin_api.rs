//! The admin API over HTTP: what it answers, and what it refuses.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use hapax::broker::{DeadLetterStore, DeadLetters, DeadReason};
use hapax::stores::{Sqlite, SqliteDeadLetters};
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::admin_process::AdminProcess;
use crate::dead_letters::{SOURCE, id, letter};
use crate::harness::{Api, Gateway, GatewayClient, sqlite};
use crate::json_schema::check_answer;
use crate::keys_commands::{Planted, plant};

const READS: &str = "a-token-that-only-reads";
const WRITES: &str = "a-token-that-may-write";

fn token_file(directory: &Path, token: &str) -> PathBuf {
    let path = directory.join(token);
    std::fs::write(&path, token).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

/// A gateway with an abandoned record, and requests to its admin address.
struct Listener {
    gateway: Gateway,
    rk: String,
    token: u64,
    directory: TempDir,
}

impl Listener {
    async fn start(has_tokens: bool) -> Self {
        let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
        let store = Sqlite::open(directory.path().join("hapax.db")).unwrap();
        let rk = plant(&store, "order", Planted::Abandoned).await.to_string();
        let files = [READS, WRITES].map(|token| token_file(directory.path(), token).display().to_string());
        let tokens = ["--admin-token-file", &*files[0], "--admin-write-token-file", &*files[1]];
        let flags: &[&str] = if has_tokens { &tokens } else { &[] };
        let gateway = Gateway::start(api.address, &sqlite(directory.path()), flags).await;
        let mut own = Self { gateway, rk, token: 0, directory };
        let credential: &[_] = if has_tokens { &[("authorization", "Bearer a-token-that-only-reads")] } else { &[] };
        let shown = own.send("GET", &format!("records/{}", own.rk), credential, "").await;
        own.token = shown.1["token"].as_u64().unwrap();
        own
    }

    /// The answer as JSON; null if it is none.
    async fn send(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &str) -> (u16, Value) {
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/api/v1/{path}") };
        let request = Request::builder().method(method).uri(format!("http://{}{path}", self.gateway.admin));
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.body(Full::<Bytes>::from(body.to_owned())).unwrap();
        let answer = self.gateway.send(request).await.expect("an answer");
        (answer.status.as_u16(), serde_json::from_str(&answer.body).unwrap_or_default())
    }

    /// The record, read from the store itself: its token and its state.
    async fn record(&self) -> (u64, bool) {
        use hapax::Store;

        let store = Sqlite::open(self.directory.path().join("hapax.db")).unwrap();
        let record = store.read(&rk_of(&self.rk)).await.unwrap().record.unwrap();
        (record.token.0, record.state.phase() == Some(hapax::Phase::InProgress))
    }

    fn audit(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.directory.path().join("hapax.db.spill/audit.jsonl"));
        text.unwrap_or_default().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_a_stranger_or_a_page_of_a_browser_could_send_are_refused_and_change_nothing() {
    let listener = Listener::start(true).await;
    let (reads, writes) = (format!("Bearer {READS}"), format!("Bearer {WRITES}"));
    let (reads, writes) = (("authorization", &*reads), ("authorization", &*writes));
    let release = format!("records/{}/release", listener.rk);
    let body = json!({ "token": listener.token }).to_string();
    let large = json!({ "token": listener.token, "x": "x".repeat(70_000) }).to_string();
    let nested = "[".repeat(10_000);
    for (status, fields, body) in [
        (401, &[JSON][..], &*body),
        (401, &[JSON, ("authorization", "Bearer wrong-wrong-wrong")], &body),
        (401, &[JSON, reads, writes], &body),
        (403, &[JSON, reads], &body),
        (421, &[JSON, writes, ("host", "evil.example")], &body),
        (421, &[JSON, writes, ("host", "10.0.0.7:8081")], &body),
        (403, &[JSON, writes, ("origin", "http://evil.example")], &body),
        (403, &[JSON, writes, ("origin", "null")], &body),
        (415, &[writes], &body),
        (415, &[writes, ("content-type", "application/x-www-form-urlencoded")], "token=1"),
        (415, &[writes, ("content-type", "text/plain")], &body),
        (413, &[JSON, writes], &large),
        (400, &[JSON, writes], ""),
        (400, &[JSON, writes], "[]"),
        (400, &[JSON, writes], &nested),
        (400, &[JSON, writes], "{\"token\":\"1\"}"),
        (400, &[JSON, writes], "{\"token\":1,\"more\":1}"),
    ] {
        let (found, answer) = listener.send("POST", &release, fields, body).await;
        assert_eq!(found, status, "{fields:?} {answer}");
        let answer = answer.to_string();
        let leaks = [READS, WRITES, &listener.token.to_string()].iter().any(|secret| answer.contains(*secret));
        assert!(!leaks, "{answer}");
    }
    // What a page of another origin can send without a preflight.
    let long = format!("records/{}/release", "x".repeat(60_000));
    assert_eq!(listener.send("POST", &long, &[writes, ("content-type", "text/plain")], &body).await.0, 415);
    for (method, path, status) in [
        ("GET", &*release, 405),
        ("PUT", &release, 405),
        ("HEAD", "policy", 405),
        ("POST", "records", 405),
        ("POST", &format!("{release}/"), 404),
        ("POST", &format!("records/../records/{}/release", listener.rk), 404),
        ("POST", &format!("records/%2e%2e/{}", listener.rk), 404),
        ("POST", &format!("records//{}/release", listener.rk), 404),
        ("POST", &format!("//records/{}/release", listener.rk), 404),
        ("POST", &format!("records/{}/release", listener.rk.to_uppercase()), 400),
        ("POST", &format!("{release}?token={}", listener.token), 400),
        ("GET", "records/..%2f..%2fetc%2fpasswd", 400),
        ("GET", "audit?record=../x", 400),
        ("GET", "records?state=odd", 400),
        ("GET", "records?cursor=00", 400),
        ("GET", "dead-letters", 404),
        ("GET", "outbox", 404),
    ] {
        let (found, answer) = listener.send(method, path, &[JSON, writes], &body).await;
        assert_eq!(found, status, "{method} {path} {answer}");
    }
    assert_eq!(listener.record().await, (listener.token, true), "nothing changed");
    assert_eq!(listener.audit(), [json!(null); 0], "a request that is refused fills the audit file");
    // The same write is carried out for the one who may.
    let (status, done) = listener.send("POST", &release, &[JSON, writes], &body).await;
    assert_eq!((status, &done["after"]["state"]), (200, &json!("released")), "{done}");
    let audit = listener.audit();
    let results: Vec<_> = audit.iter().map(|event| &event["result"]).collect();
    assert_eq!(results, ["begun", "done"]);
    assert!(!audit.iter().any(|event| event.to_string().contains("a-token-that")), "{audit:?}");
    let mode = std::fs::metadata(listener.directory.path().join("hapax.db.spill/audit.jsonl")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    assert_eq!(listener.send("GET", "records", &[reads], "").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_audit_file_nothing_is_written() {
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, "memory:", &[]).await;
    let (rk, directory) = ("0123456789abcdef0123456789abcdef".to_owned(), tempfile::tempdir().unwrap());
    let listener = Listener { gateway, rk, token: 1, directory };
    let (status, answer) =
        listener.send("POST", &format!("records/{}/release", listener.rk), &[JSON], "{\"token\":1}").await;
    assert_eq!((status, &answer["error"]), (403, &json!("no-audit-file")));
    assert_eq!(listener.send("GET", "records", &[], "").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_of_a_gateway_fits_the_description_of_the_api() {
    let listener = Listener::start(false).await;
    let (status, document) = listener.send("GET", "openapi.json", &[], "").await;
    let kept = include_str!("../../../../docs/openapi.json");
    assert_eq!((status, &document), (200, &serde_json::from_str(kept).unwrap()), "docs/openapi.json is what is served");
    let rk = &listener.rk;
    let token = listener.token;
    let answer = json!({ "token": token, "outcome": "done", "status": 201, "headers": [["x-a", "1"]], "body": "yes" });
    let planned = json!({ "token": token, "force": true, "dry_run": true });
    for (method, path, described, body, expected) in [
        ("get", "policy".to_owned(), "policy", json!(null), 200),
        ("get", "history".to_owned(), "history", json!(null), 200),
        ("get", "records".to_owned(), "records", json!(null), 200),
        ("get", format!("records/{rk}"), "records/{rk}", json!(null), 200),
        ("get", format!("records/{rk}?answer=true"), "records/{rk}", json!(null), 200),
        ("get", format!("records/{}", rk.replace(['a', '0'], "1")), "records/{rk}", json!(null), 404),
        ("post", format!("records/{rk}/reopen"), "records/{rk}/reopen", json!({ "token": token }), 409),
        ("post", format!("records/{rk}/purge"), "records/{rk}/purge", json!({ "token": token }), 409),
        ("post", format!("records/{rk}/purge"), "records/{rk}/purge", planned, 200),
        ("post", format!("records/{rk}/resolve"), "records/{rk}/resolve", answer, 200),
        ("get", format!("records/urn:hapax:record:{rk}?answer=true"), "records/{rk}", json!(null), 200),
        ("get", "audit".to_owned(), "audit", json!(null), 200),
        ("get", "dead-letters".to_owned(), "dead-letters", json!(null), 404),
        ("get", "outbox".to_owned(), "outbox", json!(null), 404),
        ("get", "records?limit=0".to_owned(), "records", json!(null), 400),
    ] {
        let sent = if body.is_null() { String::new() } else { body.to_string() };
        let (status, answer) = listener.send(&method.to_uppercase(), &path, &[JSON], &sent).await;
        assert_eq!(status, expected, "{path}: {answer}");
        check_answer(&document, method, &format!("/api/v1/{described}"), status, &answer);
    }
    let shown = listener.send("GET", &format!("records/{rk}?answer=true"), &[], "").await.1;
    assert_eq!(shown["answer"], json!({ "status": 201, "headers": [["x-a", "1"]], "body": "yes" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_below_the_api_is_described_and_other_pages_get_text() {
    let document: Value = serde_json::from_str(include_str!("../../../../docs/openapi.json")).unwrap();
    let (reads, writes) = (format!("Bearer {READS}"), format!("Bearer {WRITES}"));
    let evil = ("host", "evil.example");
    for (has_tokens, method, fields, status, error) in [
        (true, "get", &[][..], 401, "token-required"),
        (true, "post", &[JSON, ("authorization", &reads)], 403, "token-reads-only"),
        (true, "post", &[JSON, ("authorization", &writes), evil], 421, "wrong-host"),
        (false, "get", &[evil], 421, "wrong-host"),
        (false, "post", &[JSON, evil], 421, "wrong-host"),
    ] {
        let listener = Listener::start(has_tokens).await;
        let (path, described) = match method {
            "get" => ("records".to_owned(), "records"),
            _ => (format!("records/{}/release", listener.rk), "records/{rk}/release"),
        };
        let (found, answer) = listener.send(&method.to_uppercase(), &path, fields, "{\"token\":1}").await;
        assert_eq!((found, &answer["error"]), (status, &json!(error)), "{method} {fields:?}: {answer}");
        check_answer(&document, method, &format!("/api/v1/{described}"), status, &answer);
    }
    let listener = Listener::start(true).await;
    let refused = listener.gateway.get(listener.gateway.admin, "/metrics").await.unwrap();
    let header = |name: &str| refused.headers[name].to_str().unwrap().to_owned();
    assert_eq!((refused.status.as_u16(), &*header("www-authenticate")), (401, "Bearer"));
    assert!(header("content-type").starts_with("text/plain") && refused.body.starts_with("send the token"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_of_a_worker_fits_the_description_of_the_api() {
    let (worker, rk, token) = AdminProcess::worker().await;
    let (first, second) = (format!("dead-letters/{}", id(1)), format!("dead-letters/{}", id(2)));
    let seen = async |path: &str| ask(&worker, "GET", path, &json!({})).await.1["seen"].clone();
    let (seen_first, seen_second) = (seen(&first).await, seen(&second).await);
    let resolve = format!("records/{rk}/resolve");
    let described = "records/{rk}/resolve";
    check_all(
        &worker,
        &[
            ("get", "policy", "policy", json!(null), 200),
            ("get", "dead-letters?limit=1", "dead-letters", json!(null), 200),
            ("get", &format!("{first}?payload=true"), "dead-letters/{id}", json!(null), 200),
            (
                "post",
                &format!("{second}/redrive"),
                "dead-letters/{id}/redrive",
                json!({ "seen": seen_second, "not_done": true }),
                200,
            ),
            ("post", &format!("{second}/redrive"), "dead-letters/{id}/redrive", json!({ "not_done": true }), 400),
            ("post", &format!("{second}/drop"), "dead-letters/{id}/drop", json!({ "seen": seen_second }), 409),
            ("post", &format!("{first}/drop"), "dead-letters/{id}/drop", json!({ "seen": "?" }), 400),
            ("post", &format!("{first}/drop"), "dead-letters/{id}/drop", json!({ "seen": "7" }), 409),
            ("post", &format!("{first}/drop"), "dead-letters/{id}/drop", json!({ "seen": seen_first }), 200),
            ("post", &format!("{first}/drop"), "dead-letters/{id}/drop", json!({ "seen": seen_first }), 404),
            ("post", &resolve, described, json!({ "token": token, "outcome": "done", "status": 200 }), 400),
            ("post", &resolve, described, json!({ "token": token, "outcome": "processed" }), 200),
            ("get", "audit", "audit", json!(null), 200),
            ("get", "outbox", "outbox", json!(null), 404),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_whose_message_cannot_be_read_takes_no_word_that_it_was_processed() {
    let (worker, ..) = AdminProcess::worker().await;
    let letters = SqliteDeadLetters::open(worker.directory.path().join("dead.db")).unwrap();
    letters.put(vec![letter(3, DeadReason::Unreadable)]).await.remove(0).unwrap();
    let path = format!("dead-letters/{}", id(3));
    let shown = ask(&worker, "GET", &path, &json!({})).await.1;
    for (word, status) in
        [(json!({ "seen": shown["seen"], "done": true }), 409), (json!({ "seen": shown["seen"] }), 200)]
    {
        let answer = ask(&worker, "POST", &format!("{path}/redrive"), &word).await;
        assert_eq!(answer.0, status, "{}", answer.1);
        assert!(status == 200 || answer.1["error"] == "unreadable", "{}", answer.1);
    }
}

/// Sends a call of the API. Returns the status and the answer.
async fn ask(process: &AdminProcess, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() || method == "GET" { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).header("content-type", "application/json");
    let request = request.uri(format!("http://{}/api/v1/{path}", process.admin)).body(Full::from(body)).unwrap();
    let answer = GatewayClient::of(process.admin).send(request).await.expect("an answer");
    (answer.status.as_u16(), serde_json::from_str(&answer.body).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_to_a_letter_names_what_was_seen_and_keeps_the_word() {
    let (worker, ..) = AdminProcess::worker().await;
    let path = format!("dead-letters/{}", id(2));
    let (redrive, drop) = (format!("{path}/redrive"), format!("{path}/drop"));
    let shown = ask(&worker, "GET", &path, &json!({})).await.1;
    let word = json!({ "seen": shown["seen"], "not_done": true });
    assert_eq!(ask(&worker, "POST", &redrive, &word).await.0, 200);
    let marked = ask(&worker, "GET", &path, &json!({})).await.1;
    assert_eq!(marked["reason"], "not-done", "{marked}");
    assert!(marked["redrive_at"].is_string() && marked["seen"] != shown["seen"], "{marked}");
    let stale = ask(&worker, "POST", &drop, &json!({ "seen": shown["seen"] })).await;
    assert_eq!((stale.0, &stale.1["error"]), (409, &json!("stale")));

    let letters = SqliteDeadLetters::open(worker.directory.path().join("dead.db")).unwrap();
    let hour = std::time::Duration::from_secs(3600);
    assert_eq!(letters.take_marked(SOURCE, 10, hour).await.unwrap().len(), 1);
    let taken = ask(&worker, "POST", &drop, &json!({ "seen": marked["seen"] })).await;
    assert_eq!((taken.0, &taken.1["error"]), (409, &json!("taken")));
    assert!(taken.1["free_at"].as_str() > marked["redrive_at"].as_str(), "{}", taken.1);
    let audit = ask(&worker, "GET", "audit", &json!({})).await.1;
    let results: Vec<_> = audit["events"].as_array().unwrap().iter().map(|event| &event["result"]).collect();
    assert_eq!(results, ["refused", "refused", "done"], "{audit}");
    assert_eq!(audit["events"][2]["arguments"]["not_done"], true, "{audit}");
    assert_eq!(audit["events"][2]["seen"], shown["seen"], "{audit}");
}

fn rk_of(digits: &str) -> hapax::RecordKey {
    let byte = |place: usize| u8::from_str_radix(&digits[2 * place..2 * place + 2], 16).unwrap();
    hapax::RecordKey::from_bytes(std::array::from_fn(byte))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_of_a_relay_fits_the_description_of_the_api() {
    let (relay, event) = AdminProcess::relay().await;
    let published = json!({ "since": "2020-01-01T00:00:00Z" });
    let listed = GatewayClient::of(relay.admin).get("/api/v1/outbox").await.unwrap().body;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let (first, second) = (&listed["parked"][0], &listed["parked"][1]);
    assert_eq!((&first["event"], &second["key"]), (&json!(event), &json!("hex:ff00")));
    let stale = json!({ "key": "hex:ff00", "event": first["event"] });
    let dropped = json!({ "key": "hex:ff00", "event": second["event"] });
    check_all(
        &relay,
        &[
            ("get", "policy", "policy", json!(null), 200),
            ("get", "outbox", "outbox", json!(null), 200),
            ("get", "outbox/waiting?limit=1", "outbox/waiting", json!(null), 200),
            ("get", "history", "history", json!(null), 200),
            ("get", &format!("outbox/events/{event}?payload=true"), "outbox/events/{id}", json!(null), 200),
            ("post", "outbox/resume", "outbox/resume", json!({ "key": "nobody" }), 409),
            ("post", "outbox/drop", "outbox/drop", json!({ "key": "nobody", "event": event }), 409),
            ("post", "outbox/drop", "outbox/drop", json!({ "key": "hex:ff00" }), 400),
            ("post", "outbox/drop", "outbox/drop", stale, 409),
            ("post", "outbox/resume", "outbox/resume", json!({ "key": "acme" }), 200),
            ("post", "outbox/drop", "outbox/drop", dropped, 200),
            ("post", "outbox/republish", "outbox/republish", published, 200),
            ("post", "outbox/republish", "outbox/republish", json!({ "since": "2200-01-01T00:00:00Z" }), 400),
            ("get", "audit", "audit", json!(null), 200),
            ("get", "records", "records", json!(null), 404),
        ],
    )
    .await;
    let audit = relay.audit("shop.db.spill");
    assert_eq!(audit.lines().count(), 2 * 7);
    let drops = format!("\"event\":{}", second["event"]);
    assert_eq!(audit.matches(&drops).count(), 2, "{audit}");
}

/// Sends each request, and checks its status and its answer against the description of the API.
async fn check_all(process: &AdminProcess, requests: &[(&str, &str, &str, Value, u16)]) {
    let document: Value = serde_json::from_str(include_str!("../../../../docs/openapi.json")).unwrap();
    for (method, path, described, body, expected) in requests {
        let (status, answer) = ask(process, &method.to_uppercase(), path, body).await;
        assert_eq!(status, *expected, "{path}: {answer}");
        check_answer(&document, method, &format!("/api/v1/{described}"), status, &answer);
    }
}

//! The whole contract through the binary, as tables: what leads to a row, what the client gets, what a copy of the request gets
//! afterwards, and how often the API ran. What is got is written as `told.rs` says.
//!
//! Not here, because no gateway can bring it about: a record that is buried, and a probe that is asked.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use rusqlite::Connection;

use crate::config::configured;
use crate::lifecycle::{killed_in_mid_request, locked};
use crate::raw::{Script, Wire};
use crate::told::told;
use crate::world::{Api, Gateway, Got, free_address, sqlite, until};

const UNKNOWN: &str = "409 outcome-unknown same-key";
const REUSED: &str = "422 key-reused new-key";

/// A path at the API, what the first request gets, what its copy gets, and how often the API ran for the two.
type Row = (&'static str, &'static str, &'static str, usize);

/// Sends a request, its copy, and another payload under the same key, which never runs.
async fn judge(gateway: &Gateway, api: &Script, &(path, first, copy, runs): &Row) {
    let key = format!("key-of{}", path.replace('/', "-"));
    let one = gateway.post(path, &key, "{}").await;
    assert_eq!(told(&one), first, "{path}");
    let two = gateway.post(path, &key, "{}").await;
    assert_eq!(told(&two), copy, "a copy of {path}");
    assert_eq!(api.count(path), runs, "{path}");
    if let (Some(one), Some(two)) = (one, two)
        && two.replayed()
    {
        assert_eq!((one.status, one.body), (two.status, two.body), "{path}");
        assert_eq!(one.headers["idempotency-key-expires"], two.headers["idempotency-key-expires"], "{path}");
    }
    assert_eq!(told(&gateway.post(path, &key, "[]").await), REUSED, "another payload at {path}");
    assert_eq!(api.count(path), runs, "{path}");
}

/// What an answer of the API means, by its status; the fields that it sends with it, by the second part of the path.
#[rustfmt::skip]
const STATUSES: &[Row] = &[
    // It happened.
    ("/200", "200 expires", "200 replayed expires", 1),
    ("/201", "201 expires", "201 replayed expires", 1),
    ("/202", "202 expires", "202 replayed expires", 1),
    ("/204", "204 expires", "204 replayed expires", 1),
    ("/302", "302 expires", "302 replayed expires", 1),
    ("/303", "303 expires", "303 replayed expires", 1),
    ("/304", "304 expires", "304 replayed expires", 1),
    // It did not happen.
    ("/401", "401", "401", 2),
    ("/403", "403", "403", 2),
    ("/409/later", "409 retry-after", "409 retry-after", 2),
    ("/425", "425", "425", 2),
    ("/429", "429", "429", 2),
    ("/429/later", "429 retry-after", "429 retry-after", 2),
    ("/503/later", "503 retry-after", "503 retry-after", 2),
    // The last word.
    ("/400", "400 expires", "400 replayed expires", 1),
    ("/402", "402 expires", "402 replayed expires", 1),
    ("/404", "404 expires", "404 replayed expires", 1),
    ("/405", "405 expires", "405 replayed expires", 1),
    ("/409", "409 expires", "409 replayed expires", 1),
    ("/410", "410 expires", "410 replayed expires", 1),
    ("/412", "412 expires", "412 replayed expires", 1),
    ("/422", "422 expires", "422 replayed expires", 1),
    ("/451", "451 expires", "451 replayed expires", 1),
    // Nobody knows.
    ("/408", "408", UNKNOWN, 1),
    ("/408/later", "408 retry-after", UNKNOWN, 1),
    ("/500", "500", UNKNOWN, 1),
    ("/500/later", "500 retry-after", UNKNOWN, 1),
    ("/501", "501", UNKNOWN, 1),
    ("/502", "502", UNKNOWN, 1),
    ("/503", "503", UNKNOWN, 1),
    ("/504", "504", UNKNOWN, 1),
    ("/507", "507", UNKNOWN, 1),
    ("/599", "599", UNKNOWN, 1),
];

const NOT_REPLAYABLE: &str = "409 not-replayable never";
const CUT: &str = "502 upstream-cut same-key";

/// Answers that are too long, never end, or break, and how they are sent.
#[rustfmt::skip]
const BROKEN: &[(Row, &str)] = &[
    (("/long", "200 expires", NOT_REPLAYABLE, 1), "HTTP/1.1 200 OK\r\ncontent-length: 40\r\n\r\n0123456789012345678901234567890123456789"),
    (("/long/refusal", "404 expires", NOT_REPLAYABLE, 1), "HTTP/1.1 404 Not Found\r\ncontent-length: 40\r\n\r\n0123456789012345678901234567890123456789"),
    (("/long/cut", "cut", NOT_REPLAYABLE, 1), "HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n0123456789012345678901234567890123456789"),
    (("/events", "200 expires", NOT_REPLAYABLE, 1), "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n"),
    (("/cut/body", CUT, UNKNOWN, 1), "HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nhalf"),
    (("/cut/refusal", CUT, UNKNOWN, 1), "HTTP/1.1 404 Not Found\r\ncontent-length: 20\r\n\r\nhalf"),
    (("/cut/chunk", CUT, UNKNOWN, 1), "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhalf"),
    (("/cut/head", CUT, UNKNOWN, 1), "HTTP/1.1 200 OK\r\ncontent-le"),
    (("/cut/all", CUT, UNKNOWN, 1), ""),
    (("/nonsense", CUT, UNKNOWN, 1), "SSH-2.0-OpenSSH\r\n\r\n"),
    (("/switched", CUT, UNKNOWN, 1), "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
];

/// An answer with the status that its path names.
fn answer(path: &str) -> Vec<u8> {
    let mut parts = path.trim_start_matches('/').split('/');
    let status = parts.next().unwrap();
    let later = if parts.next() == Some("later") { "retry-after: 7\r\n" } else { "" };
    let body = if ["204", "304"].contains(&status) { "" } else { "content-length: 4\r\n\r\ntold" };
    let end = if body.is_empty() { "\r\n" } else { "" };
    format!("HTTP/1.1 {status} As Told\r\ncontent-type: text/plain\r\nset-cookie: s=1\r\n{later}{body}{end}")
        .into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_api_answers_and_its_copies_get_in_every_store_h24() {
    let answers = STATUSES.iter().map(|row| (row.0, answer(row.0)));
    let broken = BROKEN.iter().map(|(row, bytes)| (row.0, bytes.as_bytes().to_vec()));
    let answers: Vec<_> = answers.chain(broken).collect();
    let directory = tempfile::tempdir().unwrap();
    for store in ["memory:", &sqlite(directory.path())] {
        let api = Script::start(&answers).await;
        let gateway = Gateway::start(api.address, store, &["--max-stored-body", "32"]).await;
        for row in STATUSES.iter().chain(BROKEN.iter().map(|(row, _)| row)) {
            judge(&gateway, &api, row).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_gives_statuses_a_meaning_of_its_own_h25() {
    #[rustfmt::skip]
    let rows: &[Row] = &[
        ("/503/own", "503", "503", 2),
        ("/500/own", "500 expires", "500 replayed expires", 1),
        ("/404/own", "404", UNKNOWN, 1),
        ("/502/own", "502 expires", "502 replayed expires", 1),
    ];
    let directory = configured(
        "[[route]]\npath = '/503/own'\nnot-applied = [503]\n[[route]]\npath = '/500/own'\nfinal = [500]\n\
         [[route]]\npath = '/404/own'\nunknown = [404]\n[[route]]\npath = '/502/own'\napplied = [502]\n\
         [[route]]\npath = '/200/short'\nlease = '1s'\nretention = '1s'\n",
    );
    let answers: Vec<_> = rows.iter().map(|row| row.0).chain(["/200/short"]).map(|path| (path, answer(path))).collect();
    let api = Script::start(&answers).await;
    let config = directory.path().join("hapax.toml").display().to_string();
    let gateway = Gateway::start(api.address, "memory:", &["--config", &config]).await;
    for row in rows {
        judge(&gateway, &api, row).await;
    }
    assert_eq!(told(&gateway.post("/200/short", "key-1", "{}").await), "200 expires");
    settles(&gateway, "/200/short", "200 expires").await;
    assert_eq!(api.count("/200/short"), 2, "an answer that has expired is as if it had never been");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_answer_the_fields_are_given_again_that_are_every_callers_h16() {
    let kept = "content-type: text/plain\r\ncontent-language: en\r\ncontent-disposition: inline\r\ncontent-encoding: identity\r\n\
                vary: accept-encoding\r\nlocation: /charges/1\r\netag: \"1\"\r\nlink: </next>; rel=next\r\nretry-after: 7\r\n\
                x-cost: 7\r\n";
    let once = "set-cookie: s=1\r\ndate: Sat, 01 Jan 2000 00:00:00 GMT\r\nwww-authenticate: Basic\r\nx-other: 1\r\n";
    let answer = format!("HTTP/1.1 201 Created\r\ncontent-length: 4\r\n{kept}{once}\r\ntold");
    let api = Script::start(&[("/charges", answer.into_bytes())]).await;
    let gateway = Gateway::start(api.address, "memory:", &["--store-header", "x-cost"]).await;
    let first = gateway.post("/charges", "key-1", "{}").await.unwrap();
    let copy = gateway.post("/charges", "key-1", "{}").await.unwrap();
    assert!(!first.replayed() && copy.replayed() && copy.headers["cache-control"] == "no-store");
    let fields = |text: &'static str| text.lines().map(|line| line.split_once(": ").unwrap());
    for (name, value) in fields(kept) {
        assert!(first.headers[name] == value && copy.headers[name] == value, "{name}");
    }
    for (name, value) in fields(once) {
        assert_eq!(first.headers[name], value);
        assert!(copy.headers.get(name).is_none_or(|field| name == "date" && field != value), "{name}");
    }
}

/// Sends a request with these fields alone.
async fn send(gateway: &Gateway, fields: &[(&str, &str)], body: &'static str) -> Option<Got> {
    let request = Request::post(format!("http://{}/charges", gateway.public));
    let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, value.as_bytes()));
    gateway.send(request.body(Full::from(Bytes::from(body))).unwrap()).await
}

const CALLER: (&str, &str) = ("authorization", "Bearer a");
const KEY: (&str, &str) = ("idempotency-key", "k");

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_leaves_the_key_free_h4() {
    let api = Api::start().await;
    let flags = ["--max-request-body", "8", "--request-body-timeout", "1s"];
    let gateway = Gateway::start(api.address, "memory:", &flags).await;
    const MALFORMED: &str = "400 key-malformed new-key";
    for (key, refusal) in [
        (None, "400 key-missing new-key"),
        (Some(""), MALFORMED),
        (Some("a, b"), MALFORMED),
        (Some("\"a"), MALFORMED),
        (Some("a b"), MALFORMED),
        (Some("schlüssel"), MALFORMED),
        (Some(&*"k".repeat(256)), MALFORMED),
    ] {
        let fields: Vec<_> = [CALLER].into_iter().chain(key.map(|key| ("idempotency-key", key))).collect();
        assert_eq!(told(&send(&gateway, &fields, "{}").await), refusal, "{key:?}");
    }
    assert_eq!(told(&send(&gateway, &[CALLER, KEY, KEY], "{}").await), MALFORMED);
    for callers in [&[KEY][..], &[KEY, CALLER, CALLER]] {
        let got = send(&gateway, callers, "{}").await;
        assert_eq!(told(&got), "400 caller-unknown same-key");
        assert!(got.unwrap().body.contains("exactly one authorization field"), "the remedy is named");
    }
    assert_eq!(told(&send(&gateway, &[CALLER, KEY], "123456789").await), "413 body-too-large never");
    // A second chunk that is none, and one that never comes.
    for (second, status, name) in [("zz\r\n", 400, "body-cut"), ("", 408, "body-timeout")] {
        let mut wire = Wire::to(gateway.public).await;
        let head = "POST /charges HTTP/1.1\r\nhost: a\r\nauthorization: Bearer a\r\nidempotency-key: k\r\n";
        wire.say(format!("{head}transfer-encoding: chunked\r\n\r\n1\r\n{{\r\n{second}").as_bytes()).await;
        let refused = wire.answer().await.unwrap();
        let told = refused.text();
        assert_eq!(refused.status, status, "{told}");
        assert!(told.contains(&format!("#{name}\"")) && told.contains("\"retry\":\"same-key\""), "{told}");
    }
    assert_eq!(api.seen().len(), 0);
    assert_eq!(told(&send(&gateway, &[CALLER, KEY], "{}").await), "201 expires");
    assert_eq!(told(&send(&gateway, &[CALLER, ("idempotency-key", "\"k\"")], "{}").await), "201 replayed expires");
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_first_runs_its_copies_are_told_to_come_back_or_wait_h17() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = sqlite(directory.path());
    let gateway = Gateway::start(api.address, &store, &["--max-in-flight", "1"]).await;
    let other = Gateway::start(api.address, &store, &[]).await;
    let patient = Gateway::start(api.address, &store, &["--wait", "60s"]).await;
    let (first, waited) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.has_seen(1).await;
        for gateway in [&gateway, &other] {
            let copy = gateway.post("/slow", "key-1", "{}").await;
            assert_eq!(told(&copy), "409 in-progress same-key retry-after");
            let wait = copy.unwrap().headers["retry-after"].clone();
            assert!(wait == "1" || wait == "2", "{wait:?}");
            assert_eq!(told(&gateway.post("/slow", "key-1", "[]").await), REUSED);
        }
        let busy = gateway.post("/charges", "key-2", "{}").await;
        assert_eq!(told(&busy), "503 overloaded same-key retry-after");
        tokio::join!(patient.post("/slow", "key-1", "{}"), async { api.let_go() }).0
    });
    assert_eq!((told(&first), told(&waited)), ("201 expires".into(), "201 replayed expires".into()));
    for gateway in [&gateway, &other, &patient] {
        assert_eq!(told(&gateway.post("/slow", "key-1", "{}").await), "201 replayed expires");
    }
    assert_eq!(api.seen().len(), 1, "the refused one did not run");
    assert_eq!(told(&gateway.post("/charges", "key-2", "{}").await), "201 expires");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_knows_is_held_or_run_again_as_the_route_says_h24() {
    for (policy, path, first, copy, runs) in [
        ("hold", "/status/500", "500", UNKNOWN, 1),
        ("retry", "/status/500", "500", "500", 2),
        ("hold", "/stalls", "504 upstream-timeout same-key", UNKNOWN, 1),
        ("retry", "/stalls", "504 upstream-timeout same-key", "504 upstream-timeout same-key", 2),
        ("hold", "/slow", "504 upstream-timeout same-key", UNKNOWN, 1),
    ] {
        let api = Api::start().await;
        let timeout = if path.starts_with("/status") { "60s" } else { "300ms" };
        let flags = ["--on-lapse", policy, "--upstream-timeout", timeout];
        let gateway = Gateway::start(api.address, "memory:", &flags).await;
        assert_eq!(told(&gateway.post(path, "key-1", "{}").await), first, "{policy} {path}");
        assert_eq!(told(&gateway.post(path, "key-1", "{}").await), copy, "{policy} {path}");
        assert_eq!(told(&gateway.post(path, "key-1", "[]").await), REUSED, "{policy} {path}");
        let attempts: Vec<_> = api.seen().iter().map(|seen| seen.headers["hapax-attempt"].clone()).collect();
        assert_eq!(attempts, ["1", "2"][..runs], "{policy} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_api_that_is_not_there_did_is_known_h32() {
    let address = free_address();
    let gateway = Gateway::start(address, "memory:", &[]).await;
    for _ in 0..2 {
        let got = gateway.post("/charges", "key-1", "{}").await;
        assert_eq!(told(&got), "502 upstream-unreachable same-key retry-after");
    }
    let api = Api::start_at(address).await;
    assert_eq!(told(&gateway.post("/charges", "key-1", "[]").await), REUSED);
    assert_eq!(told(&gateway.post("/charges", "key-1", "{}").await), "201 expires");
    assert_eq!((api.seen().len(), api.seen()[0].headers["hapax-attempt"].to_str().unwrap()), (1, "3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_a_copy_is_held_or_runs_again_as_the_route_says_h24() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = sqlite(directory.path());
    let holds = killed_in_mid_request(&api, &store, "hold").await;
    assert_eq!(told(&Some(holds.settled("/slow", "key-1", "{}").await)), UNKNOWN);
    let retries = Gateway::start(api.address, &store, &["--on-lapse", "retry"]).await;
    assert_eq!(told(&retries.post("/slow", "key-1", "{}").await), UNKNOWN, "what is held is held under every policy");
    assert_eq!(told(&retries.post("/slow", "key-1", "[]").await), REUSED);
    assert_eq!(api.seen().len(), 1);

    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let retries = killed_in_mid_request(&api, &sqlite(directory.path()), "retry").await;
    api.let_go();
    assert_eq!(told(&Some(retries.settled("/slow", "key-1", "{}").await)), "201 expires");
    assert_eq!(told(&retries.post("/slow", "key-1", "{}").await), "201 replayed expires");
    assert_eq!(api.seen().len(), 2);
}

/// Sends copies until one gets this.
async fn settles(gateway: &Gateway, path: &str, wanted: &str) {
    let mut got = String::new();
    until(wanted, async || {
        got = told(&gateway.post(path, "key-1", "{}").await);
        got == wanted
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_store_is_down_nothing_runs_or_all_runs_unrecorded_h28() {
    const ROWS: [(&str, &str); 5] = [
        ("/201", "201 unrecorded"),
        ("/404", "404 unrecorded"),
        ("/429", "429 unrecorded"),
        ("/500", "500 unrecorded"),
        ("/cut", "502 upstream-cut same-key unrecorded"),
    ];
    let answers: Vec<_> = ROWS[..4].iter().map(|(path, _)| (*path, answer(path))).collect();
    let (api, directory) = (Script::start(&answers).await, tempfile::tempdir().unwrap());
    let (store, fast) = (sqlite(directory.path()), ["--store-timeout", "200ms"]);
    let rejects = Gateway::start(api.address, &store, &fast).await;
    let passes = Gateway::start(api.address, &store, &[&fast[..], &["--when-store-down", "pass"]].concat()).await;
    let lock = locked(directory.path());
    for (path, unrecorded) in ROWS {
        let key = format!("key-of-{}", &path[1..]);
        let got = rejects.post(path, &key, "{}").await;
        assert_eq!((told(&got).as_str(), api.count(path)), ("503 store-unavailable same-key retry-after", 0));
        for runs in 1..=2 {
            assert_eq!((told(&passes.post(path, &key, "{}").await).as_str(), api.count(path)), (unrecorded, runs));
        }
    }
    drop(lock);
    settles(&rejects, "/201", "201 expires").await;
    settles(&passes, "/201", "201 replayed expires").await;
}

/// A request whose answer comes when the store takes nothing any more, with what was done to that end.
async fn answered_in_trouble<T>(gateway: &Gateway, api: &Api, trouble: impl FnOnce() -> T) -> (Option<Got>, T) {
    tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.has_seen(1).await;
        let trouble = trouble();
        api.let_go();
        trouble
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_only_kept_says_so_and_is_recorded_later_h30() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &["--lease", "1s"]).await;
    let (first, lock) = answered_in_trouble(&gateway, &api, || locked(directory.path())).await;
    assert_eq!(told(&first), "201 expires pending");
    drop(lock);
    settles(&gateway, "/slow", "201 replayed expires").await;
    assert_eq!(api.seen().len(), 1);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_can_be_neither_recorded_nor_kept_is_not_given_h30() {
    let name = "contract::an_answer_that_can_be_neither_recorded_nor_kept_is_not_given_h30";
    let Some(disk) = crate::disk::on_a_small_disk(name) else { return };
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, &sqlite(&disk), &["--lease", "1s"]).await;
    let trouble = || (locked(&disk), crate::disk::fill(&disk));
    let (first, (lock, ballast)) = answered_in_trouble(&gateway, &api, trouble).await;
    assert_eq!(told(&first), "500 outcome-unrecorded same-key");
    std::fs::remove_file(ballast).unwrap();
    drop(lock);
    settles(&gateway, "/slow", UNKNOWN).await;
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_read_is_never_taken_for_none_h31() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &[]).await;
    assert_eq!(told(&gateway.post("/charges", "key-1", "{}").await), "201 expires");
    let database = Connection::open(directory.path().join("hapax.db")).unwrap();
    // That of the trial at start, too.
    assert!(database.execute("update hapax_record set answer = null", []).unwrap() >= 1);
    for body in ["{}", "[]"] {
        assert_eq!(told(&gateway.post("/charges", "key-1", body).await), "500 record-damaged same-key");
    }
    assert_eq!(api.seen().len(), 1);
}

//! The whole contract through the binary, as tables: the cause, the response, the response to a retry, and the number
//! of runs of the API. Responses are written as in `response_summary.rs`.
//!
//! Buried records and probes are missing here, because a gateway has neither.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use rusqlite::Connection;

use crate::config::directory_with;
use crate::harness::{Api, ClientResponse, Gateway, free_address, sqlite, until};
use crate::lifecycle::{kill_during_request, lock_database};
use crate::raw_http::{RawConnection, ScriptedApi};
use crate::response_summary::summary;

const UNKNOWN: &str = "409 outcome-unknown same-key retry-after";
const REUSED: &str = "422 key-reused new-key";

/// A path at the API, the first response, the response to a retry, and the number of runs for the two.
type OutcomeRow = (&'static str, &'static str, &'static str, usize);

/// Sends a request, a retry, and another payload under the same key. The other payload must never run.
async fn assert_outcome(gateway: &Gateway, api: &ScriptedApi, &(path, first, copy, runs): &OutcomeRow) {
    let key = format!("key-of{}", path.replace('/', "-"));
    let one = gateway.post(path, &key, "{}").await;
    assert_eq!(summary(&one), first, "{path}");
    let two = gateway.post(path, &key, "{}").await;
    assert_eq!(summary(&two), copy, "a copy of {path}");
    assert_eq!(api.count(path), runs, "{path}");
    if let (Some(one), Some(two)) = (one, two)
        && two.is_replayed()
    {
        assert_eq!((one.status, one.body), (two.status, two.body), "{path}");
        assert_eq!(one.headers["idempotency-key-expires"], two.headers["idempotency-key-expires"], "{path}");
    }
    assert_eq!(summary(&gateway.post(path, &key, "[]").await), REUSED, "another payload at {path}");
    assert_eq!(api.count(path), runs, "{path}");
}

/// The outcome for each status of the API. A path that ends with `/later` adds Retry-After.
#[rustfmt::skip]
const STATUSES: &[OutcomeRow] = &[
    // Applied.
    ("/200", "200 expires", "200 replayed expires", 1),
    ("/201", "201 expires", "201 replayed expires", 1),
    ("/202", "202 expires", "202 replayed expires", 1),
    ("/204", "204 expires", "204 replayed expires", 1),
    ("/302", "302 expires", "302 replayed expires", 1),
    ("/303", "303 expires", "303 replayed expires", 1),
    ("/304", "304 expires", "304 replayed expires", 1),
    // Not applied.
    ("/401", "401", "401", 2),
    ("/403", "403", "403", 2),
    ("/409/later", "409 retry-after", "409 retry-after", 2),
    ("/425", "425", "425", 2),
    ("/429", "429", "429", 2),
    ("/429/later", "429 retry-after", "429 retry-after", 2),
    ("/503/later", "503 retry-after", "503 retry-after", 2),
    // Final.
    ("/400", "400 expires", "400 replayed expires", 1),
    ("/402", "402 expires", "402 replayed expires", 1),
    ("/404", "404 expires", "404 replayed expires", 1),
    ("/405", "405 expires", "405 replayed expires", 1),
    ("/409", "409 expires", "409 replayed expires", 1),
    ("/410", "410 expires", "410 replayed expires", 1),
    ("/412", "412 expires", "412 replayed expires", 1),
    ("/422", "422 expires", "422 replayed expires", 1),
    ("/451", "451 expires", "451 replayed expires", 1),
    // Unknown.
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

/// Responses that are too long, endless or broken, with their bytes.
#[rustfmt::skip]
const BROKEN: &[(OutcomeRow, &str)] = &[
    (("/long", "200 expires", NOT_REPLAYABLE, 1),
     "HTTP/1.1 200 OK\r\ncontent-length: 40\r\n\r\n0123456789012345678901234567890123456789"),
    (("/long/refusal", "404 expires", NOT_REPLAYABLE, 1),
     "HTTP/1.1 404 Not Found\r\ncontent-length: 40\r\n\r\n0123456789012345678901234567890123456789"),
    (("/long/cut", "cut", NOT_REPLAYABLE, 1),
     "HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n0123456789012345678901234567890123456789"),
    (("/events", "200 expires", NOT_REPLAYABLE, 1),
     "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n"),
    (("/cut/body", CUT, UNKNOWN, 1), "HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nhalf"),
    (("/cut/refusal", CUT, UNKNOWN, 1), "HTTP/1.1 404 Not Found\r\ncontent-length: 20\r\n\r\nhalf"),
    (("/cut/chunk", CUT, UNKNOWN, 1), "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhalf"),
    (("/cut/head", CUT, UNKNOWN, 1), "HTTP/1.1 200 OK\r\ncontent-le"),
    (("/cut/all", CUT, UNKNOWN, 1), ""),
    (("/nonsense", CUT, UNKNOWN, 1), "SSH-2.0-OpenSSH\r\n\r\n"),
    (("/switched", CUT, UNKNOWN, 1), "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
];

/// Writes a response with the status in the path.
fn answer(path: &str) -> Vec<u8> {
    let mut parts = path.trim_start_matches('/').split('/');
    let status = parts.next().unwrap();
    let later = if parts.next() == Some("later") { "retry-after: 7\r\n" } else { "" };
    let body = if ["204", "304"].contains(&status) { "" } else { "content-length: 4\r\n\r\ntext" };
    let end = if body.is_empty() { "\r\n" } else { "" };
    format!("HTTP/1.1 {status} Scripted\r\ncontent-type: text/plain\r\nset-cookie: s=1\r\n{later}{body}{end}")
        .into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_api_response_has_its_outcome_in_every_store_h24() {
    let answers = STATUSES.iter().map(|row| (row.0, answer(row.0)));
    let broken = BROKEN.iter().map(|(row, bytes)| (row.0, bytes.as_bytes().to_vec()));
    let answers: Vec<_> = answers.chain(broken).collect();
    let directory = tempfile::tempdir().unwrap();
    for store in ["memory:", &sqlite(directory.path())] {
        let api = ScriptedApi::start(&answers).await;
        let gateway = Gateway::start(api.address, store, &["--max-stored-body", "32"]).await;
        for row in STATUSES.iter().chain(BROKEN.iter().map(|(row, _)| row)) {
            assert_outcome(&gateway, &api, row).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_changes_the_outcome_of_statuses_h25() {
    #[rustfmt::skip]
    let rows: &[OutcomeRow] = &[
        ("/503/own", "503", "503", 2),
        ("/500/own", "500 expires", "500 replayed expires", 1),
        ("/404/own", "404", UNKNOWN, 1),
        ("/502/own", "502 expires", "502 replayed expires", 1),
    ];
    let directory = directory_with(
        "[[route]]\npath = '/503/own'\nnot-applied = [503]\n[[route]]\npath = '/500/own'\nfinal = [500]\n\
         [[route]]\npath = '/404/own'\nunknown = [404]\n[[route]]\npath = '/502/own'\napplied = [502]\n\
         [[route]]\npath = '/200/short'\nlease = '1s'\nretention = '1s'\n",
    );
    let answers: Vec<_> = rows.iter().map(|row| row.0).chain(["/200/short"]).map(|path| (path, answer(path))).collect();
    let api = ScriptedApi::start(&answers).await;
    let config = directory.path().join("hapax.toml").display().to_string();
    let gateway = Gateway::start(api.address, "memory:", &["--config", &config]).await;
    for row in rows {
        assert_outcome(&gateway, &api, row).await;
    }
    assert_eq!(summary(&gateway.post("/200/short", "key-1", "{}").await), "200 expires");
    retry_until(&gateway, "/200/short", "200 expires").await;
    assert_eq!(api.count("/200/short"), 2, "an expired answer must not be replayed");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_listed_response_fields_are_replayed_h16() {
    let replayed = "content-type: text/plain\r\ncontent-language: en\r\ncontent-disposition: inline\r\n\
                content-encoding: identity\r\nvary: accept-encoding\r\nlocation: /charges/1\r\netag: \"1\"\r\n\
                link: </next>; rel=next\r\nretry-after: 7\r\nx-cost: 7\r\n";
    let once = "set-cookie: s=1\r\ndate: Sat, 01 Jan 2000 00:00:00 GMT\r\nwww-authenticate: Basic\r\nx-other: 1\r\n";
    let answer = format!("HTTP/1.1 201 Created\r\ncontent-length: 4\r\n{replayed}{once}\r\ntext");
    let api = ScriptedApi::start(&[("/charges", answer.into_bytes())]).await;
    let gateway = Gateway::start(api.address, "memory:", &["--store-header", "x-cost"]).await;
    let first = gateway.post("/charges", "key-1", "{}").await.unwrap();
    let copy = gateway.post("/charges", "key-1", "{}").await.unwrap();
    assert!(!first.is_replayed() && copy.is_replayed() && copy.headers["cache-control"] == "no-store");
    let fields = |text: &'static str| text.lines().map(|line| line.split_once(": ").unwrap());
    for (name, value) in fields(replayed) {
        assert!(first.headers[name] == value && copy.headers[name] == value, "{name}");
    }
    for (name, value) in fields(once) {
        assert_eq!(first.headers[name], value);
        assert!(copy.headers.get(name).is_none_or(|field| name == "date" && field != value), "{name}");
    }
}

/// Sends a request with only these fields.
async fn send(gateway: &Gateway, fields: &[(&str, &str)], body: &'static str) -> Option<ClientResponse> {
    let request = Request::post(format!("http://{}/charges", gateway.public));
    let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, value.as_bytes()));
    gateway.send(request.body(Full::from(Bytes::from(body))).unwrap()).await
}

const CALLER: (&str, &str) = ("authorization", "Bearer a");
const KEY: (&str, &str) = ("idempotency-key", "k");

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_leaves_the_key_free_h4() {
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
        assert_eq!(summary(&send(&gateway, &fields, "{}").await), refusal, "{key:?}");
    }
    assert_eq!(summary(&send(&gateway, &[CALLER, KEY, KEY], "{}").await), MALFORMED);
    for callers in [&[KEY][..], &[KEY, CALLER, CALLER]] {
        let got = send(&gateway, callers, "{}").await;
        assert_eq!(summary(&got), "400 caller-unknown same-key");
        assert!(got.unwrap().body.contains("exactly one authorization field"), "the problem must name the remedy");
    }
    assert_eq!(summary(&send(&gateway, &[CALLER, KEY], "123456789").await), "413 body-too-large never");
    // A malformed second chunk, and a second chunk that never arrives.
    for (second, status, name) in [("zz\r\n", 400, "body-cut"), ("", 408, "body-timeout")] {
        let mut wire = RawConnection::to(gateway.public).await;
        let head = "POST /charges HTTP/1.1\r\nhost: a\r\nauthorization: Bearer a\r\nidempotency-key: k\r\n";
        wire.send_bytes(format!("{head}transfer-encoding: chunked\r\n\r\n1\r\n{{\r\n{second}").as_bytes()).await;
        let refused = wire.read_response().await.unwrap();
        let text = refused.text();
        assert_eq!(refused.status, status, "{text}");
        assert!(text.contains(&format!("#{name}\"")) && text.contains("\"retry\":\"same-key\""), "{text}");
    }
    assert_eq!(api.seen().len(), 0);
    assert_eq!(summary(&send(&gateway, &[CALLER, KEY], "{}").await), "201 expires");
    assert_eq!(summary(&send(&gateway, &[CALLER, ("idempotency-key", "\"k\"")], "{}").await), "201 replayed expires");
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_during_the_first_attempt_wait_or_get_in_progress_h17() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = sqlite(directory.path());
    let gateway = Gateway::start(api.address, &store, &["--max-in-flight", "1"]).await;
    let other = Gateway::start(api.address, &store, &[]).await;
    let patient = Gateway::start(api.address, &store, &["--wait", "60s"]).await;
    let (first, waited) = tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        for gateway in [&gateway, &other] {
            let copy = gateway.post("/slow", "key-1", "{}").await;
            assert_eq!(summary(&copy), "409 in-progress same-key retry-after");
            let wait = copy.unwrap().headers["retry-after"].clone();
            assert!(wait == "1" || wait == "2", "{wait:?}");
            assert_eq!(summary(&gateway.post("/slow", "key-1", "[]").await), REUSED);
        }
        let busy = gateway.post("/charges", "key-2", "{}").await;
        assert_eq!(summary(&busy), "503 overloaded same-key retry-after");
        tokio::join!(patient.post("/slow", "key-1", "{}"), async { api.release_slow() }).0
    });
    assert_eq!((summary(&first), summary(&waited)), ("201 expires".into(), "201 replayed expires".into()));
    for gateway in [&gateway, &other, &patient] {
        assert_eq!(summary(&gateway.post("/slow", "key-1", "{}").await), "201 replayed expires");
    }
    assert_eq!(api.seen().len(), 1, "a refused request ran");
    assert_eq!(summary(&gateway.post("/charges", "key-2", "{}").await), "201 expires");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_outcome_is_held_or_retried_by_policy_h24() {
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
        assert_eq!(summary(&gateway.post(path, "key-1", "{}").await), first, "{policy} {path}");
        let second = gateway.post(path, "key-1", "{}").await;
        assert_eq!(summary(&second), copy, "{policy} {path}");
        // A client that obeys must not send its request in a loop.
        assert!(copy != UNKNOWN || second.unwrap().headers["retry-after"] == "30", "{policy} {path}");
        assert_eq!(summary(&gateway.post(path, "key-1", "[]").await), REUSED, "{policy} {path}");
        let attempts: Vec<_> = api.seen().iter().map(|seen| seen.headers["hapax-attempt"].clone()).collect();
        assert_eq!(attempts, ["1", "2"][..runs], "{policy} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_api_did_not_apply_the_request_h32() {
    let address = free_address();
    let gateway = Gateway::start(address, "memory:", &[]).await;
    for _ in 0..2 {
        let got = gateway.post("/charges", "key-1", "{}").await;
        assert_eq!(summary(&got), "502 upstream-unreachable same-key retry-after");
    }
    let api = Api::start_at(address).await;
    assert_eq!(summary(&gateway.post("/charges", "key-1", "[]").await), REUSED);
    assert_eq!(summary(&gateway.post("/charges", "key-1", "{}").await), "201 expires");
    assert_eq!((api.seen().len(), api.seen()[0].headers["hapax-attempt"].to_str().unwrap()), (1, "3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_a_copy_is_held_or_runs_again_as_the_route_says_h24() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = sqlite(directory.path());
    let holds = kill_during_request(&api, &store, "hold").await;
    assert_eq!(summary(&Some(holds.retry_until_settled("/slow", "key-1", "{}").await)), UNKNOWN);
    let retries = Gateway::start(api.address, &store, &["--on-lapse", "retry"]).await;
    assert_eq!(
        summary(&retries.post("/slow", "key-1", "{}").await),
        UNKNOWN,
        "a held record stays held under every policy"
    );
    assert_eq!(summary(&retries.post("/slow", "key-1", "[]").await), REUSED);
    assert_eq!(api.seen().len(), 1);

    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let retries = kill_during_request(&api, &sqlite(directory.path()), "retry").await;
    api.release_slow();
    assert_eq!(summary(&Some(retries.retry_until_settled("/slow", "key-1", "{}").await)), "201 expires");
    assert_eq!(summary(&retries.post("/slow", "key-1", "{}").await), "201 replayed expires");
    assert_eq!(api.seen().len(), 2);
}

/// Retries until the response has this summary.
async fn retry_until(gateway: &Gateway, path: &str, wanted: &str) {
    let mut got = String::new();
    until(wanted, async || {
        got = summary(&gateway.post(path, "key-1", "{}").await);
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
    let (api, directory) = (ScriptedApi::start(&answers).await, tempfile::tempdir().unwrap());
    let (store, fast) = (sqlite(directory.path()), ["--store-timeout", "200ms"]);
    let rejects = Gateway::start(api.address, &store, &fast).await;
    let passes = Gateway::start(api.address, &store, &[&fast[..], &["--when-store-down", "pass"]].concat()).await;
    let lock = lock_database(directory.path());
    for (path, unrecorded) in ROWS {
        let key = format!("key-of-{}", &path[1..]);
        let got = rejects.post(path, &key, "{}").await;
        assert_eq!((summary(&got).as_str(), api.count(path)), ("503 store-unavailable same-key retry-after", 0));
        for runs in 1..=2 {
            assert_eq!((summary(&passes.post(path, &key, "{}").await).as_str(), api.count(path)), (unrecorded, runs));
        }
    }
    drop(lock);
    retry_until(&rejects, "/201", "201 expires").await;
    retry_until(&passes, "/201", "201 replayed expires").await;
}

/// Sends a request, breaks the store while it runs, and returns the response.
async fn post_during_outage<T>(
    gateway: &Gateway,
    api: &Api,
    break_store: impl FnOnce() -> T,
) -> (Option<ClientResponse>, T) {
    tokio::join!(gateway.post("/slow", "key-1", "{}"), async {
        api.wait_for_requests(1).await;
        let broken = break_store();
        api.release_slow();
        broken
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_the_journal_is_marked_pending_and_recorded_later_h30() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let gateway = Gateway::start(api.address, &sqlite(directory.path()), &["--lease", "1s"]).await;
    let (first, lock) = post_during_outage(&gateway, &api, || lock_database(directory.path())).await;
    assert_eq!(summary(&first), "201 expires pending");
    drop(lock);
    retry_until(&gateway, "/slow", "201 replayed expires").await;
    assert_eq!(api.seen().len(), 1);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_neither_store_nor_journal_accepts_is_not_sent_h30() {
    let name = "http_contract::an_answer_that_neither_store_nor_journal_accepts_is_not_sent_h30";
    let Some(disk) = crate::disk::run_on_small_disk(name) else { return };
    let api = Api::start().await;
    let gateway = Gateway::start(api.address, &sqlite(&disk), &["--lease", "1s"]).await;
    let break_both = || (lock_database(&disk), crate::disk::fill(&disk));
    let (first, (lock, ballast)) = post_during_outage(&gateway, &api, break_both).await;
    assert_eq!(summary(&first), "500 outcome-unrecorded same-key");
    std::fs::remove_file(ballast).unwrap();
    drop(lock);
    retry_until(&gateway, "/slow", UNKNOWN).await;
    assert_eq!(api.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_record_is_an_error_and_never_runs_again_h31() {
    let (api, directory) = (Api::start().await, tempfile::tempdir().unwrap());
    let store = sqlite(directory.path());
    let gateway = Gateway::start(api.address, &store, &[]).await;
    // A damaged record is no outage: a route that runs requests without a record must not run this one either.
    let passes = Gateway::start(api.address, &store, &["--when-store-down", "pass"]).await;
    assert_eq!(summary(&gateway.post("/charges", "key-1", "{}").await), "201 expires");
    let database = Connection::open(directory.path().join("hapax.db")).unwrap();
    // The start-up check of the secret has a record as well, so more than one row may change.
    assert!(database.execute("update hapax_record set answer = null", []).unwrap() >= 1);
    for (gateway, body) in [(&gateway, "{}"), (&gateway, "[]"), (&passes, "{}"), (&passes, "[]")] {
        assert_eq!(summary(&gateway.post("/charges", "key-1", body).await), "500 record-damaged same-key");
    }
    assert_eq!(api.seen().len(), 1);
}

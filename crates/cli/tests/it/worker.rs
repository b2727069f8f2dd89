//! `hapax worker` between a durable queue in SQLite and an HTTP service.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use hapax::broker::Message;
use hapax::stores::SqliteQueue;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rusqlite::Connection;
use tokio::net::TcpListener;

use crate::harness::{Api, free_address, hapax, until};
use crate::moved_files::replace;
use crate::raw_http::RawConnection;

/// A queue, and the files of a worker.
struct Shop {
    directory: tempfile::TempDir,
    admin: SocketAddr,
    queue: &'static str,
}

impl Shop {
    fn new() -> Self {
        Self::with_queue("orders")
    }

    fn with_queue(queue: &'static str) -> Self {
        let shop = Self { directory: tempfile::tempdir().unwrap(), admin: free_address(), queue };
        SqliteQueue::migrate(&mut shop.connection()).unwrap();
        shop
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn connection(&self) -> Connection {
        Connection::open(self.path("shop.db")).unwrap()
    }

    /// Puts messages into the queue, in one transaction.
    fn enqueue(&self, messages: &[Message]) {
        let (mut connection, queue) = (self.connection(), SqliteQueue::new(self.queue).unwrap());
        let transaction = connection.transaction().unwrap();
        for message in messages {
            queue.enqueue(&transaction, message).unwrap();
        }
        transaction.commit().unwrap();
    }

    /// Whether every message was acknowledged.
    fn is_empty(&self) -> bool {
        self.count("") == 0
    }

    fn count(&self, which: &str) -> i64 {
        let sql = format!("select count(*) from hapax_queue {which}");
        self.connection().query_row(&sql, [], |row| row.get(0)).unwrap()
    }

    /// `more` replaces or adds flags, each with its value.
    fn command(&self, target: &str, more: &[&str]) -> Command {
        let file = |name: &str| self.path(name).display().to_string();
        let flags = [
            ("--source", format!("sqlite://{}?queue={}", file("shop.db"), self.queue)),
            ("--target", target.to_owned()),
            ("--store", format!("sqlite://{}", file("records.db"))),
            ("--admin", self.admin.to_string()),
        ];
        let mut command = hapax();
        command.arg("worker").args(more);
        for (flag, value) in flags.iter().filter(|(flag, _)| !more.contains(flag)) {
            command.args([flag, &**value]);
        }
        command
    }

    fn worker(&self, target: &str, more: &[&str]) -> RunningWorker {
        let mut command = self.command(target, more);
        RunningWorker(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// The status of the worker's readiness, and its reason.
    async fn ready(&self) -> (u16, String) {
        let mut admin = RawConnection::to(self.admin).await;
        admin.send_bytes(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        let page = admin.read_response().await.unwrap();
        (page.status, page.text())
    }

    /// The dead letters, one JSON object each.
    fn dead(&self) -> Vec<serde_json::Value> {
        self.run_dead(&["list"])
    }

    fn reasons(&self) -> Vec<String> {
        let text = |letter: &serde_json::Value| letter["reason"].as_str().unwrap().to_owned();
        let mut reasons: Vec<String> = self.dead().iter().map(text).collect();
        reasons.sort();
        reasons
    }

    /// The letters that are not marked for a redrive.
    fn unmarked(&self) -> usize {
        self.dead().iter().filter(|letter| letter["redrive_at"].is_null()).count()
    }

    /// Runs `hapax dead` with `--json`.
    fn run_dead(&self, arguments: &[&str]) -> Vec<serde_json::Value> {
        let store = format!("sqlite://{}", self.path("records.db").display());
        let output = hapax().arg("dead").args(arguments).args(["--json", "--store", &store]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// A worker process, killed when dropped.
struct RunningWorker(Child);

impl RunningWorker {
    fn terminate(mut self) -> Output {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let child = std::mem::replace(&mut self.0, Command::new("true").spawn().unwrap());
        child.wait_with_output().unwrap()
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn message(key: &str, payload: &'static str) -> Message {
    Message {
        payload: payload.into(),
        headers: [("Idempotency-Key", key.to_owned()), ("Content-Type", "text/plain".into())].into_iter().collect(),
        ..Message::default()
    }
}

fn target(api: &Api, path: &str) -> String {
    format!("http://{}{path}", api.address)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_takes_nothing_from_a_file_that_was_replaced() {
    for replaced in ["shop.db", "records.db", "letters.db"] {
        let (shop, api) = (Shop::new(), Api::start().await);
        shop.enqueue(&[message("order-1", "five")]);
        let letters = format!("sqlite://{}", shop.path("letters.db").display());
        let worker = shop.worker(&target(&api, "/transfers"), &["--dead-letter", &letters]);
        api.wait_for_requests(1).await;
        until("the worker is ready and the queue is empty", async || shop.is_empty() && shop.ready().await.0 == 200)
            .await;
        replace(&shop.path(replaced));
        let reason = format!("{replaced} was replaced by another file");
        until("the worker is not ready", async || {
            let (status, why) = shop.ready().await;
            status == 503 && why.contains(&reason)
        })
        .await;
        shop.enqueue(&[message("order-2", "six")]);
        let output = worker.terminate();
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(log.contains(&reason), "{replaced}: {log}");
        if replaced != "letters.db" {
            assert_eq!((api.count(), shop.is_empty()), (1, false), "{replaced}: the message waits for a restart");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_was_sent_twice_reaches_the_service_once() {
    let (shop, api) = (Shop::new(), Api::start().await);
    shop.enqueue(&[message("order-1", "five"), message("order-2", "six"), message("order-1", "five")]);
    let worker = shop.worker(&target(&api, "/transfers"), &[]);
    until("the queue is empty", async || shop.is_empty()).await;
    let seen = api.seen();
    assert_eq!(seen.len(), 2);
    for request in &seen {
        let field = |name: &str| request.headers[name].to_str().unwrap().to_owned();
        assert_eq!((request.path.as_str(), field("content-type")), ("/transfers", "text/plain".into()));
        assert_eq!(field("idempotency-key"), field("hapax-operation"));
        assert_eq!(field("hapax-attempt"), "1");
    }
    let mut bodies: Vec<_> = seen.iter().map(|request| request.body.clone()).collect();
    bodies.sort();
    assert_eq!(bodies, ["five", "six"]);
    for name in ["lag", "oldest_seconds", "in_flight", "attempts_total"] {
        // The lag is measured beside the messages.
        until(name, async || {
            let mut admin = RawConnection::to(shop.admin).await;
            admin.send_bytes(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            admin.read_response().await.unwrap().text().contains(&format!("# HELP hapax_worker_{name} "))
        })
        .await;
    }
    let ended = worker.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(shop.dead().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_message_that_nobody_can_process_becomes_a_dead_letter_with_its_reason() {
    let (shop, api) = (Shop::new(), Api::start().await);
    let keyless = Message { payload: "no key".into(), ..Message::default() };
    shop.enqueue(&[message("order-1", "five"), message("order-1", "six"), keyless]);
    let worker = shop.worker(&target(&api, "/status/200"), &[]);
    until("the queue is empty", async || shop.is_empty()).await;
    drop(worker);
    assert_eq!(api.count(), 1);
    assert_eq!(shop.reasons(), ["key-missing", "key-reused"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_of_the_service_means_what_the_table_says() {
    for (status, runs, reason, cause) in [
        ("422", 1, Some("rejected"), "the target answered 422 Unprocessable Entity"),
        ("500", 1, Some("outcome-unknown"), "the target answered 500 Internal Server Error"),
        ("302", 1, Some("outcome-unknown"), "the target answered 302 Found"),
        ("404", 2, Some("attempts-exhausted"), "the target answered 404 Not Found in the last attempt"),
        ("204", 1, None, ""),
    ] {
        let (shop, api) = (Shop::new(), Api::start().await);
        shop.enqueue(&[message("order-1", "five")]);
        let flags = ["--on-lapse", "hold", "--attempts", "2"];
        let worker = shop.worker(&target(&api, &format!("/status/{status}")), &flags);
        until("the queue is empty", async || shop.is_empty()).await;
        let log = String::from_utf8(worker.terminate().stderr).unwrap();
        assert_eq!(api.count(), runs, "{status}");
        let letters = shop.dead();
        let reasons: Vec<_> = letters.iter().map(|letter| letter["reason"].clone()).collect();
        assert_eq!(reasons, reason.into_iter().collect::<Vec<_>>(), "{status}");
        let Some(letter) = letters.first() else { continue };
        assert_eq!(letter["attempts"], runs, "{status}");
        let (id, operation) = (letter["id"].as_str().unwrap(), letter["operation"].as_str().unwrap());
        let shown = &shop.run_dead(&["show", id])[0];
        assert_eq!((&shown["cause"], &shown["operation"]), (&cause.into(), &operation.into()), "{status}");
        let line = log.lines().find(|line| line.contains("became a dead letter")).expect(&log);
        for part in [cause, operation, id, "attempts"] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_too_many_headers_is_dead_and_the_service_gets_nothing() {
    let (shop, api) = (Shop::new(), Api::start().await);
    let mut many = message("order-1", "five");
    (0..25_000).for_each(|n| many.headers.push(format!("ce-x{n}"), "1"));
    shop.enqueue(&[many, message("order-2", "six")]);
    let worker = shop.worker(&target(&api, "/transfers"), &[]);
    until("the queue is empty", async || shop.is_empty()).await;
    drop(worker);
    assert_eq!((api.count(), shop.reasons()), (1, vec!["rejected".to_owned()]));
    let id = shop.dead()[0]["id"].as_str().unwrap().to_owned();
    let shown = &shop.run_dead(&["show", &id])[0];
    assert!(shown["cause"].as_str().unwrap().starts_with("nothing was sent"), "{shown}");
    assert_eq!(shown["attempts"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_outcome_is_retried_as_often_as_the_policy_allows_and_then_a_dead_letter() {
    for attempts in ["1", "3"] {
        let (shop, api) = (Shop::new(), Api::start().await);
        shop.enqueue(&[message("order-1", "five")]);
        let flags = ["--on-lapse", "retry", "--attempts", attempts];
        let worker = shop.worker(&target(&api, "/status/500"), &flags);
        until("the message is dead", async || shop.is_empty() && shop.unmarked() == 1).await;
        drop(worker);
        assert_eq!((api.count().to_string(), shop.reasons()), (attempts.into(), vec!["outcome-unknown".into()]));
        assert_eq!(shop.dead()[0]["attempts"].to_string(), attempts);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_leaves_what_it_was_doing_to_the_policy() {
    for (policy, is_run_again) in [("hold", false), ("retry", true)] {
        let (shop, api) = (Shop::new(), Api::start().await);
        shop.enqueue(&[message("order-1", "five")]);
        let flags = ["--on-lapse", policy, "--lease", "1s"];
        let killed = shop.worker(&target(&api, "/slow"), &flags);
        api.wait_for_requests(1).await;
        drop(killed);
        api.release_slow();
        api.release_slow();
        let worker = shop.worker(&target(&api, "/slow"), &flags);
        until("the queue is empty", async || shop.is_empty()).await;
        drop(worker);
        assert_eq!(api.count(), if is_run_again { 2 } else { 1 }, "{policy}");
        let reasons: Vec<_> = shop.dead().iter().map(|letter| letter["reason"].clone()).collect();
        assert_eq!(reasons, if is_run_again { vec![] } else { vec!["outcome-unknown"] }, "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_down_costs_no_message() {
    let (shop, address) = (Shop::new(), free_address());
    shop.enqueue(&[message("order-1", "five"), message("order-2", "six")]);
    let worker = shop.worker(&format!("http://{address}/transfers"), &["--attempts", "1"]);
    until("the worker has taken the messages", async || shop.count("where attempts > 0") == 2).await;
    let api = Api::start_at(address).await;
    until("the queue is empty", async || shop.is_empty()).await;
    drop(worker);
    assert_eq!((api.count(), shop.dead().len()), (2, 0));
}

/// A service that refuses the message `refused` always and the message `first` twice. It notes each request.
struct RefusingApi {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<(Bytes, StatusCode)>>>,
}

impl RefusingApi {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = Self { address: listener.local_addr().unwrap(), asked: Arc::default() };
        let asked = Arc::clone(&api.asked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let asked = Arc::clone(&asked);
                let service = service_fn(move |request: Request<Incoming>| {
                    let asked = Arc::clone(&asked);
                    async move {
                        let body = request.into_body().collect().await?.to_bytes();
                        let status = Self::answer(&mut asked.lock().unwrap(), body);
                        Ok::<_, hyper::Error>(Response::builder().status(status).body(Empty::<Bytes>::new()).unwrap())
                    }
                });
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        api
    }

    fn answer(asked: &mut Vec<(Bytes, StatusCode)>, body: Bytes) -> StatusCode {
        let before = asked.iter().filter(|(other, _)| *other == body).count();
        let is_refused = body == "refused" || (body == "first" && before < 2);
        let status = if is_refused { StatusCode::NOT_FOUND } else { StatusCode::OK };
        asked.push((body, status));
        status
    }

    fn url(&self) -> String {
        format!("http://{}/transfers", self.address)
    }

    fn asked(&self) -> Vec<(Bytes, StatusCode)> {
        self.asked.lock().unwrap().clone()
    }

    fn applied(&self) -> usize {
        self.asked().iter().filter(|(_, status)| *status == StatusCode::OK).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_behind_more_refused_ones_than_slots_reach_the_service() {
    let (shop, api) = (Shop::new(), RefusingApi::start().await);
    let refused = (0..24).map(|n| message(&format!("refused-{n}"), "refused"));
    let messages: Vec<Message> = refused.chain([message("order-1", "five"), message("order-2", "six")]).collect();
    shop.enqueue(&messages);
    let worker = shop.worker(&api.url(), &["--concurrency", "4"]);
    until("the others are applied", async || api.applied() == 2).await;
    let ended = worker.terminate();
    let logs = String::from_utf8_lossy(&ended.stderr);
    assert!(logs.contains("has refused 20 messages in a row, the last one with 404"), "{logs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_waits_for_the_one_before_it_in_its_batch_that_was_not_applied() {
    // A message that was refused waits alone. Behind many others it lets the worker pause.
    for others in [0, 24] {
        let (shop, api) = (Shop::new(), RefusingApi::start().await);
        let refused: Vec<Message> = (0..others).map(|n| message(&format!("refused-{n}"), "refused")).collect();
        shop.enqueue(&refused);
        let worker = shop.worker(&api.url(), &["--batch", "32"]);
        until("the others are refused", async || api.asked().len() >= others).await;
        let of_one_key = |key: &str, payload| Message { ordering_key: Some("acme".into()), ..message(key, payload) };
        shop.enqueue(&[of_one_key("order-1", "first"), of_one_key("order-2", "second")]);
        until("both are applied", async || api.applied() == 2).await;
        drop(worker);
        let bodies = api.asked().into_iter().map(|(body, _)| body).filter(|body| *body != "refused");
        assert_eq!(bodies.collect::<Vec<_>>(), ["first", "first", "first", "second"], "behind {others} others");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_sends_a_message_again_that_had_too_many_attempts() {
    let (shop, api) = (Shop::new(), Api::start().await);
    shop.enqueue(&[message("order-1", "five")]);
    let worker = shop.worker(&target(&api, "/status/404"), &["--attempts", "2"]);
    until("there is a dead letter", async || shop.is_empty()).await;
    drop(worker);
    assert_eq!((shop.reasons(), api.count()), (vec!["attempts-exhausted".into()], 2));
    shop.run_dead(&["redrive", "--all"]);
    let worker = shop.worker(&target(&api, "/transfers"), &["--attempts", "2"]);
    until("the letter is gone", async || shop.dead().is_empty()).await;
    drop(worker);
    assert_eq!(api.seen()[2..].iter().map(|request| &request.path).collect::<Vec<_>>(), ["/transfers"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_outcome_is_sent_again_only_with_the_word_of_the_operator() {
    let (shop, api) = (Shop::new(), Api::start().await);
    shop.enqueue(&[message("order-1", "five")]);
    let worker = shop.worker(&target(&api, "/status/500"), &[]);
    until("there is a dead letter", async || shop.is_empty()).await;
    drop(worker);
    let worker = shop.worker(&target(&api, "/status/500"), &[]);
    shop.run_dead(&["redrive", "--all"]);
    until("it is dead again", async || shop.unmarked() == 1).await;
    assert_eq!((shop.reasons(), api.count()), (vec!["outcome-unknown".into()], 1));
    // The word is used up by the next attempt, whose outcome is unknown as well.
    shop.run_dead(&["redrive", "--all", "--not-done", "--yes"]);
    until("it was sent again, and is dead again", async || api.count() == 2 && shop.unmarked() == 1).await;
    assert_eq!(shop.reasons(), ["outcome-unknown"]);
    shop.run_dead(&["redrive", "--all"]);
    until("it is dead again", async || shop.unmarked() == 1).await;
    assert_eq!(api.count(), 2);
    drop(worker);
    shop.run_dead(&["redrive", "--all", "--not-done", "--yes"]);
    let worker = shop.worker(&target(&api, "/transfers"), &[]);
    until("the letter is gone", async || shop.dead().is_empty()).await;
    drop(worker);
    assert_eq!(api.count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_outcome_whose_record_has_expired_is_sent_again_only_with_a_word() {
    let (shop, api) = (Shop::new(), Api::start().await);
    shop.enqueue(&[message("order-1", "five"), message("order-2", "six")]);
    let flags = ["--lease", "1s", "--unknown-retention", "2s"];
    let worker = shop.worker(&target(&api, "/status/500"), &flags);
    until("there are two dead letters", async || shop.is_empty() && shop.unmarked() == 2).await;
    let records = Connection::open(shop.path("records.db")).unwrap();
    // The worker's own check leaves a record with an answer.
    let open = "select count(*) from hapax_record
        where state <> 2 and expires_at > cast(unixepoch('subsec') * 1000000 as integer)";
    until("the records have expired", async || records.query_row(open, [], |row| row.get::<_, i64>(0)).unwrap() == 0)
        .await;
    shop.run_dead(&["redrive", "--all"]);
    until("both are dead again", async || shop.unmarked() == 2).await;
    assert_eq!((shop.reasons(), api.count()), (vec!["outcome-unknown".to_owned(); 2], 2));
    drop(worker);

    // The word for the first is that it was processed, for the second that it was not.
    let letters = shop.dead();
    for (letter, word) in letters.iter().zip(["--done", "--not-done"]) {
        shop.run_dead(&["redrive", letter["id"].as_str().unwrap(), "--seen", letter["seen"].as_str().unwrap(), word]);
    }
    let worker = shop.worker(&target(&api, "/transfers"), &flags);
    until("the letters are gone", async || shop.dead().is_empty()).await;
    assert_eq!(api.count(), 3);
    // A copy of either is caught.
    shop.enqueue(&[message("order-1", "five"), message("order-2", "six")]);
    until("the queue is empty", async || shop.is_empty()).await;
    drop(worker);
    assert_eq!((api.count(), shop.dead().len()), (3, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_key_of_a_queue_named_redrive_goes_on_after_its_redrive() {
    let (shop, api) = (Shop::with_queue("redrive"), Api::start().await);
    let of_acme = |key: &str, payload| Message { ordering_key: Some("acme".into()), ..message(key, payload) };
    shop.enqueue(&[of_acme("order-1", "first"), of_acme("order-2", "later")]);
    let park = ["--on-dead", "park", "--lease", "2s"];
    let worker = shop.worker(&target(&api, "/status/404"), &[&park[..], &["--attempts", "1"]].concat());
    until("there is a dead letter", async || shop.count("") == 1 && shop.dead().len() == 1).await;
    drop(worker);
    let worker = shop.worker(&target(&api, "/transfers"), &park);
    until("the worker holds the later message", async || shop.count("where attempts > 0") == 1).await;
    shop.run_dead(&["redrive", "--all"]);
    until("the key goes on", async || shop.is_empty() && shop.dead().is_empty()).await;
    drop(worker);
    let bodies: Vec<_> = api.seen().iter().map(|request| request.body.clone()).collect();
    assert_eq!(bodies, ["first", "first", "later"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_key_waits_for_the_operator_and_others_go_on() {
    let (shop, api) = (Shop::new(), Api::start().await);
    let of = |account: &'static str, key: &str, payload: &'static str| Message {
        ordering_key: Some(account.into()),
        ..message(key, payload)
    };
    shop.enqueue(&[of("acme", "order-1", "refused"), of("acme", "order-2", "later")]);
    let park = ["--on-dead", "park", "--lease", "2s"];
    let worker = shop.worker(&target(&api, "/status/422"), &park);
    until("there is a dead letter", async || shop.count("") == 1 && shop.reasons() == ["rejected"]).await;
    drop(worker);
    let worker = shop.worker(&target(&api, "/transfers"), &park);
    until("the worker holds the later message", async || shop.count("where attempts > 0") == 1).await;
    shop.enqueue(&[of("other", "order-3", "other")]);
    until("the other key goes on", async || api.count() == 2 && shop.count("") == 1).await;
    let dropped = shop.run_dead(&["drop", "--all", "--reason", "rejected", "--yes"]);
    assert_eq!(dropped[0]["dropped"], true);
    until("the key goes on", async || shop.is_empty()).await;
    drop(worker);
    let bodies: Vec<_> = api.seen().iter().map(|request| request.body.clone()).collect();
    assert_eq!(bodies, ["refused", "other", "later"]);
}

#[test]
fn a_wrong_configuration_is_refused_with_its_remedy() {
    let shop = Shop::new();
    for (flags, remedy) in [
        (&["--retention", "1h"][..], "--retention: must be at least"),
        (&["--key", "header:"], "--key"),
        (&["--store", "memory:"], "add --dead-letter URL"),
        (&["--source", "gopher://broker"], "there is no source for the scheme"),
        (&["--target", "ftp://host"], "--target"),
        (&["--namespace", "hapax/x"], "--namespace"),
        (&["--on-dead", "park", "--dead-letter", "redis://127.0.0.1"], "PostgreSQL or SQLite"),
        (&["--on-dead", "park", "--dead-letter", "nats://127.0.0.1/dead"], "PostgreSQL or SQLite"),
        #[cfg(feature = "rabbitmq")]
        (&["--on-dead", "park", "--source", "amqp://127.0.0.1/shop?queue=orders"], "park is not for RabbitMQ"),
        #[cfg(feature = "rabbitmq")]
        (&["--key", "coordinates", "--source", "amqp://127.0.0.1/shop?queue=orders"], "has no coordinates"),
        #[cfg(feature = "rabbitmq")]
        (&["--key", "payload-hash:1h", "--source", "amqp://127.0.0.1/shop?queue=orders"], "when it got a message"),
        (&["--dead-letter", "gopher://127.0.0.1"], "nats://HOST[/SUBJECT]"),
        (&["--dead-letter", "nats://127.0.0.1/{other}"], "--dead-letter"),
        (&["--dead-letter", "nats://127.0.0.1", "--dead-letter-topic", "{other}"], "--dead-letter-topic"),
        (&["--dead-letter-topic", "dead"], "only a broker has topics"),
        (&["--key", "payload-hash:1h,/sent_at"], "payload-hash:BUCKET[;/pointer]"),
    ] {
        let output = shop.command("http://127.0.0.1:9/", flags).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {error}");
        assert!(error.contains(remedy), "{flags:?}: {error}");
    }
    let checked = shop.command("http://127.0.0.1:9/", &["--check"]).output().unwrap();
    let shown = String::from_utf8(checked.stdout).unwrap();
    assert!(shown.contains("namespace") && shown.contains("orders") && shown.ends_with("ok\n"), "{shown}");
    assert!(!Path::new(&shop.path("records.db")).exists(), "--check opens nothing");
}

#[test]
fn a_rule_with_excluded_pointers_is_one_rule_of_a_list() {
    let (shop, rules) = (Shop::new(), "header:id,payload-hash:1h;/sent_at;/trace/id");
    let by_flag = shop.command("http://127.0.0.1:9/", &["--key", rules, "--check"]).output().unwrap();
    let by_variable = shop.command("http://127.0.0.1:9/", &["--check"]).env("HAPAX_KEY", rules).output().unwrap();
    for checked in [by_flag, by_variable] {
        let (shown, error) = (String::from_utf8_lossy(&checked.stdout), String::from_utf8_lossy(&checked.stderr));
        assert_eq!(checked.status.code(), Some(0), "{error}");
        assert!(shown.contains("payload-hash:1h;/sent_at;/trace/id"), "{shown}");
    }
}

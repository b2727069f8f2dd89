//! `hapax worker` on subscriptions of the emulator of Pub/Sub.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hapax_testkit::servers::{self, PubSubServer, Trial};
use http::{Method, Request};
use serde_json::{Value, json};

use crate::harness::{Api, GatewayClient, free_address, hapax, sqlite, until};
use crate::worker::RunningWorker;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        servers::test("each_message_of_a_subscription_reaches_the_service_once", "pubsub", one_worker),
        servers::test("dead_letters_are_published_to_a_topic", "pubsub", dead_letters),
        servers::test(
            "a_worker_without_its_subscription_names_the_cause_and_a_check_asks_nobody",
            "pubsub",
            wrong_starts,
        ),
    ]
}

/// A topic with two subscriptions: that of its name, and one for the test.
pub(crate) struct Topic {
    server: Arc<PubSubServer>,
    pub(crate) name: &'static str,
    client: GatewayClient,
}

/// A message that was received.
pub(crate) struct TopicMessage {
    pub(crate) body: String,
    pub(crate) ordering_key: String,
    pub(crate) attributes: BTreeMap<String, String>,
}

impl Topic {
    pub(crate) async fn create(name: &'static str) -> Self {
        let server = PubSubServer::shared().await.unwrap();
        let client = GatewayClient::of(server.address());
        let topic = Self { server, name, client };
        topic.call(Method::PUT, &format!("topics/{name}"), json!({})).await;
        for subscription in [name.to_owned(), format!("{name}-test")] {
            let settings = json!({ "topic": format!("projects/shop/topics/{name}"), "enableMessageOrdering": true });
            topic.call(Method::PUT, &format!("subscriptions/{subscription}"), settings).await;
        }
        topic
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> Value {
        let uri = format!("http://{}/v1/projects/shop/{path}", self.server.address());
        let request = Request::builder().method(method).uri(uri).header("content-type", "application/json");
        let answer = self.client.send(request.body(body.to_string().into()).unwrap()).await.unwrap();
        assert!(answer.status.is_success(), "{path}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap_or_default()
    }

    /// Publishes a message with this attribute.
    async fn publish(&self, name: &str, value: &str, body: &str) {
        let message = json!({ "data": BASE64_STANDARD.encode(body), "attributes": { name: value } });
        self.call(Method::POST, &format!("topics/{}:publish", self.name), json!({ "messages": [message] })).await;
    }

    /// The messages that a subscription gives out now. They are acknowledged.
    pub(crate) async fn messages(&self, subscription: &str) -> Vec<TopicMessage> {
        let mut found = Vec::new();
        loop {
            let asked = json!({ "maxMessages": 1000, "returnImmediately": true });
            let answer = self.call(Method::POST, &format!("subscriptions/{subscription}:pull"), asked).await;
            let received = answer["receivedMessages"].as_array().cloned().unwrap_or_default();
            if received.is_empty() {
                return found;
            }
            let ack_ids: Vec<&Value> = received.iter().map(|message| &message["ackId"]).collect();
            let acknowledged = json!({ "ackIds": ack_ids });
            self.call(Method::POST, &format!("subscriptions/{subscription}:acknowledge"), acknowledged).await;
            found.extend(received.iter().map(|received| read(&received["message"])));
        }
    }

    /// Whether each message of the subscription is acknowledged: that of the test becomes like it for a look.
    async fn is_empty(&self) -> bool {
        static LOOKS: AtomicUsize = AtomicUsize::new(0);
        let snapshot = format!("{}-{}", self.name, LOOKS.fetch_add(1, Ordering::Relaxed));
        let of = json!({ "subscription": format!("projects/shop/subscriptions/{}", self.name) });
        self.call(Method::PUT, &format!("snapshots/{snapshot}"), of).await;
        let seek = json!({ "snapshot": format!("projects/shop/snapshots/{snapshot}") });
        self.call(Method::POST, &format!("subscriptions/{}:seek", self.test_subscription()), seek).await;
        self.messages(&self.test_subscription()).await.is_empty()
    }

    /// The subscription of the test.
    pub(crate) fn test_subscription(&self) -> String {
        format!("{}-test", self.name)
    }

    /// The project, as a sink names it.
    pub(crate) fn project_url(&self) -> String {
        self.server.named("")
    }

    fn url(&self) -> String {
        format!("{}&deadline=10", self.server.named(self.name))
    }
}

fn read(message: &Value) -> TopicMessage {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let body = BASE64_STANDARD.decode(text(&message["data"])).unwrap();
    let attributes = message["attributes"].as_object().cloned().unwrap_or_default();
    TopicMessage {
        body: String::from_utf8(body).unwrap(),
        ordering_key: text(&message["orderingKey"]),
        attributes: attributes.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
    }
}

fn worker(source: &str, target: &str, directory: &Path) -> Command {
    let mut command = hapax();
    command.args(["worker", "--source", source, "--target", target, "--store", &sqlite(directory)]);
    command.args(["--admin", &free_address().to_string()]);
    command
}

async fn one_worker() {
    let (topic, api) = (Topic::create("cli-orders").await, Api::start().await);
    let directory = tempfile::tempdir().unwrap();
    for key in ["order-1", "order-2", "order-1", "order-3"] {
        topic.publish("Idempotency-Key", key, "five").await;
    }
    let target = format!("http://{}/transfers", api.address);
    let worker = RunningWorker::start(worker(&topic.url(), &target, directory.path()));
    until("every message is acknowledged", async || topic.is_empty().await).await;
    let (code, log) = worker.terminate();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(api.count(), 3);
}

async fn dead_letters() {
    let (topic, api) = (Topic::create("cli-lost").await, Api::start().await);
    let letters = Topic::create("cli-lost-dead-letters").await;
    let directory = tempfile::tempdir().unwrap();
    topic.publish("Colour", "red", "five").await;
    topic.publish("Idempotency-Key", "order-1", "six").await;
    let mut command = worker(&topic.url(), &format!("http://{}/status/422", api.address), directory.path());
    command.args(["--dead-letter", &topic.project_url(), "--dead-letter-topic", "{namespace}-{topic}"]);
    let worker = RunningWorker::start(command);
    until("every message is acknowledged", async || topic.is_empty().await).await;
    let (code, log) = worker.terminate();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("nothing redrives them"), "{log}");
    let mut found = letters.messages(&letters.test_subscription()).await;
    found.sort_by_key(|letter| letter.attributes["Hapax-Dead-Reason"].clone());
    let reasons: Vec<&str> = found.iter().map(|letter| &*letter.attributes["Hapax-Dead-Reason"]).collect();
    assert_eq!(reasons, ["key-missing", "rejected"]);
    assert_eq!([&found[0].body, &found[1].body], ["five", "six"]);
    assert_eq!(found[0].attributes["Colour"], "red");
    assert_eq!(found[1].attributes["Original-Idempotency-Key"], "order-1");
}

async fn wrong_starts() {
    let (topic, directory) = (Topic::create("cli-wrong").await, tempfile::tempdir().unwrap());
    let run = |source: &str, flags: &[&str]| {
        let mut command = worker(source, "http://127.0.0.1:9/", directory.path());
        let output = command.env("GOOGLE_APPLICATION_CREDENTIALS", "/none.json").args(flags).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(!text.contains("hush-hush"), "{text}");
        (output.status.code(), text)
    };
    for (source, flags, code, cause) in [
        (
            topic.server.named("no-such-subscription"),
            &[][..],
            3,
            "the subscription `no-such-subscription` cannot be used",
        ),
        ("pubsub://shop/orders".into(), &[], 3, "/none.json cannot be used"),
        ("pubsub://key:hush-hush@shop/orders".into(), &[], 2, "a URL of Pub/Sub has no credentials"),
        ("pubsub://shop/orders?deadline=5".into(), &[], 2, "deadline"),
        (topic.url(), &["--order", "header:account"], 2, "in a subscription with message ordering"),
    ] {
        let (got, text) = run(&source, flags);
        assert!(got == Some(code) && text.contains(cause), "{source}: {got:?} {text}");
    }
    let (code, text) = run("pubsub://shop/orders?deadline=30", &["--check"]);
    assert!(code == Some(0) && text.ends_with("ok\n"), "{text}");
    let row = |flag: &str| text.lines().find(|line| line.starts_with(flag)).unwrap_or_default().to_owned();
    assert!(row("source").contains("pubsub://shop/orders") && row("namespace").contains("orders"), "{text}");
}

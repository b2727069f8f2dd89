//! `hapax worker` on queues of a stand-in for SQS.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use hapax_testkit::servers::{self, ElasticMqServer, Trial};
use http::Request;
use serde_json::{Map, Value, json};

use crate::harness::{Api, GatewayClient, free_address, hapax, sqlite, until};
use crate::worker::RunningWorker;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        servers::test("each_message_of_a_queue_reaches_the_service_once", "elasticmq", one_worker),
        servers::test("dead_letters_are_sent_to_a_queue", "elasticmq", dead_letters),
        servers::test("a_worker_without_its_queue_names_the_cause_and_a_check_asks_nobody", "elasticmq", wrong_starts),
    ]
}

/// A queue of its own.
pub(crate) struct Queue {
    server: Arc<ElasticMqServer>,
    pub(crate) name: &'static str,
    client: GatewayClient,
}

/// A message that was received.
pub(crate) struct QueueMessage {
    pub(crate) body: String,
    pub(crate) group: String,
    attributes: Map<String, Value>,
}

impl QueueMessage {
    /// A header, which is an attribute or a pair in `hapax-headers`.
    fn header(&self, name: &str) -> String {
        let attribute = |name: &str| self.attributes.get(name)?["StringValue"].as_str();
        let pairs = attribute("hapax-headers").unwrap_or("[]");
        let pairs: Vec<(String, String)> = serde_json::from_str(pairs).unwrap();
        let pair = pairs.into_iter().find(|(other, _)| other == name).map(|(_, value)| value);
        attribute(name).map(str::to_owned).or(pair).unwrap_or_default()
    }
}

impl Queue {
    pub(crate) async fn create(name: &'static str) -> Self {
        let server = ElasticMqServer::shared().await.unwrap();
        let client = GatewayClient::of(server.address());
        let queue = Self { server, name, client };
        let attributes = if name.ends_with(".fifo") { json!({ "FifoQueue": "true" }) } else { json!({}) };
        queue.call("CreateQueue", json!({ "QueueName": name, "Attributes": attributes })).await;
        queue
    }

    async fn call(&self, operation: &str, mut body: Value) -> Value {
        let address = self.server.address();
        if body.get("QueueName").is_none() {
            body["QueueUrl"] = json!(format!("http://{address}/000000000000/{}", self.name));
        }
        let request = Request::post(format!("http://{address}/")).header("content-type", "application/x-amz-json-1.0");
        let request = request.header("x-amz-target", format!("AmazonSQS.{operation}"));
        let answer = self.client.send(request.body(body.to_string().into()).unwrap()).await.unwrap();
        assert!(answer.status.is_success(), "{operation}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap_or_default()
    }

    /// Sends a message with this header.
    async fn send(&self, header: &str, value: &str, body: &str) {
        let attributes = json!({ header: { "DataType": "String", "StringValue": value } });
        self.call("SendMessage", json!({ "MessageBody": body, "MessageAttributes": attributes })).await;
    }

    /// The messages that are visible. They are deleted.
    pub(crate) async fn messages(&self) -> Vec<QueueMessage> {
        let mut found = Vec::new();
        loop {
            let asked = json!({
                "MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"],
            });
            let received = self.call("ReceiveMessage", asked).await;
            let messages = received["Messages"].as_array().cloned().unwrap_or_default();
            if messages.is_empty() {
                return found;
            }
            for message in messages {
                self.call("DeleteMessage", json!({ "ReceiptHandle": message["ReceiptHandle"] })).await;
                found.push(QueueMessage {
                    body: message["Body"].as_str().unwrap().to_owned(),
                    group: message["Attributes"]["MessageGroupId"].as_str().unwrap_or_default().to_owned(),
                    attributes: message["MessageAttributes"].as_object().cloned().unwrap_or_default(),
                });
            }
        }
    }

    /// Whether all messages are deleted.
    async fn is_empty(&self) -> bool {
        let asked = self.call("GetQueueAttributes", json!({ "AttributeNames": ["All"] })).await;
        let counts = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
        counts.iter().all(|name| asked["Attributes"][name] == "0")
    }

    pub(crate) fn server_url(&self) -> String {
        self.server.url()
    }

    fn url(&self) -> String {
        format!("{}/{}?wait=1", self.server_url(), self.name)
    }
}

fn worker(source: &str, target: &str, directory: &Path) -> Command {
    let mut command = hapax();
    command.args(["worker", "--source", source, "--target", target, "--store", &sqlite(directory)]);
    command.args(["--admin", &free_address().to_string()]);
    command
}

async fn one_worker() {
    let (queue, api) = (Queue::create("cli-orders").await, Api::start().await);
    let directory = tempfile::tempdir().unwrap();
    for key in ["order-1", "order-2", "order-1"] {
        queue.send("Idempotency-Key", key, "five").await;
    }
    let target = format!("http://{}/transfers", api.address);
    let worker = RunningWorker::start(worker(&queue.url(), &target, directory.path()));
    until("every message is deleted", async || queue.is_empty().await).await;
    let (code, log) = worker.terminate();
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(api.count(), 2);
}

async fn dead_letters() {
    let (queue, api) = (Queue::create("cli-lost").await, Api::start().await);
    let letters = Queue::create("cli-lost-dead-letters").await;
    let directory = tempfile::tempdir().unwrap();
    queue.send("Colour", "red", "five").await;
    queue.send("Idempotency-Key", "order-1", "six").await;
    let mut command = worker(&queue.url(), &format!("http://{}/status/422", api.address), directory.path());
    command.args(["--dead-letter", &queue.server_url(), "--dead-letter-topic", "{namespace}-{topic}"]);
    let worker = RunningWorker::start(command);
    until("every message is deleted", async || queue.is_empty().await).await;
    let (code, log) = worker.terminate();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("nothing redrives them"), "{log}");
    let mut letters = letters.messages().await;
    letters.sort_by_key(|letter| letter.header("Hapax-Dead-Reason"));
    let reasons: Vec<String> = letters.iter().map(|letter| letter.header("Hapax-Dead-Reason")).collect();
    assert_eq!(reasons, ["key-missing", "rejected"]);
    assert_eq!([&letters[0].body, &letters[1].body], ["five", "six"]);
    assert_eq!(letters[0].header("Colour"), "red");
    assert_eq!(letters[1].header("Original-Idempotency-Key"), "order-1");
}

async fn wrong_starts() {
    let (queue, directory) = (Queue::create("cli-wrong").await, tempfile::tempdir().unwrap());
    let run = |source: &str, flags: &[&str]| {
        let output = worker(source, "http://127.0.0.1:9/", directory.path()).args(flags).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(!text.contains("hush-hush"), "{text}");
        (output.status.code(), text)
    };
    let url = queue.server_url();
    for (source, flags, code, cause) in [
        (format!("{url}/no-such-queue"), &[][..], 3, "the queue `no-such-queue` cannot be used"),
        ("sqs://key:hush-hush@eu-west-1/orders".into(), &[], 2, "a URL of SQS has no credentials"),
        ("sqs://eu-west-1/orders?wait=60".into(), &[], 2, "wait"),
        (queue.url(), &["--order", "header:account"], 2, "the message group of a FIFO queue"),
    ] {
        let (got, text) = run(&source, flags);
        assert!(got == Some(code) && text.contains(cause), "{source}: {got:?} {text}");
    }
    let (code, text) = run("sqs://eu-west-1/orders.fifo?visibility=60", &["--check"]);
    assert!(code == Some(0) && text.ends_with("ok\n"), "{text}");
    let row = |flag: &str| text.lines().find(|line| line.starts_with(flag)).unwrap_or_default().to_owned();
    assert!(row("source").contains("orders.fifo") && row("namespace").contains("orders.fifo"), "{text}");
}

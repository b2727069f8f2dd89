//! `hapax worker` and `hapax relay` on RabbitMQ.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use hapax_testkit::servers::{self, RabbitMqServer, Trial};
use lapin::message::Delivery;
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};

use crate::harness::{Api, free_address, hapax, until};
use crate::relay::Shop;
use crate::worker::RunningWorker;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        servers::test("each_message_of_a_queue_reaches_the_service_once_and_is_acknowledged", "rabbitmq", one_worker),
        servers::test("a_dead_letter_of_a_queue_reaches_the_service_after_its_redrive", "rabbitmq", redrive),
        servers::test("every_event_reaches_rabbitmq_in_the_order_of_its_key", "rabbitmq", relay),
    ]
}

/// An exchange, and a quorum queue of the same name for all of its messages.
struct Queue {
    server: Arc<RabbitMqServer>,
    name: &'static str,
    channel: Channel,
    _connection: Connection,
}

impl Queue {
    async fn declare(name: &'static str) -> Self {
        let server = RabbitMqServer::shared().await.unwrap();
        let connection = Connection::connect(&server.url(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        let (durable, none) = (QueueDeclareOptions { durable: true, ..Default::default() }, FieldTable::default());
        channel.queue_declare(name.into(), durable, arguments).await.unwrap();
        let options = ExchangeDeclareOptions::default();
        channel.exchange_declare(name.into(), ExchangeKind::Topic, options, none.clone()).await.unwrap();
        channel.queue_bind(name.into(), name.into(), "#".into(), QueueBindOptions::default(), none).await.unwrap();
        Self { server, name, channel, _connection: connection }
    }

    /// Sends a message without a key, or with one.
    async fn send(&self, key: Option<&str>) {
        let mut headers = FieldTable::default();
        headers.insert("Account".into(), AMQPValue::LongString("7".into()));
        if let Some(key) = key {
            headers.insert("Idempotency-Key".into(), AMQPValue::LongString(key.into()));
        }
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default().with_headers(headers));
        let sent = self.channel.basic_publish(self.name.into(), "new".into(), options, b"five", properties).await;
        sent.unwrap().await.unwrap();
    }

    /// Takes all messages.
    async fn take(&self) -> Vec<Delivery> {
        let mut taken = Vec::new();
        while let Some(message) =
            self.channel.basic_get(self.name.into(), BasicGetOptions { no_ack: true }).await.unwrap()
        {
            taken.push(message.delivery);
        }
        taken
    }

    fn worker(&self, target: &str, folder: &Path) -> Command {
        let source = format!("{}/?queue={}&order=header:Account", self.server.url(), self.name);
        let store = format!("sqlite://{}", folder.join("records.db").display());
        let mut command = hapax();
        command.args(["worker", "--source", &source, "--target", target, "--store", &store]);
        command.args(["--admin", &free_address().to_string()]);
        command
    }
}

fn text(message: &Delivery, header: &str) -> String {
    let headers = message.properties.headers().as_ref().unwrap();
    match headers.inner().get(header) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("{header}: {other:?} in {headers:?}"),
    }
}

async fn one_worker() {
    let (queue, dead, api) = (Queue::declare("cli-orders").await, Queue::declare("cli-dead").await, Api::start().await);
    let directory = tempfile::tempdir().unwrap();
    // The last one is processed when the others are settled: all have one order.
    for key in [Some("order-1"), None, Some("order-1"), Some("order-2")] {
        queue.send(key).await;
    }
    let mut command = queue.worker(&format!("http://{}/transfers", api.address), directory.path());
    command.args(["--dead-letter", &format!("{}?exchange=cli-dead", queue.server.url())]);
    command.args(["--dead-letter-topic", "{namespace}.{topic}"]);
    let worker = RunningWorker::start(command);
    until("the last message is processed", async || api.count() == 2).await;
    let (code, log) = worker.terminate();
    assert_eq!(code, Some(0), "{log}");
    assert!(queue.take().await.is_empty(), "all are acknowledged: {log}");
    let letters = dead.take().await;
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!((letter.routing_key.as_str(), &letter.data[..]), ("cli-orders.dead-letters", &b"five"[..]));
    assert_eq!(text(letter, "Hapax-Dead-Reason"), "key-missing");
}

async fn redrive() {
    let (queue, api, directory) =
        (Queue::declare("cli-redriven").await, Api::start().await, tempfile::tempdir().unwrap());
    let file = format!("sqlite://{}", directory.path().join("records.db").display());
    let letters = || {
        let listed = hapax().args(["dead", "list", "--json", "--database", &file]).output().unwrap();
        String::from_utf8(listed.stdout).unwrap()
    };
    queue.send(Some("order-1")).await;
    let mut refusing = queue.worker(&format!("http://{}/status/409", api.address), directory.path());
    refusing.args(["--attempts", "1"]);
    let worker = RunningWorker::start(refusing);
    until("the message is dead", async || letters().contains("attempts-exhausted")).await;
    assert_eq!(worker.terminate().0, Some(0));
    assert!(queue.take().await.is_empty());
    let seen = api.count();
    let worker = RunningWorker::start(queue.worker(&format!("http://{}/transfers", api.address), directory.path()));
    let redriven = hapax().args(["dead", "redrive", "--all", "--database", &file]).output().unwrap();
    assert_eq!(redriven.status.code(), Some(0), "{redriven:?}");
    until("it is processed and its letter is removed", async || !letters().contains("attempts-exhausted")).await;
    assert_eq!(worker.terminate().0, Some(0));
    assert_eq!(api.count(), seen + 1);
}

/// One relay is killed, so that some events may arrive again: RabbitMQ recognizes none, and their ids are the same.
async fn relay() {
    let (shop, queue) = (Shop::create().await, Queue::declare("cli-relayed").await);
    let sink = format!("{}?exchange={}", queue.server.url(), queue.name);
    shop.emit(1..=200).await;
    let first = shop.relay_to(&sink, "shop.{topic}");
    until("it may have published", async || shop.published().await > 0).await;
    // Dropped, a process gets SIGKILL.
    drop(first);
    let second = shop.relay_to(&sink, "shop.{topic}");
    shop.emit(201..=400).await;
    until("all rows are published", async || shop.published().await == 400).await;
    let (code, log) = second.terminate();
    assert_eq!(code, Some(0), "{log}");
    let mut numbers: BTreeMap<String, i32> = BTreeMap::new();
    let mut keys: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for message in queue.take().await {
        let number: i32 = String::from_utf8(message.data.clone()).unwrap().parse().unwrap();
        assert_eq!(message.routing_key.as_str(), "shop.paid");
        assert_eq!(text(&message, "cloudEvents:partitionkey"), (number % 20).to_string());
        match numbers.insert(text(&message, "cloudEvents:id"), number) {
            Some(before) => assert_eq!(before, number, "one id names one event"),
            None => keys.entry(number % 20).or_default().push(number),
        }
    }
    for (key, arrived) in keys {
        let all: Vec<i32> = (1..=400).filter(|number| number % 20 == key).collect();
        assert_eq!(arrived, all, "in order, and none is missing");
    }
}

//! `hapax relay` between PostgreSQL and NATS JetStream, Kafka, Pub/Sub or SQS.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::process::Command;
use std::sync::Arc;

use hapax::stores::PostgresTables;
use hapax_testkit::servers::{self, NatsServer, PostgresSchema, PostgresServer, Trial};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{free_address, hapax, until};
use crate::worker::{NatsClient, RunningWorker};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        servers::test("every_event_arrives_although_one_of_two_relays_is_killed", "nats", one_of_two_is_killed),
        servers::test("events_are_published_again_after_the_broker_has_lost_them", "nats", lost_by_the_broker),
        servers::test(
            "events_are_published_again_within_the_window_of_a_stream_that_was_purged",
            "nats",
            lost_by_a_broker_that_remembers,
        ),
        servers::test("a_relay_waits_for_a_broker_that_is_away", "nats", broker_away),
        #[cfg(feature = "kafka")]
        servers::test("every_event_reaches_kafka_in_the_order_of_its_key", "kafka", to_kafka),
        #[cfg(feature = "pubsub")]
        servers::test("every_event_reaches_a_topic_in_the_order_of_its_key", "pubsub", to_pubsub),
        #[cfg(feature = "sqs")]
        servers::test("every_event_reaches_a_fifo_queue_once_in_the_order_of_its_key", "elasticmq", to_sqs),
    ]
}

/// A database with an outbox.
pub(crate) struct Shop {
    schema: PostgresSchema,
    audit: tempfile::NamedTempFile,
}

impl Shop {
    pub(crate) async fn create() -> Self {
        let schema = PostgresServer::shared().await.unwrap().schema().await.unwrap();
        PostgresTables::connect(&schema.url().parse().unwrap()).unwrap().create().await.unwrap();
        Self { schema, audit: tempfile::NamedTempFile::new().unwrap() }
    }

    /// Emits an event for each of these numbers, under twenty keys.
    pub(crate) async fn emit(&self, numbers: std::ops::RangeInclusive<i32>) {
        let sql = format!(
            "select {}.hapax_emit('accounts', null, null, 'paid', convert_to(n::text, 'UTF8'), \
             okey => convert_to((n % 20)::text, 'UTF8')) from generate_series($1::integer, $2::integer) n",
            self.schema.name()
        );
        self.schema.admin().query(&sql, &[numbers.start(), numbers.end()]).await.unwrap();
    }

    pub(crate) async fn published(&self) -> i64 {
        let sql = format!("select count(*) from {}.hapax_outbox where state = 1", self.schema.name());
        self.schema.admin().query_one(&sql, &[]).await.unwrap().get(0)
    }

    pub(crate) fn relay_to(&self, sink: &str, template: &str) -> RunningWorker {
        let mut relay: Command = hapax();
        relay.args(["relay", "--database", &self.schema.url(), "--lease", "1s", "--sink", sink]);
        relay.args(["--topic-template", template, "--admin", &free_address().to_string()]);
        RunningWorker::start(relay)
    }
}

/// A database with an outbox, and a stream of the same name as its schema.
struct NatsShop {
    shop: Shop,
    server: Arc<NatsServer>,
}

impl Deref for NatsShop {
    type Target = Shop;

    fn deref(&self) -> &Shop {
        &self.shop
    }
}

impl NatsShop {
    async fn create() -> Self {
        let shop = Self { shop: Shop::create().await, server: NatsServer::shared().await.unwrap() };
        let name = shop.schema.name();
        let stream = format!(r#"{{"name":"{name}","subjects":["{name}.>"],"allow_direct":true}}"#);
        shop.nats().request(&format!("$JS.API.STREAM.CREATE.{name}"), "", &stream);
        shop
    }

    fn nats(&self) -> NatsClient {
        NatsClient::connect(self.server.address())
    }

    fn relay(&self) -> RunningWorker {
        let template = format!("{}.{{topic}}", self.schema.name());
        self.relay_to(&format!("nats://{}", self.server.address()), &template)
    }

    /// The payloads in the stream, in its order.
    fn arrived(&self) -> Vec<i32> {
        let (name, mut nats) = (self.schema.name(), self.nats());
        let info: serde_json::Value =
            serde_json::from_str(nats.request(&format!("$JS.API.STREAM.INFO.{name}"), "", "").trim()).unwrap();
        let number = |field: &str| info["state"][field].as_u64().unwrap();
        let payload = |sequence: u64| {
            let message = nats.request(&format!("$JS.API.DIRECT.GET.{name}"), "", &format!(r#"{{"seq":{sequence}}}"#));
            let number = message.rsplit("\r\n\r\n").next().unwrap().trim().parse();
            number.unwrap_or_else(|error| panic!("{error} in message {sequence}: {message:?}"))
        };
        (number("first_seq")..=number("last_seq")).map(payload).collect()
    }
}

async fn one_of_two_is_killed() {
    let shop = NatsShop::create().await;
    shop.emit(1..=200).await;
    let (first, second) = (shop.relay(), shop.relay());
    until("both may have published", async || shop.published().await > 0).await;
    shop.emit(201..=400).await;
    // Dropped, a process gets SIGKILL.
    drop(first);
    shop.emit(401..=600).await;
    until("all rows are published", async || shop.published().await == 600).await;
    let (code, log) = second.terminate();
    assert_eq!(code, Some(0), "{log}");
    let mut keys: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for payload in shop.arrived() {
        keys.entry(payload % 20).or_default().push(payload);
    }
    for (key, arrived) in keys {
        let all: Vec<i32> = (1..=600).filter(|number| number % 20 == key).collect();
        assert_eq!(arrived, all, "in order, and each once: the server recognizes a repetition");
    }
}

/// The stream is purged: it remembers the ids of what it has lost, for two minutes.
async fn lost_by_a_broker_that_remembers() {
    let shop = NatsShop::create().await;
    let relay = shop.relay();
    shop.emit(1..=40).await;
    until("all rows are published", async || shop.published().await == 40).await;
    let purge = format!("$JS.API.STREAM.PURGE.{}", shop.schema.name());
    // Twice: the second republication is another one.
    for _ in 0..2 {
        let purged = shop.nats().request(&purge, "", "");
        assert!(purged.contains("\"purged\":40"), "{purged}");
        let republish = ["outbox", "republish", "--since", "1h", "--database", &shop.schema.url()];
        let output = hapax().args(republish).arg("--audit-file").arg(shop.audit.path()).output().unwrap();
        assert_eq!(output.stdout, b"40 rows to be published again\n", "{output:?}");
        until("all rows are published again", async || shop.published().await == 40).await;
        let mut arrived = shop.arrived();
        arrived.sort_unstable();
        assert_eq!(arrived, (1..=40).collect::<Vec<_>>());
    }
    let (code, log) = relay.terminate();
    assert_eq!(code, Some(0), "{log}");
}

async fn lost_by_the_broker() {
    let shop = NatsShop::create().await;
    let relay = shop.relay();
    shop.emit(1..=40).await;
    until("all rows are published", async || shop.published().await == 40).await;
    let name = shop.schema.name();
    let mut nats = shop.nats();
    nats.request(&format!("$JS.API.STREAM.DELETE.{name}"), "", "");
    let stream = format!(r#"{{"name":"{name}","subjects":["{name}.>"],"allow_direct":true}}"#);
    nats.request(&format!("$JS.API.STREAM.CREATE.{name}"), "", &stream);
    let republish = ["outbox", "republish", "--since", "1h", "--database", &shop.schema.url()];
    let output = hapax().args(republish).arg("--audit-file").arg(shop.audit.path()).output().unwrap();
    assert_eq!(output.stdout, b"40 rows to be published again\n", "{output:?}");
    until("all rows are published again", async || shop.published().await == 40).await;
    let (code, log) = relay.terminate();
    assert_eq!(code, Some(0), "{log}");
    let mut arrived = shop.arrived();
    arrived.sort_unstable();
    assert_eq!(arrived, (1..=40).collect::<Vec<_>>());
}

/// The first two connections are closed, as by a proxy whose broker is down.
async fn broker_away() {
    let (shop, address) = (NatsShop::create().await, free_address());
    shop.emit(1..=20).await;
    let (listener, server) = (TcpListener::bind(address).await.unwrap(), shop.server.address());
    tokio::spawn(async move {
        for number in 1.. {
            let (mut client, _) = listener.accept().await.unwrap();
            if number > 2 {
                let mut server = TcpStream::connect(server).await.unwrap();
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
            }
        }
    });
    let template = format!("{}.{{topic}}", shop.schema.name());
    let relay = shop.relay_to(&format!("nats://{address}"), &template);
    until("all rows are published", async || shop.published().await == 20).await;
    let (code, log) = relay.terminate();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("it is tried again") && log.contains("events are published"), "{log}");
}

/// One relay is killed, so that some events may arrive again: Kafka recognizes none, and their ids are the same.
#[cfg(feature = "kafka")]
async fn to_kafka() {
    let (shop, topic) = (Shop::create().await, crate::kafka::Topic::create("relayed", 4).await);
    let sink = format!("kafka://{}", topic.hosts);
    shop.emit(1..=200).await;
    let first = shop.relay_to(&sink, topic.name);
    until("it may have published", async || shop.published().await > 0).await;
    shop.emit(201..=400).await;
    // Dropped, a process gets SIGKILL.
    drop(first);
    let second = shop.relay_to(&sink, topic.name);
    shop.emit(401..=600).await;
    until("all rows are published", async || shop.published().await == 600).await;
    let (code, log) = second.terminate();
    assert_eq!(code, Some(0), "{log}");
    let mut numbers: BTreeMap<String, i32> = BTreeMap::new();
    let mut keys: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for record in topic.records() {
        let number: i32 = record.payload.parse().unwrap();
        assert_eq!(record.key, (number % 20).to_string(), "the ordering key is the key of the record");
        match numbers.insert(record.id, number) {
            Some(before) => assert_eq!(before, number, "one id names one event"),
            None => keys.entry(number % 20).or_default().push(number),
        }
    }
    for (key, arrived) in keys {
        let all: Vec<i32> = (1..=600).filter(|number| number % 20 == key).collect();
        assert_eq!(arrived, all, "in order, and none is missing");
    }
}

/// One relay is killed, so that some events may be sent again: the queue recognizes them.
#[cfg(feature = "sqs")]
async fn to_sqs() {
    let (shop, queue) = (Shop::create().await, crate::sqs::Queue::create("cli-relayed.fifo").await);
    let sink = queue.server_url();
    let flags = ["relay", "--check", "--database", &shop.schema.url(), "--sink", &sink, "--topic-template", queue.name];
    let checked = hapax().args(flags).output().unwrap();
    let text = String::from_utf8_lossy(&checked.stdout);
    assert!(text.contains("sink sqs/elasticmq: takes events up to 1000000 bytes"), "{checked:?}");
    assert!(text.contains("recognizes a repeated event for 5m") && text.ends_with("ok\n"), "{checked:?}");
    shop.emit(1..=100).await;
    let first = shop.relay_to(&sink, queue.name);
    until("it may have published", async || shop.published().await > 0).await;
    // Dropped, a process gets SIGKILL.
    drop(first);
    let second = shop.relay_to(&sink, queue.name);
    shop.emit(101..=200).await;
    until("all rows are published", async || shop.published().await == 200).await;
    let (code, log) = second.terminate();
    assert_eq!(code, Some(0), "{log}");
    let mut keys: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for message in queue.messages().await {
        let number: i32 = message.body.parse().unwrap();
        assert_eq!(message.group, (number % 20).to_string(), "the ordering key is the message group");
        keys.entry(number % 20).or_default().push(number);
    }
    assert_eq!(keys.len(), 20);
    for (key, arrived) in keys {
        let all: Vec<i32> = (1..=200).filter(|number| number % 20 == key).collect();
        assert_eq!(arrived, all, "in order, and each once");
    }
}

/// One relay is killed, so that some events may be sent again: Pub/Sub recognizes none, a consumer does by their id.
#[cfg(feature = "pubsub")]
async fn to_pubsub() {
    let (shop, topic) = (Shop::create().await, crate::pubsub::Topic::create("cli-relayed").await);
    let sink = topic.project_url();
    let flags = ["relay", "--check", "--database", &shop.schema.url(), "--sink", &sink, "--topic-template", topic.name];
    let checked = hapax().args(flags).output().unwrap();
    let text = String::from_utf8_lossy(&checked.stdout);
    assert!(text.contains("sink pubsub/shop: takes events up to 1000000 bytes"), "{checked:?}");
    assert!(text.ends_with("ok\n"), "{checked:?}");
    shop.emit(1..=100).await;
    let first = shop.relay_to(&sink, topic.name);
    until("it may have published", async || shop.published().await > 0).await;
    // Dropped, a process gets SIGKILL.
    drop(first);
    let second = shop.relay_to(&sink, topic.name);
    shop.emit(101..=200).await;
    until("all rows are published", async || shop.published().await == 200).await;
    let (code, log) = second.terminate();
    assert_eq!(code, Some(0), "{log}");
    let (mut keys, mut seen) = (BTreeMap::<i32, Vec<i32>>::new(), std::collections::BTreeSet::new());
    for message in topic.messages(&topic.test_subscription()).await {
        let number: i32 = message.body.parse().unwrap();
        assert_eq!(message.ordering_key, (number % 20).to_string());
        if seen.insert(message.attributes["Idempotency-Key"].clone()) {
            keys.entry(number % 20).or_default().push(number);
        }
    }
    assert_eq!(keys.len(), 20);
    for (key, arrived) in keys {
        let all: Vec<i32> = (1..=200).filter(|number| number % 20 == key).collect();
        assert_eq!(arrived, all, "in order, and none is missing");
    }
}

//! `hapax worker` on Kafka.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use hapax_testkit::servers::{self, KafkaServer, Trial};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::harness::{Api, DEADLINE, free_address, hapax, until};
use crate::raw_http::RawConnection;
use crate::worker::RunningWorker;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        servers::test("each_record_of_a_topic_reaches_the_service_once_and_is_committed", "kafka", one_worker),
        servers::test("two_members_share_a_topic_and_the_last_one_takes_all", "kafka", two_members),
        servers::test("a_topic_that_is_created_again_is_read_from_its_first_record", "kafka", recreated_topic),
        servers::test("a_stop_signal_ends_a_worker_that_waits_for_its_broker", "kafka", stop_at_the_start),
        servers::test("a_start_that_cannot_work_names_its_cause_and_no_password", "kafka", wrong_starts),
    ]
}

/// A topic of its own, and a group of the same name.
pub(crate) struct Topic {
    pub(crate) hosts: String,
    pub(crate) name: &'static str,
    producer: BaseProducer,
}

impl Topic {
    pub(crate) async fn create(name: &'static str, partitions: i32) -> Self {
        let hosts = KafkaServer::shared().await.unwrap().address().to_string();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &hosts).set("acks", "all");
        let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
        let new = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        let options = AdminOptions::new().operation_timeout(Some(DEADLINE));
        let created = admin.create_topics([&new], &options).await.unwrap();
        assert_eq!(created, [Ok(name.to_owned())]);
        Self { hosts, name, producer: config.create().unwrap() }
    }

    /// Deletes the topic, and creates one of the same name.
    async fn recreate(&self) {
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", &self.hosts).create().unwrap();
        let options = AdminOptions::new().operation_timeout(Some(DEADLINE));
        assert_eq!(admin.delete_topics(&[self.name], &options).await.unwrap(), [Ok(self.name.to_owned())]);
        let new = NewTopic::new(self.name, 1, TopicReplication::Fixed(1));
        // The broker may still be deleting the old one.
        until("there is a new topic", async || admin.create_topics([&new], &options).await.unwrap()[0].is_ok()).await;
    }

    fn send(&self, partition: i32, key: &str) {
        let headers = OwnedHeaders::new().insert(Header { key: "idempotency-key", value: Some(key) });
        let headers = headers.insert(Header { key: "ce_type", value: Some("transfer") });
        let record = BaseRecord::<(), _>::to(self.name).partition(partition).payload("five").headers(headers);
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
        self.producer.flush(DEADLINE).unwrap();
    }

    /// The number of records of a partition that the group has committed. 0 while the broker does not tell.
    fn committed(&self, partition: i32) -> i64 {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.hosts).set("group.id", self.name);
        let observer: BaseConsumer = config.create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition(self.name, partition);
        // The coordinator of the group may be moving.
        let Ok(committed) = observer.committed_offsets(list, DEADLINE) else { return 0 };
        match committed.find_partition(self.name, partition).unwrap().offset() {
            Offset::Offset(offset) => offset,
            Offset::Beginning | Offset::End | Offset::Stored | Offset::Invalid | Offset::OffsetTail(_) => 0,
        }
    }

    /// All records of the topic; those of one partition are in their order.
    pub(crate) fn records(&self) -> Vec<TopicRecord> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.hosts).set("group.id", "reader").set("auto.offset.reset", "earliest");
        config.set("enable.partition.eof", "true");
        let reader: BaseConsumer = config.create().unwrap();
        let metadata = reader.fetch_metadata(Some(self.name), DEADLINE).unwrap();
        let partitions = metadata.topics()[0].partitions();
        let mut list = TopicPartitionList::new();
        for partition in partitions {
            list.add_partition_offset(self.name, partition.id(), Offset::Beginning).unwrap();
        }
        reader.assign(&list).unwrap();
        let (mut records, mut ended) = (Vec::new(), 0);
        while ended < partitions.len() {
            match reader.poll(DEADLINE).expect("the broker answers") {
                Ok(message) => records.push(TopicRecord::read(&message)),
                Err(KafkaError::PartitionEOF(_)) => ended += 1,
                Err(error) => panic!("{error}"),
            }
        }
        records
    }

    fn url(&self) -> String {
        let (name, hosts) = (self.name, &self.hosts);
        format!("kafka://{hosts}/{name}?group={name}")
    }
}

fn worker(source: &str, target: &str, directory: &Path, admin: SocketAddr) -> Command {
    let store = format!("sqlite://{}", directory.join("records.db").display());
    let mut command = hapax();
    command.args(["worker", "--source", source, "--target", target, "--store", &store]);
    command.args(["--admin", &admin.to_string()]);
    command
}

/// A record, as it is in its topic.
pub(crate) struct TopicRecord {
    pub(crate) key: String,
    pub(crate) payload: String,
    /// The header that names it for a consumer.
    pub(crate) id: String,
}

impl TopicRecord {
    fn read(message: &BorrowedMessage<'_>) -> Self {
        let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
        let id = message.headers().unwrap().iter().find(|header| header.key == "Idempotency-Key").unwrap();
        Self { key: text(message.key()), payload: text(message.payload()), id: text(id.value) }
    }
}

/// An orderly end leaves the group: without that, another member waits for the session timeout.
fn assert_orderly((code, log): (Option<i32>, String)) {
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains("did not close in time") && !log.contains("\"ERROR\""), "{log}");
}

async fn one_worker() {
    let (topic, api) = (Topic::create("cli-orders", 2).await, Api::start().await);
    for (partition, key) in [(0, "order-1"), (1, "order-2"), (0, "order-1")] {
        topic.send(partition, key);
    }
    let directory = tempfile::tempdir().unwrap();
    let target = format!("http://{}/transfers", api.address);
    let admin = free_address();
    let worker = RunningWorker::start(worker(&topic.url(), &target, directory.path(), admin));
    until("every record is committed", async || (topic.committed(0), topic.committed(1)) == (2, 1)).await;
    let seen = api.seen();
    assert_eq!(seen.len(), 2);
    for request in &seen {
        assert_eq!(request.headers["ce-type"], "transfer");
        assert_eq!(request.headers["idempotency-key"], request.headers["hapax-operation"]);
    }
    // The lag is measured beside the messages.
    until("the lag is there", async || {
        let mut admin = RawConnection::to(admin).await;
        admin.send_bytes(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        admin.read_response().await.unwrap().text().contains("# HELP hapax_worker_lag ")
    })
    .await;
    assert_orderly(worker.terminate());
}

async fn recreated_topic() {
    let (topic, api) = (Topic::create("cli-recreated", 1).await, Api::start().await);
    let directory = tempfile::tempdir().unwrap();
    let target = format!("http://{}/transfers", api.address);
    let start = || RunningWorker::start(worker(&topic.url(), &target, directory.path(), free_address()));
    let send = |name: &str, count: i64| (0..count).for_each(|number| topic.send(0, &format!("{name}-{number}")));
    let running = start();
    send("old", 4);
    until("the old topic is processed", async || topic.committed(0) == 4).await;
    topic.recreate().await;
    send("new", 6);
    until("the new topic is processed", async || api.seen().len() == 10 && topic.committed(0) == 6).await;
    let (code, log) = running.terminate();
    assert!(code == Some(0) && log.contains("was deleted and created again"), "{log}");
}

async fn two_members() {
    let (topic, api) = (Topic::create("cli-shared", 2).await, Api::start().await);
    let directory = tempfile::tempdir().unwrap();
    let start = |path: &str| {
        let target = format!("http://{}{path}", api.address);
        RunningWorker::start(worker(&topic.url(), &target, directory.path(), free_address()))
    };
    let mut sent = 0;
    let mut send_to_both = || {
        (0..2).for_each(|partition| topic.send(partition, &format!("order-{partition}-{sent}")));
        sent += 1;
    };
    let paths = || api.seen().into_iter().map(|request| request.path).collect::<Vec<_>>();
    let first = start("/first");
    send_to_both();
    until("the first member works", async || paths().len() == 2).await;
    let second = start("/second");
    until("both members work", async || {
        send_to_both();
        paths().iter().any(|path| path == "/second")
    })
    .await;
    let shared = paths().len();
    until("both members work side by side", async || {
        send_to_both();
        ["/first", "/second"].iter().all(|path| paths()[shared..].iter().any(|seen| seen == path))
    })
    .await;
    assert_orderly(first.terminate());
    let by_first = paths().iter().filter(|path| *path == "/first").count();
    send_to_both();
    until("the second member does the rest", async || paths().len() == 2 * sent).await;
    assert_eq!(paths().iter().filter(|path| *path == "/first").count(), by_first);
    let sent = i64::try_from(sent).unwrap();
    until("everything is committed", async || (topic.committed(0), topic.committed(1)) == (sent, sent)).await;
    assert_orderly(second.terminate());
}

async fn stop_at_the_start() {
    let (directory, admin) = (tempfile::tempdir().unwrap(), free_address());
    // Takes connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let source = format!("kafka://{}/orders?group=g", silent.local_addr().unwrap());
    let worker = RunningWorker::start(worker(&source, "http://127.0.0.1:9/", directory.path(), admin));
    until("the worker opens its source", async || TcpStream::connect(admin).is_ok()).await;
    let begun = Instant::now();
    let (code, log) = worker.terminate();
    assert!(code == Some(0) && log.contains("stopped before the start was complete"), "{code:?} {log}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?} {log}", begun.elapsed());
}

async fn wrong_starts() {
    let (topic, directory) = (Topic::create("cli-wrong", 1).await, tempfile::tempdir().unwrap());
    let run = |source: &str, flags: &[&str]| {
        let mut command = worker(source, "http://127.0.0.1:9/", directory.path(), free_address());
        let output = command.args(flags).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(!text.contains("hush-hush"), "{text}");
        (output.status.code(), text)
    };
    let hosts = &topic.hosts;
    for (source, code, cause) in [
        (format!("kafka://{hosts}/no-such-topic?group=g"), 3, "has no topic `no-such-topic`"),
        (format!("kafka://worker:hush-hush@{hosts}/orders"), 2, "needs the parameter `group`"),
        (format!("kafka://{hosts}/orders?group=g&start=latest"), 2, "skip-existing=yes"),
        (format!("kafka://worker:hush-hush@{hosts}/orders?group=g&sasl=gssapi"), 2, "scram-sha-256"),
    ] {
        let (got, text) = run(&source, &[]);
        assert!(got == Some(code) && text.contains(cause), "{source}: {got:?} {text}");
    }
    let parameters = "group=g&sasl=scram-sha-512&tls=yes&ca=ca.pem&protocol=consumer&member=one";
    let (code, text) = run(&format!("kafka://worker:hush-hush@{hosts}/orders,refunds?{parameters}"), &["--check"]);
    assert!(code == Some(0) && text.ends_with("ok\n"), "{text}");
    let row = |flag: &str| text.lines().find(|line| line.starts_with(flag)).unwrap_or_default().to_owned();
    assert!(row("source").contains("orders,refunds") && row("namespace").contains(" g "), "{text}");
    // A broker that is there, but does not speak TLS.
    let (code, text) = run(&format!("kafka://worker:hush-hush@{hosts}/{}?group=g&tls=yes", topic.name), &[]);
    assert!(code == Some(3) && text.contains("does not speak TLS on this port"), "{text}");
}

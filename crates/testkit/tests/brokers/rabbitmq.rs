//! Quorum queues on the servers that tests start.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use hapax_testkit::servers::{
    self, BrokerKind, BrokerServer, RabbitMq, RabbitMq3, RabbitMq3Server, RabbitMqServer, Trial,
};
use lapin::options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};

/// A test that takes longer has failed, even on a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

const QUEUE: &str = "queue";

pub(crate) fn tests() -> [Trial; 2] {
    [
        servers::test("version_3_keeps_a_quorum_queue", RabbitMq3::NAME, keep_on_version_3),
        servers::test("a_cluster_outlives_a_leader_and_a_restart_of_all_nodes", RabbitMq::NAME, keep_in_cluster),
    ]
}

async fn keep_on_version_3() {
    assert!(servers::required(RabbitMq3::NAME).unwrap().starts_with("3."));
    let server = RabbitMq3Server::start(&[]).await.unwrap();
    let client = Client::of(&server).await;
    client.declare().await;
    client.send(0..3).await;
    client.takes(0..3).await;
}

async fn keep_in_cluster() {
    let servers = RabbitMqServer::start_cluster(3).await.unwrap();
    // The node of the client that declares a queue leads it.
    let client = Client::of(&servers[0]).await;
    client.declare().await;
    client.send(0..3).await;
    servers[0].kill();
    Client::of(&servers[1]).await.send(3..6).await;
    try_join_all(servers[1..].iter().map(BrokerServer::terminate)).await.unwrap();
    try_join_all(servers.iter().map(BrokerServer::restart)).await.unwrap();
    Client::of(&servers[2]).await.takes(0..6).await;
}

struct Client {
    _connection: Connection,
    channel: Channel,
}

impl Client {
    async fn of<K: BrokerKind>(server: &BrokerServer<K>) -> Self {
        let url = format!("amqp://guest:guest@{}/%2f", server.address());
        let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        Self { _connection: connection, channel }
    }

    async fn declare(&self) {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(QUEUE.into(), options, arguments).await.unwrap();
    }

    /// Publishes each number, again if the queue has no leader to confirm it.
    async fn send(&self, numbers: std::ops::Range<u8>) {
        let begun = Instant::now();
        for number in numbers {
            while self.publish(number).await != Confirmation::Ack(None) {
                assert!(begun.elapsed() < DEADLINE, "the queue takes no message");
                hapax_testkit::pause().await;
            }
        }
    }

    async fn publish(&self, number: u8) -> Confirmation {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default().with_delivery_mode(2));
        let publish = self.channel.basic_publish("".into(), QUEUE.into(), options, &[number], properties).await;
        tokio::time::timeout(DEADLINE, publish.unwrap()).await.expect("a confirmation").unwrap()
    }

    /// Takes messages until each of the numbers has come.
    async fn takes(&self, numbers: std::ops::Range<u8>) {
        let (begun, mut missing) = (Instant::now(), numbers.collect::<Vec<u8>>());
        while !missing.is_empty() {
            assert!(begun.elapsed() < DEADLINE, "the queue has lost {missing:?}");
            hapax_testkit::pause().await;
            let taken = self.channel.basic_get(QUEUE.into(), BasicGetOptions { no_ack: true }).await.unwrap();
            missing.retain(|number| taken.as_ref().is_none_or(|taken| taken.data != [*number]));
        }
    }
}

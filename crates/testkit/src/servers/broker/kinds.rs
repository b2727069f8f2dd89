//! How each kind of broker is started.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Mutex;

use super::{BrokerKind, BrokerServer};

/// A NATS server with JetStream.
#[derive(Clone, Copy, Debug)]
pub enum Nats {}

/// A Kafka broker, which is its own controller.
#[derive(Clone, Copy, Debug)]
pub enum Kafka {}

/// A RabbitMQ 4 node. It has the user `guest` with the password `guest`.
#[derive(Clone, Copy, Debug)]
pub enum RabbitMq {}

/// A RabbitMQ 3 node, with the same user.
#[derive(Clone, Copy, Debug)]
pub enum RabbitMq3 {}

/// A NATS server with JetStream, on a free loopback port. Arguments are those of `nats-server`.
pub type NatsServer = BrokerServer<Nats>;

/// A Kafka broker on a free loopback port. Arguments are properties, such as `auto.create.topics.enable=false`.
pub type KafkaServer = BrokerServer<Kafka>;

/// A RabbitMQ 4 node on a free loopback port. Arguments are lines of `rabbitmq.conf`, such as
/// `consumer_timeout = 5000`.
pub type RabbitMqServer = BrokerServer<RabbitMq>;

/// A RabbitMQ 3 node on a free loopback port, with the same arguments.
pub type RabbitMq3Server = BrokerServer<RabbitMq3>;

impl BrokerKind for Nats {
    const NAME: &'static str = "nats";
    const URL: &'static str = "nats://";
    const READY: &'static str = "Server is ready";
    const SHARED: &'static [&'static str] = &[];

    fn member(addresses: &[SocketAddr], index: usize) -> Option<Vec<String>> {
        let route = |address: &SocketAddr| format!("nats://{}", second(*address));
        let routes: Vec<String> = addresses.iter().map(route).collect();
        let name = format!("node{index}");
        let words = ["--name", &name, "--cluster_name", "hapax", "--cluster", &routes[index], "--routes"];
        Some(words.map(str::to_owned).into_iter().chain([routes.join(",")]).collect())
    }

    fn shared() -> &'static Mutex<Option<Arc<BrokerServer<Self>>>> {
        static SHARED: Mutex<Option<Arc<NatsServer>>> = Mutex::const_new(None);
        &SHARED
    }
}

impl BrokerKind for Kafka {
    const NAME: &'static str = "kafka";
    const URL: &'static str = "kafka://";
    const READY: &'static str = "Kafka Server started";
    // It is never restarted, and on a busy machine the short time of the fixture would take its topics away.
    const SHARED: &'static [&'static str] = &["broker.session.timeout.ms=30000"];

    fn member(addresses: &[SocketAddr], index: usize) -> Option<Vec<String>> {
        let voter = |(index, address): (usize, &SocketAddr)| format!("{}@{}", index + 1, second(*address));
        let voters: Vec<String> = addresses.iter().enumerate().map(voter).collect();
        let replicated = ["offsets.topic", "transaction.state.log", "share.coordinator.state.topic", "default"];
        let factor = |topic: &str| format!("{topic}.replication.factor={}", addresses.len().min(3));
        let own = [
            format!("node.id={}", index + 1),
            format!("controller.quorum.voters={}", voters.join(",")),
            "min.insync.replicas=2".to_owned(),
            "broker.session.timeout.ms=3000".to_owned(),
        ];
        Some(replicated.into_iter().map(factor).chain(own).collect())
    }

    fn shared() -> &'static Mutex<Option<Arc<BrokerServer<Self>>>> {
        static SHARED: Mutex<Option<Arc<KafkaServer>>> = Mutex::const_new(None);
        &SHARED
    }
}

impl BrokerKind for RabbitMq {
    const NAME: &'static str = "rabbitmq";
    const URL: &'static str = "amqp://";
    // "Starting broker... completed with 0 plugins."
    const READY: &'static str = "completed with";
    const SHARED: &'static [&'static str] = &[];

    fn member(_addresses: &[SocketAddr], _index: usize) -> Option<Vec<String>> {
        None
    }

    fn shared() -> &'static Mutex<Option<Arc<BrokerServer<Self>>>> {
        static SHARED: Mutex<Option<Arc<RabbitMqServer>>> = Mutex::const_new(None);
        &SHARED
    }
}

impl BrokerKind for RabbitMq3 {
    const NAME: &'static str = "rabbitmq3";
    const URL: &'static str = RabbitMq::URL;
    const READY: &'static str = RabbitMq::READY;
    const SHARED: &'static [&'static str] = RabbitMq::SHARED;

    fn member(addresses: &[SocketAddr], index: usize) -> Option<Vec<String>> {
        RabbitMq::member(addresses, index)
    }

    fn shared() -> &'static Mutex<Option<Arc<BrokerServer<Self>>>> {
        static SHARED: Mutex<Option<Arc<RabbitMq3Server>>> = Mutex::const_new(None);
        &SHARED
    }
}

/// The address for the other members of a cluster.
fn second(address: SocketAddr) -> SocketAddr {
    // `ports::free` leaves it free.
    SocketAddr::new(address.ip(), address.port() + 10_000)
}

//! How each kind of broker is started.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Mutex;

use super::{BrokerKind, BrokerServer, second};

/// A NATS server with JetStream.
#[derive(Clone, Copy, Debug)]
pub enum Nats {}

/// A Kafka broker, which is its own controller.
#[derive(Clone, Copy, Debug)]
pub enum Kafka {}

/// A RabbitMQ 4 node. It has the user `guest` with the password `guest`. A quorum queue that is a few seconds old loses
/// its messages if all nodes are killed; if they end in order, it keeps them.
#[derive(Clone, Copy, Debug)]
pub enum RabbitMq {}

/// A RabbitMQ 3 node, with the same user. A channel that first publishes to a quorum queue while its leader is dead may
/// get nothing but rejections, also when there is a new leader; a new channel gets confirmations.
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

    fn member(addresses: &[SocketAddr], index: usize) -> Vec<String> {
        let route = |address: &SocketAddr| format!("nats://{}", second(*address));
        let routes: Vec<String> = addresses.iter().map(route).collect();
        let name = format!("node{index}");
        let words = ["--name", &name, "--cluster_name", "hapax", "--cluster", &routes[index], "--routes"];
        words.map(str::to_owned).into_iter().chain([routes.join(",")]).collect()
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

    fn member(addresses: &[SocketAddr], index: usize) -> Vec<String> {
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
        replicated.into_iter().map(factor).chain(own).collect()
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
    // The last words of epmd before it serves.
    const REGISTRY_READY: Option<&'static str> = Some("entering the main select() loop");

    fn member(addresses: &[SocketAddr], _index: usize) -> Vec<String> {
        // A second each. A node that gives up while another one still starts stays alone.
        rabbitmq_member(addresses, 60)
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
    const REGISTRY_READY: Option<&'static str> = RabbitMq::REGISTRY_READY;

    fn member(addresses: &[SocketAddr], _index: usize) -> Vec<String> {
        // The first node has to give up before another one may look.
        rabbitmq_member(addresses, 2)
    }

    fn shared() -> &'static Mutex<Option<Arc<BrokerServer<Self>>>> {
        static SHARED: Mutex<Option<Arc<RabbitMq3Server>>> = Mutex::const_new(None);
        &SHARED
    }
}

fn rabbitmq_member(addresses: &[SocketAddr], retries: u8) -> Vec<String> {
    let formation = "cluster_formation";
    let node = |(index, address): (usize, &SocketAddr)| {
        format!("{formation}.classic_config.nodes.{} = hapax{}@localhost", index + 1, address.port())
    };
    let own = [
        format!("--registry={}", second(addresses[0]).port()),
        format!("{formation}.peer_discovery_backend = classic_config"),
        format!("{formation}.discovery_retry_limit = {retries}"),
    ];
    own.into_iter().chain(addresses.iter().enumerate().map(node)).collect()
}

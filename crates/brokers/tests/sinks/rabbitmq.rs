//! An exchange of its own for each case, with two queues: one for the test to read, one for a source.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_brokers::{RabbitMqSink, RabbitMqSinkConfig, RabbitMqSource};
use hapax_core::broker::{Headers, Source};
use hapax_core::outbox::{Sink, TopicTemplate};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_testkit::servers::{BrokerKind, BrokerServer, RabbitMq, RabbitMq3};
use hapax_testkit::{ArrivedEvent, SinkBackend, SinkCapability, SinkCase, SinkOptions, SinkSetup, run_sink_case};
use lapin::ExchangeKind;
use lapin::message::Delivery;
use lapin::options::BasicGetOptions;
use lapin::types::AMQPValue;
use tokio::sync::Mutex;

use crate::common::{QueueKind, connect, declare_exchange, declare_queue, keep_queues};

pub(crate) fn classic() -> SinkBackend {
    backend::<RabbitMq>("rabbitmq-classic", QueueKind::Classic)
}

pub(crate) fn quorum() -> SinkBackend {
    backend::<RabbitMq>("rabbitmq-quorum", QueueKind::Quorum)
}

/// Between the versions, quorum queues differ more than classic ones.
pub(crate) fn quorum_of_version_3() -> SinkBackend {
    backend::<RabbitMq3>("rabbitmq3-quorum", QueueKind::Quorum)
}

pub(crate) fn classic_of_version_3() -> SinkBackend {
    backend::<RabbitMq3>("rabbitmq3-classic", QueueKind::Classic)
}

fn backend<K: BrokerKind>(name: &'static str, kind: QueueKind) -> SinkBackend {
    let run = move |case| run_sink_case(case, async || RabbitMqSetup::<K>::new(case, kind).await);
    SinkBackend::new(name, run).requiring(K::NAME).at_once(8)
}

struct RabbitMqSetup<K> {
    server: Arc<BrokerServer<K>>,
    kind: QueueKind,
    name: String,
    /// A parameter of the URL.
    limit: &'static str,
    /// What was read.
    arrived: Mutex<Vec<ArrivedEvent>>,
    runtime: Arc<dyn Runtime>,
}

impl<K: BrokerKind> RabbitMqSetup<K> {
    async fn new(case: SinkCase, kind: QueueKind) -> Self {
        let (mut server, mut limit) = (None, "");
        match case.needs {
            // The others go on meanwhile.
            Some(SinkCapability::Restart) => server = Some(BrokerServer::start(&[]).await.unwrap()),
            Some(SinkCapability::SmallLimit) => {
                server = Some(BrokerServer::start(&["max_message_size = 20000"]).await.unwrap());
                limit = "&max-size=20000";
            }
            _ => {}
        }
        let server = match server {
            Some(server) => Arc::new(server),
            None => BrokerServer::shared().await.unwrap(),
        };
        let name = format!("{}.{}", kind.name(), case.name);
        let (connection, channel) = connect(&server).await;
        declare_exchange(&channel, &name, ExchangeKind::Topic).await;
        connection.close(200, "declared".into()).await.unwrap();
        let runtime = Arc::new(Tokio::current());
        let setup = Self { server, kind, name, limit, arrived: Mutex::default(), runtime };
        if case.needs != Some(SinkCapability::MissingTopic) {
            setup.create_topic().await;
        }
        if case.needs == Some(SinkCapability::Restart) && kind == QueueKind::Quorum {
            keep_queues(&setup.server).await;
        }
        setup
    }

    fn queue(&self, use_: &str) -> String {
        format!("{}.{use_}", self.name)
    }
}

fn event(message: &Delivery) -> ArrivedEvent {
    let table = message.properties.headers().as_ref().unwrap();
    let mut headers = Headers::default();
    for (name, value) in table.inner() {
        if let AMQPValue::LongString(text) = value {
            headers.push(name.as_str(), text.as_bytes().to_vec());
        }
    }
    if let Some(content_type) = message.properties.content_type() {
        headers.push("content-type", content_type.as_str().to_owned());
    }
    let id = String::from_utf8_lossy(headers.all("cloudEvents:id").next().unwrap()).into_owned();
    let ordering_key = headers.all("cloudEvents:partitionkey").next().cloned();
    ArrivedEvent {
        id,
        name: message.routing_key.as_str().to_owned(),
        ordering_key,
        headers,
        payload: Bytes::copy_from_slice(&message.data),
    }
}

#[async_trait]
impl<K: BrokerKind> SinkSetup for RabbitMqSetup<K> {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn topic(&self) -> String {
        format!("{}.suite", self.name)
    }

    async fn open(&self, options: SinkOptions) -> Arc<dyn Sink> {
        let address = options.address.unwrap_or(self.server.address());
        let url = format!("amqp://{address}?exchange={}{}", self.name, self.limit);
        let config: RabbitMqSinkConfig = url.parse().unwrap();
        let config = config.topic(options.topic).timeout(options.timeout);
        Arc::new(RabbitMqSink::open(config, self.runtime()).await.unwrap())
    }

    async fn arrived(&self) -> Vec<ArrivedEvent> {
        let mut arrived = self.arrived.lock().await;
        let (_connection, channel) = connect(&self.server).await;
        let options = BasicGetOptions { no_ack: true };
        // A queue that has just started may have no leader for a moment.
        while let Ok(Some(message)) = channel.basic_get(self.queue("test").into(), options).await {
            arrived.push(event(&message.delivery));
        }
        arrived.clone()
    }

    fn split_topic(&self) -> (TopicTemplate, String) {
        (format!("{}.{{topic}}", self.name).parse().unwrap(), "suite".into())
    }

    fn invalid_topic(&self) -> String {
        "orders".repeat(50)
    }

    fn address(&self) -> SocketAddr {
        self.server.address()
    }

    fn kill_broker(&self) {
        self.server.kill();
    }

    async fn restart_broker(&self) {
        self.server.restart().await.unwrap();
    }

    async fn create_topic(&self) {
        let (_connection, channel) = connect(&self.server).await;
        for (name, arguments) in [("test", self.kind.arguments()), ("source", self.kind.with_one_consumer())] {
            declare_queue(&channel, &self.queue(name), arguments, &self.name).await;
        }
    }

    async fn source(&self) -> Box<dyn Source> {
        let queue = self.queue("source");
        let url = format!("amqp://{}?queue={queue}&order=header:cloudEvents:partitionkey", self.server.address());
        Box::new(RabbitMqSource::connect(url.parse().unwrap(), self.runtime()).await.unwrap())
    }
}

//! An exchange and a queue of its own for each case, behind a proxy that notes what is delivered and acknowledged: the
//! broker tells only counts.

mod observer;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use hapax_core::broker::Message;
use hapax_core::runtime::{Runtime, Tokio};
use hapax_testkit::servers::{BrokerKind, BrokerServer, RabbitMq, RabbitMq3};
use hapax_testkit::{
    SourceBackend, SourceCapability, SourceCase, SourceProcess, SourceSetup, SourceTimes, WorkerHost, run_source_case,
};
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation, ExchangeKind};
use tokio::time::timeout;

use self::observer::Observer;
use crate::DEADLINE;
use crate::common::{QueueKind, connect, declare_exchange, declare_queue, keep_queues};

/// In seconds. A connection that is silent for twice this time is lost.
const HEARTBEAT: u32 = 3;

const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

pub(crate) fn classic() -> SourceBackend {
    backend::<RabbitMq>("rabbitmq-classic", QueueKind::Classic)
}

pub(crate) fn quorum() -> SourceBackend {
    backend::<RabbitMq>("rabbitmq-quorum", QueueKind::Quorum)
}

/// Between the versions, quorum queues differ more than classic ones.
pub(crate) fn quorum_of_version_3() -> SourceBackend {
    backend::<RabbitMq3>("rabbitmq3-quorum", QueueKind::Quorum)
}

pub(crate) fn classic_of_version_3() -> SourceBackend {
    backend::<RabbitMq3>("rabbitmq3-classic", QueueKind::Classic)
}

fn backend<K: BrokerKind>(name: &'static str, kind: QueueKind) -> SourceBackend {
    const ONE_CONSUMER: &str = "a queue has one active consumer, which keeps it until it ends";
    const NO_LEASE: &str = "a message of a queue has no lease, it belongs to its channel";
    const NO_OFFSETS: &str = "a queue has no offsets";
    let run = move |case| run_source_case(case, async || RabbitMqSetup::<K>::new(case, kind).await);
    SourceBackend::new(name, run).requiring(K::NAME).at_once(8).lacking(&[
        (SourceCapability::Rebalance, ONE_CONSUMER),
        (SourceCapability::Extension, NO_LEASE),
        (SourceCapability::LongestLease, NO_LEASE),
        (SourceCapability::ExpiringOffsets, NO_OFFSETS),
    ])
}

struct RabbitMqSetup<K> {
    server: Arc<BrokerServer<K>>,
    observer: Observer,
    /// Of the exchange and the queue.
    name: String,
    published: AtomicUsize,
    runtime: Arc<dyn Runtime>,
}

impl<K: BrokerKind> RabbitMqSetup<K> {
    async fn new(case: SourceCase, kind: QueueKind) -> Self {
        let server = match case.needs {
            // The others go on meanwhile.
            Some(SourceCapability::Restart) => Arc::new(BrokerServer::start(&[]).await.unwrap()),
            _ => BrokerServer::shared().await.unwrap(),
        };
        let name = format!("{}.{}", kind.name(), case.name);
        let (connection, channel) = connect(&server).await;
        declare_exchange(&channel, &name, ExchangeKind::Fanout).await;
        declare_queue(&channel, &name, kind.with_one_consumer(), &name).await;
        connection.close(200, "declared".into()).await.unwrap();
        if case.needs == Some(SourceCapability::Restart) && kind == QueueKind::Quorum {
            keep_queues(&server).await;
        }
        let observer = Observer::start(server.address()).await;
        Self { server, observer, name, published: AtomicUsize::new(0), runtime: Arc::new(Tokio::current()) }
    }

    /// Sends one message until the broker has it. Its routing key is its place.
    async fn send(&self, channel: &lapin::Channel, message: &Message) -> lapin::Result<bool> {
        let mut table = FieldTable::default();
        for (name, value) in message.headers.iter() {
            table.insert(name.into(), AMQPValue::LongString(value.to_vec().into()));
        }
        if let Some(key) = &message.ordering_key {
            table.insert("Order".into(), AMQPValue::LongString(key.to_vec().into()));
        }
        let properties = BasicProperties::default().with_headers(table).with_delivery_mode(2);
        let place = self.published.load(Ordering::Relaxed).to_string();
        let options = BasicPublishOptions::default();
        let exchange = self.name.as_str().into();
        let sent = channel.basic_publish(exchange, place.into(), options, &message.payload, properties).await?;
        Ok(matches!(sent.await?, Confirmation::Ack(_)))
    }
}

#[async_trait]
impl<K: BrokerKind> SourceSetup for RabbitMqSetup<K> {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn times(&self) -> SourceTimes {
        SourceTimes {
            slow: Duration::from_secs(9),
            settle: Duration::from_secs(1),
            backoff: Duration::from_millis(10),
            look: Duration::from_millis(30),
        }
    }

    fn start_process(&self) -> Arc<dyn WorkerHost> {
        let (address, name) = (self.observer.address(), &self.name);
        let url = format!("amqp://{address}?queue={name}&order=header:Order&heartbeat={HEARTBEAT}");
        Arc::new(SourceProcess::start(url))
    }

    async fn publish(&self, messages: Vec<Message>) {
        let begun = Instant::now();
        let (_connection, mut channel) = connect(&self.server).await;
        for message in &messages {
            // After a restart, a channel may never confirm what a new one gets confirmed at once.
            while !timeout(CONFIRMED_WITHIN, self.send(&channel, message)).await.is_ok_and(|sent| sent.unwrap_or(false))
            {
                assert!(begun.elapsed() < DEADLINE, "the server takes no message");
                channel = connect(&self.server).await.1;
            }
            self.published.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn unfinished(&self) -> BTreeSet<usize> {
        let published = self.published.load(Ordering::Relaxed);
        let finished = self.observer.finished();
        (0..published).filter(|place| !finished.contains(place)).collect()
    }

    async fn lose_lanes(&self) {
        self.observer.cut();
    }

    async fn restart_broker(&self) {
        self.server.kill();
        self.server.restart().await.unwrap();
    }
}

//! What tests say to RabbitMQ.

use std::time::{Duration, Instant};

use hapax_testkit::servers::{BrokerKind, BrokerServer};
use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};

/// A test that takes longer has failed, even on a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// The type of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    Classic,
    Quorum,
}

impl QueueKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }

    pub(crate) fn arguments(self) -> FieldTable {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(self.name().into()));
        arguments
    }

    /// With one active consumer at a time. Such a quorum queue cannot be read by single questions.
    pub(crate) fn with_one_consumer(self) -> FieldTable {
        let mut arguments = self.arguments();
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        arguments
    }
}

/// A connection and a channel with confirmations, once the server takes them.
pub(crate) async fn connect<K: BrokerKind>(server: &BrokerServer<K>) -> (Connection, Channel) {
    let (url, begun) = (format!("amqp://guest:guest@{}/%2f", server.address()), Instant::now());
    loop {
        match try_connect(&url).await {
            Ok(connected) => return connected,
            Err(error) => assert!(begun.elapsed() < DEADLINE, "{error}"),
        }
        hapax_testkit::pause().await;
    }
}

/// Restarts a server in order: its node keeps the names of its quorum queues in memory for a while. After SIGKILL it
/// takes a young queue for a new one, which has no leader.
pub(crate) async fn keep_queues<K: BrokerKind>(server: &BrokerServer<K>) {
    server.terminate().await.unwrap();
    server.restart().await.unwrap();
}

async fn try_connect(url: &str) -> lapin::Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok((connection, channel))
}

/// Declares an exchange that lasts.
pub(crate) async fn declare_exchange(channel: &Channel, exchange: &str, kind: ExchangeKind) {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(exchange.into(), kind, options, FieldTable::default()).await.unwrap();
}

/// Declares a queue that lasts, for all messages of an exchange.
pub(crate) async fn declare_queue(channel: &Channel, queue: &str, arguments: FieldTable, exchange: &str) {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), options, arguments).await.unwrap();
    let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
    channel.queue_bind(queue.into(), exchange.into(), "#".into(), options, arguments).await.unwrap();
}

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use hapax_systems::{BrokerUrl, TopicPlan};
use hapax_testkit::servers::RabbitMqServer;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::time::{sleep, timeout};

use crate::broker::EventCopy;

/// The exchange, and the queue behind it.
const SALES: &str = "sales";

/// How long the broker may take for anything.
const DEADLINE: Duration = Duration::from_secs(60);

/// As many messages the consumer gets in advance.
const PREFETCH: u16 = 1000;

/// A quorum queue with one active consumer.
pub(crate) struct SaleQueue {
    pub(crate) server: RabbitMqServer,
}

impl SaleQueue {
    pub(crate) async fn start() -> Result<Self> {
        let server = RabbitMqServer::start(&[]).await?;
        server.url().parse::<BrokerUrl>()?.create(&TopicPlan::new("", SALES)).await?;
        // A node keeps the names of its quorum queues in memory for a while. After SIGKILL it takes a young queue for a
        // new one, which has no leader.
        server.terminate().await?;
        server.restart().await?;
        Ok(Self { server })
    }

    /// The URL of a sink.
    pub(crate) fn sink(address: SocketAddr) -> String {
        format!("amqp://{address}/?exchange={SALES}&heartbeat=2&timeout=4")
    }

    /// Takes everything that the queue has now, in its order.
    pub(crate) async fn take(&self, read: &mut Vec<EventCopy>) -> Result<()> {
        let (_connection, channel) = self.connect().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let mut left = channel.queue_declare(SALES.into(), options, FieldTable::default()).await?.message_count();
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let mut arriving = channel.basic_consume(SALES.into(), "".into(), options, FieldTable::default()).await?;
        while left > 0 {
            let next = timeout(DEADLINE, arriving.next()).await.context("an event does not arrive")?;
            let delivery = next.context("the consumer ended")??;
            read.push(copy(&delivery));
            delivery.ack(BasicAckOptions::default()).await?;
            left -= 1;
        }
        // After everything that was sent on it.
        Ok(channel.close(200, "read".into()).await?)
    }

    /// Connects, once a node that was just restarted answers and the queue has a leader.
    async fn connect(&self) -> Result<(Connection, Channel)> {
        let begun = Instant::now();
        loop {
            match self.try_connect().await {
                Ok(connected) => return Ok(connected),
                Err(error) => ensure!(begun.elapsed() < DEADLINE, "the queue cannot be read: {error:#}"),
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn try_connect(&self) -> Result<(Connection, Channel)> {
        let connection = Connection::connect(&self.server.url(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(SALES.into(), options, FieldTable::default()).await?;
        Ok((connection, channel))
    }
}

fn copy(delivery: &Delivery) -> EventCopy {
    let headers = delivery.properties.headers().as_ref();
    let id = headers.and_then(|headers| headers.inner().get("Idempotency-Key")?.as_long_string());
    let id = id.map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned()).unwrap_or_default();
    EventCopy { id, payload: String::from_utf8_lossy(&delivery.data).into_owned() }
}

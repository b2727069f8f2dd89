//! Queues and exchanges of RabbitMQ.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use async_trait::async_trait;
use hapax::broker::Source;
use hapax::brokers::{RabbitMqSink, RabbitMqSinkConfig, RabbitMqSource, RabbitMqUrl};
use hapax::outbox::{Sink, TopicTemplate};
use hapax::runtime::Runtime;
use hapax::worker::KeyRule;
use lapin::options::{
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};

use crate::broker::{NamedBroker, TopicPlan};
use crate::sink::NamedSink;
use crate::source::NamedSource;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    source: Some(Offer { form: "amqp://HOST/VHOST?queue=NAME", read: |url| Ok(Arc::new(url.parse::<RabbitMqUrl>()?)) }),
    sink: Some(Offer {
        form: "amqp://HOST/VHOST[?exchange=NAME]",
        read: |url| Ok(Arc::new(url.parse::<RabbitMqSinkConfig>()?)),
    }),
    broker: Some(Offer { form: "amqp://HOST", read: |url| Ok(Arc::new(RunQueues(url.to_owned()))) }),
    ..Offers::NONE
};

#[async_trait]
impl NamedSource for RabbitMqUrl {
    fn group(&self) -> &str {
        self.queue()
    }

    fn ordered_by_header(&self, name: &str) -> Result<Arc<dyn NamedSource>> {
        Ok(Arc::new(self.clone().ordered_by_header(name)))
    }

    fn refuse_parking(&self) -> Result<()> {
        bail!(
            "park is not for RabbitMQ: messages that wait for their key are not acknowledged, so they would fill the \
             prefetch and stop the queue, and the broker takes them back after its consumer_timeout"
        )
    }

    fn refuse_key(&self, rule: &KeyRule) -> Result<()> {
        match rule {
            KeyRule::Header(_) | KeyRule::CloudEvents | KeyRule::Json(_) => Ok(()),
            KeyRule::Coordinates => {
                bail!("a message of RabbitMQ has no coordinates: use header:message-id for instance")
            }
            KeyRule::PayloadHash(_) => bail!(
                "RabbitMQ does not tell when it got a message, which payload-hash needs: use header:message-id for \
                 instance"
            ),
        }
    }

    async fn open(&self, runtime: Arc<dyn Runtime>, _lease: Duration) -> hapax::Result<Box<dyn Source>> {
        Ok(Box::new(RabbitMqSource::connect(self.clone(), runtime).await?))
    }
}

#[async_trait]
impl NamedSink for RabbitMqSinkConfig {
    fn name(&self) -> String {
        self.name()
    }

    async fn open(&self, template: Option<TopicTemplate>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn Sink>> {
        let config = template.into_iter().fold(self.clone(), Self::topic);
        Ok(Arc::new(RabbitMqSink::open(config, runtime).await?))
    }
}

/// The exchanges and queues of runs at the broker of this URL, which may have a password.
struct RunQueues(String);

impl fmt::Debug for RunQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunQueues").finish_non_exhaustive()
    }
}

/// A run kills its workers, and each of them spends deliveries.
const DELIVERY_LIMIT: u32 = 1_000_000;

/// More parts than a topic has.
const MOST_PARTS: usize = 64;

impl RunQueues {
    async fn connect(&self) -> Result<(Connection, Channel)> {
        let connection = Connection::connect(&self.0, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        Ok((connection, channel))
    }
}

#[async_trait]
impl NamedBroker for RunQueues {
    /// An exchange, with a queue for all readers or one for each.
    async fn create(&self, topic: &TopicPlan) -> Result<()> {
        let (connection, channel) = self.connect().await?;
        let exchange = topic.name();
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let (name, none) = (ShortString::from(exchange.as_str()), FieldTable::default());
        channel.exchange_declare(name, ExchangeKind::Topic, options, none).await?;
        if topic.parts == 0 {
            declare_queue(&channel, &exchange, &exchange, "#").await?;
        }
        for part in 0..topic.parts {
            declare_queue(&channel, &part_queue(&exchange, part), &exchange, &format!("{}.{part}", topic.topic))
                .await?;
        }
        Ok(connection.close(200, "created".into()).await?)
    }

    async fn remove(&self, topic: &str) -> Result<()> {
        let (connection, channel) = self.connect().await?;
        // The broker takes it as removed if it is not there.
        for queue in (0..MOST_PARTS).map(|part| part_queue(topic, part)).chain([topic.to_owned()]) {
            channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        }
        channel.exchange_delete(topic.into(), ExchangeDeleteOptions::default()).await?;
        Ok(connection.close(200, "removed".into()).await?)
    }

    fn sink(&self, topic: &TopicPlan) -> String {
        format!("{}/?exchange={}&timeout=4", self.0, topic.name())
    }

    fn source(&self, topic: &TopicPlan, reader: usize) -> String {
        let (url, name) = (&self.0, topic.name());
        let limit = format!("delivery-limit={DELIVERY_LIMIT}");
        if topic.parts == 0 {
            return format!("{url}/?queue={name}&{limit}");
        }
        format!("{url}/?queue={}&{limit}&order=header:cloudEvents:partitionkey", part_queue(&name, reader))
    }
}

/// The name of the queue of a part.
fn part_queue(exchange: &str, part: usize) -> String {
    format!("{exchange}.{part}")
}

/// Declares a quorum queue with one active consumer, which keeps the order.
async fn declare_queue(channel: &Channel, queue: &str, exchange: &str, key: &str) -> lapin::Result<()> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(DELIVERY_LIMIT.cast_signed()));
    arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), options, arguments).await?;
    let none = FieldTable::default();
    channel.queue_bind(queue.into(), exchange.into(), key.into(), QueueBindOptions::default(), none).await
}

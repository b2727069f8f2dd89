use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions};

use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, PublisherConfirm};
use tokio::time::{sleep, timeout};

use crate::order::WorkerOrder;

const QUEUE: &str = "transfers";
const DEADLINE: Duration = Duration::from_secs(60);

/// How long the broker may take to confirm a message.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

/// How many messages are sent without a confirmation.
const UNCONFIRMED: usize = 500;

/// The limit of the queue: kills of workers spend many deliveries.
pub(crate) const DELIVERY_LIMIT: i32 = 1_000_000;

/// The quorum queue, from the side of its producer.
pub(crate) struct TransferQueue {
    /// Of each node: `amqp://HOST:PORT`.
    urls: Vec<String>,
    live: Option<(Connection, Channel)>,
    /// What the broker has not confirmed yet.
    unconfirmed: Vec<UnconfirmedMessage>,
}

struct UnconfirmedMessage {
    key: String,
    payload: String,
    confirmation: PublisherConfirm,
}

impl TransferQueue {
    pub(crate) async fn create(urls: Vec<String>) -> Result<Self> {
        let mut queue = Self { urls, live: None, unconfirmed: Vec::new() };
        queue.declare().await?;
        Ok(queue)
    }

    /// The URL of a worker. It turns to another node if one does not answer. A worker that stops for longer than twice
    /// the heartbeat loses its connection.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<&str> = self.urls.iter().map(|url| url.trim_start_matches("amqp://")).collect();
        format!("amqp://{}/?queue={QUEUE}&delivery-limit={DELIVERY_LIMIT}&heartbeat=3", hosts.join(","))
    }

    async fn declare(&mut self) -> Result<()> {
        let copies = i32::try_from(self.urls.len())?;
        let begun = Instant::now();
        while let Err(error) = self.try_declare(copies).await {
            ensure!(begun.elapsed() < DEADLINE, "the queue cannot be declared: {error:#}");
            self.live = None;
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    async fn try_declare(&mut self, copies: i32) -> Result<()> {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(DELIVERY_LIMIT));
        arguments.insert("x-quorum-initial-group-size".into(), AMQPValue::LongInt(copies));
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel().await?.queue_declare(QUEUE.into(), options, arguments).await?;
        Ok(())
    }

    /// The channel. Connects to the first node that answers if there is none.
    async fn channel(&mut self) -> Result<Channel> {
        if let Some((_, channel)) = self.live.as_ref().filter(|(_, channel)| channel.status().connected()) {
            return Ok(channel.clone());
        }
        let begun = Instant::now();
        loop {
            for url in &self.urls {
                if let Ok(Ok(live)) = timeout(CONFIRMED_WITHIN, connect(url)).await {
                    let channel = live.1.clone();
                    self.live = Some(live);
                    return Ok(channel);
                }
            }
            ensure!(begun.elapsed() < DEADLINE, "no node of RabbitMQ can be reached");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Sends a transfer, again until it is confirmed. That may be a copy.
    pub(crate) async fn send(&mut self, order: &WorkerOrder) -> Result<()> {
        self.publish(order.key.clone(), order.payload()).await?;
        if self.unconfirmed.len() >= UNCONFIRMED { self.flush().await } else { Ok(()) }
    }

    async fn publish(&mut self, key: String, payload: String) -> Result<()> {
        let begun = Instant::now();
        loop {
            let mut headers = FieldTable::default();
            headers.insert("Idempotency-Key".into(), AMQPValue::LongString(key.clone().into()));
            let properties = BasicProperties::default().with_headers(headers).with_delivery_mode(2);
            let (channel, options) = (self.channel().await?, BasicPublishOptions::default());
            let sent = channel.basic_publish("".into(), QUEUE.into(), options, payload.as_bytes(), properties).await;
            match sent {
                Ok(confirmation) => {
                    self.unconfirmed.push(UnconfirmedMessage { key, payload, confirmation });
                    return Ok(());
                }
                Err(error) => ensure!(begun.elapsed() < DEADLINE, "a message cannot be sent: {error}"),
            }
        }
    }

    /// Waits until the broker has everything. Sends what it did not confirm again.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        let begun = Instant::now();
        while !self.unconfirmed.is_empty() {
            ensure!(begun.elapsed() < DEADLINE, "{} messages are not confirmed", self.unconfirmed.len());
            let outcomes = join_all(self.unconfirmed.drain(..).map(confirmed)).await;
            for (key, payload) in
                outcomes.into_iter().filter_map(|(message, is_confirmed)| (!is_confirmed).then_some(message))
            {
                self.publish(key, payload).await?;
            }
        }
        Ok(())
    }

    /// The number of messages that no worker has. An error while no node answers.
    pub(crate) async fn ready(&mut self) -> Result<u32> {
        let channel = self.channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let asked =
            timeout(CONFIRMED_WITHIN, channel.queue_declare(QUEUE.into(), options, FieldTable::default())).await;
        Ok(asked??.message_count())
    }

    /// Waits until the queue has a leader.
    pub(crate) async fn wait_until_served(&mut self) -> Result<()> {
        let begun = Instant::now();
        while let Err(error) = self.ready().await {
            ensure!(begun.elapsed() < DEADLINE, "no node serves the queue: {error:#}");
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Deletes the queue, and declares it again.
    pub(crate) async fn recreate(&mut self) -> Result<()> {
        self.channel().await?.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
        self.declare().await
    }
}

async fn connect(url: &str) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok((connection, channel))
}

/// The message, and whether the broker has confirmed it.
async fn confirmed(message: UnconfirmedMessage) -> ((String, String), bool) {
    let UnconfirmedMessage { key, payload, confirmation } = message;
    let confirmed = timeout(CONFIRMED_WITHIN, confirmation).await;
    ((key, payload), matches!(confirmed, Ok(Ok(Confirmation::Ack(None)))))
}

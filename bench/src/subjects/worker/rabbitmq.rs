use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::future::try_join_all;
use futures_util::{FutureExt, StreamExt};
use hapax_brokers::RabbitMqSource;
use hapax_core::runtime::Tokio;
use hapax_systems::{BrokerUrl, TopicPlan};
use hapax_testkit::servers::RabbitMqServer;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};
use uuid::Uuid;

use super::drain::{DrainPlan, drain};
use super::loops::{self, LoopBody, LoopKind, ReceivedMessage};
use super::{AT_ONCE, BATCH, PAYLOAD, Servers, random, unpack};
use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject, own_seconds_of_cpu};

const MESSAGES: usize = 80 * BATCH;

/// How many messages may be sent without a confirmation.
const UNCONFIRMED: usize = 1_000;

/// Of the worker and of the loop. The default of the source is one batch.
const PREFETCH: u16 = 2_000;

/// Batches from a quorum queue, beside a loop that reads one with the driver alone.
pub(super) fn batches(servers: &Rc<Servers>) -> Subject {
    let queues = Rc::new(QuorumQueues { servers: Rc::clone(servers), server: OnceCell::new(), created: Cell::new(0) });
    Subject {
        name: "worker, RabbitMQ to PostgreSQL, batches",
        what: "an insert with its row of the ledger, 256 to a transaction, 4 at once; a quorum queue, prefetch 2000",
        run: Rc::clone(&queues).by_worker(),
        limit: Some(Limit {
            what: "the same set-based inserts with bare claim rows, 256 to a transaction, by a bare loop",
            run: queues.by_loop(),
            at_least: Some(0.65),
        }),
    }
}

/// A server, with a queue for each measurement.
struct QuorumQueues {
    servers: Rc<Servers>,
    /// Started by the first measurement.
    server: OnceCell<RabbitMqServer>,
    created: Cell<usize>,
}

impl QuorumQueues {
    fn server(&self) -> anyhow::Result<&RabbitMqServer> {
        if self.server.get().is_none() {
            unpack("rabbitmq")?;
            self.server.set(self.servers.runtime.block_on(RabbitMqServer::start(&[]))?).ok();
        }
        self.server.get().context("the lines above set it")
    }

    /// The URL of the server, and the name of a new queue with messages.
    fn queue(&self) -> anyhow::Result<(String, String)> {
        let url = self.server()?.url();
        self.created.set(self.created.get() + 1);
        let name = format!("queue-{}", self.created.get());
        self.servers.runtime.block_on(fill(&url, &name))?;
        Ok((url, name))
    }

    fn by_worker(self: Rc<Self>) -> MeasuredBatch {
        Box::new(move || {
            let (url, name) = self.queue()?;
            let process = loops::process(&self.servers.ledger()?);
            self.servers.runtime.block_on(async {
                let source = format!("{url}?queue={name}&prefetch={PREFETCH}").parse()?;
                let source = RabbitMqSource::connect(source, Arc::new(Tokio::current())).await?;
                let result = drain(Box::new(source), process, DrainPlan::new(MESSAGES, AT_ONCE, BATCH)).await?;
                url.parse::<BrokerUrl>()?.remove(&name).await?;
                Ok(result)
            })
        })
    }

    fn by_loop(self: Rc<Self>) -> MeasuredBatch {
        Box::new(move || {
            let (url, name) = self.queue()?;
            let body = self.servers.body(LoopKind::Claims)?;
            self.servers.runtime.block_on(async {
                let result = read(&url, &name, body).await?;
                url.parse::<BrokerUrl>()?.remove(&name).await?;
                Ok(result)
            })
        })
    }
}

/// A connection, which ends when it is dropped, and a channel.
pub(crate) async fn connect(url: &str) -> anyhow::Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

async fn fill(url: &str, name: &str) -> anyhow::Result<()> {
    url.parse::<BrokerUrl>()?.create(&TopicPlan::new("", name)).await?;
    let (_connection, channel) = connect(url).await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    for first in (0..MESSAGES).step_by(UNCONFIRMED) {
        let mut sent = Vec::new();
        for _ in first..(first + UNCONFIRMED).min(MESSAGES) {
            let mut headers = FieldTable::default();
            let key = Uuid::from_bytes(random()?).to_string();
            headers.insert("Idempotency-Key".into(), AMQPValue::LongString(key.into()));
            let properties = BasicProperties::default().with_headers(headers).with_delivery_mode(2);
            let options = BasicPublishOptions::default();
            sent.push(channel.basic_publish("".into(), name.into(), options, PAYLOAD, properties).await?);
        }
        try_join_all(sent).await?;
    }
    Ok(())
}

/// Reads a queue with the driver alone.
async fn read(url: &str, name: &str, mut body: LoopBody) -> anyhow::Result<BatchResult> {
    let (_connection, channel) = connect(url).await?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let before = own_seconds_of_cpu()?;
    let options = BasicConsumeOptions::default();
    let mut arriving = channel.basic_consume(name.into(), "".into(), options, FieldTable::default()).await?;
    let (mut begun, mut left) = (None, MESSAGES);
    while left > 0 {
        let received = receive(&mut arriving, &mut begun).await?;
        let messages = received.iter().map(message).collect::<anyhow::Result<Vec<_>>>()?;
        body.handle(&messages).await?;
        // One after the other takes four times as long.
        try_join_all(received.iter().map(|delivery| delivery.ack(BasicAckOptions::default()))).await?;
        left -= messages.len();
    }
    let elapsed = begun.context("no message was processed")?.elapsed();
    let cpu = (own_seconds_of_cpu()? - before) / MESSAGES as f64;
    let note = format!("{:.0} us of CPU each in this process", cpu * 1e6);
    Ok(BatchResult { rate: MESSAGES as f64 / elapsed.as_secs_f64(), note })
}

/// Waits for a message, and takes those that arrive soon after it.
async fn receive(arriving: &mut Consumer, begun: &mut Option<Instant>) -> anyhow::Result<Vec<Delivery>> {
    let mut received = vec![arriving.next().await.context("the consumer ended")??];
    begun.get_or_insert_with(Instant::now);
    while received.len() < BATCH
        && let Some(delivery) = soon(arriving).await
    {
        received.push(delivery.context("the consumer ended")??);
    }
    Ok(received)
}

/// The next message, if it arrives within the time that a worker lets messages wait for others.
async fn soon(arriving: &mut Consumer) -> Option<Option<lapin::Result<Delivery>>> {
    match arriving.next().now_or_never() {
        Some(next) => Some(next),
        None => tokio::time::timeout(Duration::from_millis(2), arriving.next()).await.ok(),
    }
}

fn message(delivery: &Delivery) -> anyhow::Result<ReceivedMessage> {
    let headers = delivery.properties.headers().as_ref();
    let key = headers.and_then(|headers| headers.inner().get("Idempotency-Key")).context("a message has no key")?;
    let key = key.as_long_string().context("the key is no text")?;
    Ok(ReceivedMessage { key: Uuid::try_parse_ascii(key.as_bytes())?, payload: delivery.data.clone() })
}

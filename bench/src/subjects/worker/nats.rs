use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use async_nats::HeaderMap;
use async_nats::jetstream;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use futures_util::future::try_join_all;
use futures_util::{FutureExt, StreamExt};
use hapax_brokers::NatsSource;
use hapax_core::runtime::Tokio;
use hapax_systems::{BrokerUrl, TopicPlan};
use hapax_testkit::servers::NatsServer;
use uuid::Uuid;

use super::drain::{DrainPlan, drain};
use super::loops::{self, LoopBody, LoopKind, ReceivedMessage};
use super::{AT_ONCE, BATCH, PAYLOAD, Servers, random, unpack};
use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject, own_seconds_of_cpu};

const MESSAGES: usize = 80 * BATCH;

/// How many messages may be sent without an acknowledgement of the stream.
const UNCONFIRMED: usize = 1_000;

/// Batches from a stream, beside a loop that reads one with the driver alone.
pub(super) fn batches(servers: &Rc<Servers>) -> Subject {
    let streams = Rc::new(Streams { servers: Rc::clone(servers), server: Cell::new(None), created: Cell::new(0) });
    Subject {
        name: "worker, NATS to PostgreSQL, batches",
        what: "an insert with its row of the ledger, 256 to a transaction, 4 transactions at once; acks that the \
               server confirms",
        run: Rc::clone(&streams).by_worker(),
        limit: Some(Limit {
            what: "the same set-based inserts with bare claim rows by a bare loop; acks without a confirmation",
            run: streams.by_loop(),
            at_least: None,
        }),
    }
}

/// A server, with a stream for each measurement.
struct Streams {
    servers: Rc<Servers>,
    /// Started by the first measurement.
    server: Cell<Option<Rc<NatsServer>>>,
    created: Cell<usize>,
}

impl Streams {
    fn server(&self) -> anyhow::Result<Rc<NatsServer>> {
        let server = match self.server.take() {
            Some(server) => server,
            None => {
                unpack("nats")?;
                Rc::new(self.servers.runtime.block_on(NatsServer::start(&[]))?)
            }
        };
        self.server.set(Some(Rc::clone(&server)));
        Ok(server)
    }

    /// The name of a new stream with messages.
    fn stream(&self) -> anyhow::Result<(Rc<NatsServer>, String)> {
        let server = self.server()?;
        self.created.set(self.created.get() + 1);
        let name = format!("stream-{}", self.created.get());
        self.servers.runtime.block_on(fill(&server, &name))?;
        Ok((server, name))
    }

    fn by_worker(self: Rc<Self>) -> MeasuredBatch {
        Box::new(move || {
            let (server, name) = self.stream()?;
            let process = loops::process(&self.servers.ledger()?);
            let url = format!("{}/{name}?durable=worker", server.url()).parse()?;
            self.servers.runtime.block_on(async {
                let source = NatsSource::connect(&url, Arc::new(Tokio::current())).await?;
                drain(Box::new(source), process, DrainPlan::new(MESSAGES, AT_ONCE, BATCH)).await
            })
        })
    }

    fn by_loop(self: Rc<Self>) -> MeasuredBatch {
        Box::new(move || {
            let (server, name) = self.stream()?;
            let body = self.servers.body(LoopKind::Claims)?;
            self.servers.runtime.block_on(read(&server, &name, body))
        })
    }
}

async fn fill(server: &NatsServer, name: &str) -> anyhow::Result<()> {
    let context = jetstream::new(async_nats::connect(server.url()).await?);
    server.url().parse::<BrokerUrl>()?.create(&TopicPlan::new("", name)).await?;
    for first in (0..MESSAGES).step_by(UNCONFIRMED) {
        let mut sent = Vec::new();
        for _ in first..(first + UNCONFIRMED).min(MESSAGES) {
            let mut headers = HeaderMap::new();
            headers.insert("Idempotency-Key", Uuid::from_bytes(random()?).to_string());
            sent.push(context.publish_with_headers(name.to_owned(), headers, PAYLOAD.into()).await?);
        }
        try_join_all(sent.into_iter().map(IntoFuture::into_future)).await?;
    }
    Ok(())
}

/// Reads a stream with the driver alone.
async fn read(server: &NatsServer, name: &str, mut body: LoopBody) -> anyhow::Result<BatchResult> {
    let context = jetstream::new(async_nats::connect(server.url()).await?);
    let config = pull::Config {
        durable_name: Some("loop".into()),
        ack_policy: AckPolicy::Explicit,
        max_ack_pending: 100_000,
        ..Default::default()
    };
    let consumer = context.get_stream(name).await?.create_consumer(config).await?;
    let before = own_seconds_of_cpu()?;
    let mut arriving = consumer.stream().max_messages_per_batch(512).messages().await?;
    let (mut begun, mut left) = (None, MESSAGES);
    while left > 0 {
        let mut received = vec![arriving.next().await.context("the stream ended")??];
        begun.get_or_insert_with(Instant::now);
        while received.len() < BATCH
            && let Some(message) = soon(arriving.next()).await
        {
            received.push(message.context("the stream ended")??);
        }
        let read = |message: &jetstream::Message| {
            let key = message.headers.as_ref().and_then(|headers| headers.get("Idempotency-Key"));
            let key = Uuid::try_parse(key.context("a message has no key")?.as_str())?;
            anyhow::Ok(ReceivedMessage { key, payload: message.payload.to_vec() })
        };
        let messages = received.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
        body.handle(&messages).await?;
        for message in &received {
            message.ack().await.map_err(anyhow::Error::from_boxed)?;
        }
        left -= messages.len();
    }
    let elapsed = begun.context("no message was processed")?.elapsed();
    let cpu = (own_seconds_of_cpu()? - before) / MESSAGES as f64;
    let note = format!("{:.0} us of CPU each in this process", cpu * 1e6);
    Ok(BatchResult { rate: MESSAGES as f64 / elapsed.as_secs_f64(), note })
}

/// The output, if it is there within the time that a worker lets messages wait for others.
async fn soon<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    match future.as_mut().now_or_never() {
        Some(output) => Some(output),
        None => tokio::time::timeout(Duration::from_millis(2), future).await.ok(),
    }
}

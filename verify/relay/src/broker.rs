use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use async_nats::jetstream;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{Config, Stream};
use futures_util::StreamExt;
use hapax_systems::{BrokerUrl, TopicPlan};
use hapax_testkit::servers::NatsServer;

const STREAM: &str = "sales";

/// How long it recognizes a repeated id: for a moment only, so that the consumer meets repeated events.
pub(crate) const SHORT_WINDOW: Duration = Duration::from_millis(100);

/// The default of NATS.
pub(crate) const LONG_WINDOW: Duration = Duration::from_secs(120);

/// The broker that the relays publish to, and what its consumer has read.
pub(crate) struct TorturedBroker {
    server: NatsServer,
    read: Vec<EventCopy>,
    /// How many events the consumer had read at each purge.
    purged: Vec<usize>,
}

/// What the consumer has read during a run.
pub(crate) struct StreamArrivals {
    /// In the order of the stream.
    pub(crate) copies: Vec<EventCopy>,
    /// After how many of them the stream was purged up to there.
    pub(crate) purged: Vec<usize>,
}

/// A copy of an event, as the broker has it.
#[derive(Debug)]
pub(crate) struct EventCopy {
    pub(crate) id: String,
    pub(crate) payload: String,
}

impl TorturedBroker {
    pub(crate) async fn start() -> Result<Self> {
        let server = NatsServer::start(&[]).await?;
        let stream = TopicPlan { window: Some(SHORT_WINDOW), ..TopicPlan::new("", STREAM) };
        server.url().parse::<BrokerUrl>()?.create(&stream).await?;
        Ok(Self { server, read: Vec::new(), purged: Vec::new() })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(crate) fn kill(&self) {
        self.server.kill();
    }

    pub(crate) async fn restart(&self) -> Result<()> {
        Ok(self.server.restart().await?)
    }

    /// Lets it recognize a repeated id for this long from now on.
    pub(crate) async fn recognize_repetitions(&self, window: Duration) -> Result<()> {
        let context = jetstream::new(async_nats::connect(self.server.url()).await?);
        let present = context.get_stream(STREAM).await?.get_info().await?.config;
        context.update_stream(Config { duplicate_window: window, ..present }).await?;
        Ok(())
    }

    /// Lets the consumer read everything, and removes that from the stream. What arrives meanwhile stays.
    pub(crate) async fn purge_what_is_read(&mut self) -> Result<()> {
        let stream = self.stream().await?;
        if let Some(last) = self.read_stream(&stream).await? {
            stream.purge().sequence(last + 1).await?;
        }
        self.purged.push(self.read.len());
        Ok(())
    }

    /// Lets the consumer read the rest.
    pub(crate) async fn into_arrivals(mut self) -> Result<StreamArrivals> {
        let stream = self.stream().await?;
        self.read_stream(&stream).await?;
        Ok(StreamArrivals { copies: self.read, purged: self.purged })
    }

    async fn stream(&self) -> Result<Stream> {
        let context = jetstream::new(async_nats::connect(self.server.url()).await?);
        Ok(context.get_stream(STREAM).await?)
    }

    /// Reads what the stream has now. Returns its last sequence.
    async fn read_stream(&mut self, stream: &Stream) -> Result<Option<u64>> {
        let mut left = stream.get_info().await?.state.messages;
        let config =
            pull::Config { deliver_policy: DeliverPolicy::All, ack_policy: AckPolicy::None, ..Default::default() };
        let mut messages = stream.create_consumer(config).await?.messages().await?;
        let mut last = None;
        while left > 0 {
            let message = messages.next().await.context("the stream ended")??;
            last = Some(message.info().map_err(|error| anyhow!(error))?.stream_sequence);
            let id = message.headers.as_ref().and_then(|headers| headers.get("Idempotency-Key"));
            let id = id.map(|id| id.as_str().to_owned()).unwrap_or_default();
            self.read.push(EventCopy { id, payload: String::from_utf8_lossy(&message.payload).into_owned() });
            left -= 1;
        }
        Ok(last)
    }
}

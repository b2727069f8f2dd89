use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use async_nats::jetstream;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{Config, Stream};
use futures_util::StreamExt;
use hapax_systems::{BrokerUrl, TopicPlan};
use hapax_testkit::servers::NatsServer;

use crate::broker::EventCopy;

const STREAM: &str = "sales";

/// How long it recognizes a repeated id: for a moment only, so that the consumer meets repeated events.
pub(crate) const SHORT_WINDOW: Duration = Duration::from_millis(100);

/// The default of NATS.
pub(crate) const LONG_WINDOW: Duration = Duration::from_secs(120);

/// A stream of JetStream.
pub(crate) struct NatsStream {
    pub(crate) server: NatsServer,
}

impl NatsStream {
    pub(crate) async fn start() -> Result<Self> {
        let server = NatsServer::start(&[]).await?;
        let stream = TopicPlan { window: Some(SHORT_WINDOW), ..TopicPlan::new("", STREAM) };
        server.url().parse::<BrokerUrl>()?.create(&stream).await?;
        Ok(Self { server })
    }

    /// Lets it recognize a repeated id for this long from now on.
    pub(crate) async fn recognize_repetitions(&self, window: Duration) -> Result<()> {
        let context = jetstream::new(async_nats::connect(self.server.url()).await?);
        let present = context.get_stream(STREAM).await?.get_info().await?.config;
        context.update_stream(Config { duplicate_window: window, ..present }).await?;
        Ok(())
    }

    /// Reads everything, and removes that. What arrives meanwhile stays.
    pub(crate) async fn purge_what_is_read(&self, read: &mut Vec<EventCopy>) -> Result<()> {
        if let Some(last) = self.read_stream(read).await? {
            self.stream().await?.purge().sequence(last + 1).await?;
        }
        Ok(())
    }

    /// Reads everything.
    pub(crate) async fn read(&self, read: &mut Vec<EventCopy>) -> Result<()> {
        self.read_stream(read).await.map(drop)
    }

    async fn stream(&self) -> Result<Stream> {
        let context = jetstream::new(async_nats::connect(self.server.url()).await?);
        Ok(context.get_stream(STREAM).await?)
    }

    /// Reads what the stream has now. Returns its last sequence.
    async fn read_stream(&self, read: &mut Vec<EventCopy>) -> Result<Option<u64>> {
        let stream = self.stream().await?;
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
            read.push(EventCopy { id, payload: String::from_utf8_lossy(&message.payload).into_owned() });
            left -= 1;
        }
        Ok(last)
    }
}

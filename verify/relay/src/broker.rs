use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::{self, stream};
use futures_util::StreamExt;
use hapax_testkit::servers::NatsServer;

const STREAM: &str = "sales";

/// It recognizes a repeated id for a moment only, so that the consumer meets repeated events.
const WINDOW: Duration = Duration::from_millis(100);

/// The broker that the relays publish to.
pub(crate) struct TorturedBroker(NatsServer);

/// A copy of an event, as the broker has it.
#[derive(Debug)]
pub(crate) struct EventCopy {
    pub(crate) id: String,
    pub(crate) payload: String,
}

impl TorturedBroker {
    pub(crate) async fn start() -> Result<Self> {
        let server = NatsServer::start(&[]).await?;
        let config = stream::Config {
            name: STREAM.into(),
            subjects: vec![STREAM.into()],
            duplicate_window: WINDOW,
            ..Default::default()
        };
        jetstream::new(async_nats::connect(server.url()).await?).create_stream(config).await?;
        Ok(Self(server))
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }

    pub(crate) fn kill(&self) {
        self.0.kill();
    }

    pub(crate) async fn restart(&self) -> Result<()> {
        Ok(self.0.restart().await?)
    }

    /// Everything that it has, in its order.
    pub(crate) async fn read_all(&self) -> Result<Vec<EventCopy>> {
        read_stream(&self.0).await
    }
}

async fn read_stream(server: &NatsServer) -> Result<Vec<EventCopy>> {
    let context = jetstream::new(async_nats::connect(server.url()).await?);
    let mut stream = context.get_stream(STREAM).await?;
    let mut left = stream.info().await?.state.messages;
    let config = pull::Config { deliver_policy: DeliverPolicy::All, ack_policy: AckPolicy::None, ..Default::default() };
    let mut messages = stream.create_consumer(config).await?.messages().await?;
    let mut arrived = Vec::new();
    while left > 0 {
        let message = messages.next().await.context("the stream ended")??;
        let id = message.headers.as_ref().and_then(|headers| headers.get("Nats-Msg-Id"));
        let id = id.map(|id| id.as_str().to_owned()).unwrap_or_default();
        arrived.push(EventCopy { id, payload: String::from_utf8_lossy(&message.payload).into_owned() });
        left -= 1;
    }
    Ok(arrived)
}

use std::sync::Arc;

use anyhow::Context as _;
use async_nats::HeaderMap;
use async_nats::jetstream::consumer::push;
use async_nats::jetstream::{self, Context};
use async_trait::async_trait;
use futures_util::future::try_join_all;
use hapax_brokers::NatsSink;
use hapax_core::outbox::Sink;
use hapax_core::runtime::Tokio;
use hapax_testkit::servers::NatsServer;
use tokio::runtime::Runtime;

use super::brokers::{BareEvent, BenchBroker};
use crate::subjects::worker::unpack;

/// A server with a stream for each topic.
pub(super) struct NatsBroker {
    server: NatsServer,
    context: Context,
}

impl NatsBroker {
    pub(super) fn start(runtime: &Runtime) -> anyhow::Result<Self> {
        unpack("nats")?;
        runtime.block_on(async {
            let server = NatsServer::start(&[]).await?;
            let context = jetstream::new(async_nats::connect(server.url()).await?);
            Ok(Self { server, context })
        })
    }

    /// What arrives in the stream from now on, in its order.
    pub(super) async fn arrivals(&self, topic: &str) -> anyhow::Result<push::Ordered> {
        let config = push::OrderedConfig { deliver_subject: format!("arrivals.{topic}"), ..Default::default() };
        let stream = self.context.get_stream(topic).await?;
        Ok(stream.create_consumer(config).await?.messages().await?)
    }
}

#[async_trait(?Send)]
impl BenchBroker for NatsBroker {
    fn url(&self) -> String {
        self.server.url()
    }

    async fn sink(&self) -> anyhow::Result<Arc<dyn Sink>> {
        Ok(Arc::new(NatsSink::open(self.url().parse()?, Arc::new(Tokio::current())).await?))
    }

    async fn publish(&self, topic: &str, events: Vec<BareEvent>) -> anyhow::Result<()> {
        let mut sent = Vec::with_capacity(events.len());
        for event in events {
            let mut headers = HeaderMap::new();
            for (name, value) in event.headers("ce-") {
                headers.insert(name, value);
            }
            headers.insert(async_nats::header::NATS_MESSAGE_ID, event.id.to_string());
            sent.push(self.context.publish_with_headers(topic.to_owned(), headers, event.payload.into()).await?);
        }
        try_join_all(sent.into_iter().map(IntoFuture::into_future)).await.context("an event is not confirmed")?;
        Ok(())
    }
}

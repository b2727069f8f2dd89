use std::sync::Arc;

use anyhow::ensure;
use async_trait::async_trait;
use futures_util::future::try_join_all;
use hapax_brokers::RabbitMqSink;
use hapax_core::outbox::Sink;
use hapax_core::runtime::Tokio;
use hapax_testkit::servers::RabbitMqServer;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use tokio::runtime::Runtime;

use super::brokers::{BareEvent, BenchBroker};
use crate::subjects::worker::{connect_to_rabbitmq, unpack};

/// A server with an exchange and a quorum queue for each topic.
pub(super) struct RabbitMqBroker {
    server: RabbitMqServer,
    channel: Channel,
    _connection: Connection,
}

impl RabbitMqBroker {
    pub(super) fn start(runtime: &Runtime) -> anyhow::Result<Self> {
        unpack("rabbitmq")?;
        runtime.block_on(async {
            let server = RabbitMqServer::start(&[]).await?;
            let (connection, channel) = connect_to_rabbitmq(&server.url()).await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(Self { server, channel, _connection: connection })
        })
    }
}

#[async_trait(?Send)]
impl BenchBroker for RabbitMqBroker {
    fn url(&self) -> String {
        self.server.url()
    }

    async fn sink(&self) -> anyhow::Result<Arc<dyn Sink>> {
        let config = format!("{}/?exchange=%7Btopic%7D", self.url()).parse()?;
        Ok(Arc::new(RabbitMqSink::open(config, Arc::new(Tokio::current())).await?))
    }

    async fn publish(&self, topic: &str, events: Vec<BareEvent>) -> anyhow::Result<()> {
        // At once: the driver takes its time to hand one over.
        let confirmed = try_join_all(events.into_iter().map(|event| async move {
            let mut headers = FieldTable::default();
            for (name, value) in event.headers("cloudEvents:") {
                headers.insert(name.into(), AMQPValue::LongString(value.into()));
            }
            let properties = BasicProperties::default().with_headers(headers).with_delivery_mode(2);
            let properties = properties.with_message_id(event.id.to_string().into());
            let options = BasicPublishOptions { mandatory: true, immediate: false };
            let publishing =
                self.channel.basic_publish(topic.into(), topic.into(), options, &event.payload, properties);
            publishing.await?.await
        }))
        .await?;
        ensure!(confirmed.iter().all(|it| matches!(it, Confirmation::Ack(None))), "an event is not confirmed");
        Ok(())
    }
}

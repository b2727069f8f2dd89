//! What the brokers say of themselves: whether they are there, and their limit for one record.

use std::sync::Arc;

use hapax_core::Result;
use hapax_core::runtime::{Runtime, timeout};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::metadata::{Metadata, MetadataTopic};
use tokio::sync::oneshot;

use super::KafkaSinkConfig;
use super::producer::PATIENCE;
use crate::errors::{not_applied, unusable};
use crate::kafka::config;
use crate::kafka::failures::{ConnectionFailures, fetch_metadata};

/// The limit of a broker whose operator has set none, with the frame of a batch.
pub(super) const DEFAULT_LIMIT: usize = 1_048_588;

/// A name to ask for where no topic is known: each reply names the brokers. The driver asks for all topics otherwise.
const ANY_TOPIC: &str = "hapax";

/// A broker that was found, and whether the topic is there.
#[derive(Debug)]
pub(super) struct FoundBroker {
    id: i32,
    pub(super) has_topic: bool,
}

/// Connections of their own for questions.
pub(super) struct BrokerFacts {
    admin: AdminClient<DefaultClientContext>,
    /// Asks for metadata. The client for administrators does not pass on why it reaches no broker.
    finder: Arc<BaseConsumer<ConnectionFailures>>,
    runtime: Arc<dyn Runtime>,
}

impl BrokerFacts {
    pub(super) fn new(config: &KafkaSinkConfig, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", config.url.addresses()).set("client.id", "hapax");
        // A question must not create a topic.
        settings.set("allow.auto.create.topics", "false");
        config::log_in(&config.url, &mut settings)?;
        let admin = settings.create().map_err(|error| config::refused(&error))?;
        let finder =
            settings.set_log_level(config::TELLS_OF_CONNECTIONS).create_with_context(ConnectionFailures::default());
        let finder = Arc::new(finder.map_err(|error| config::refused(&error))?);
        Ok(Self { admin, finder, runtime })
    }

    /// Asks a broker for a topic, or only for itself.
    pub(super) async fn find(&self, topic: Option<String>) -> Result<FoundBroker> {
        let finder = Arc::clone(&self.finder);
        let (reply, found) = oneshot::channel();
        let body = move || {
            let asked = topic.as_deref().unwrap_or(ANY_TOPIC);
            let metadata = fetch_metadata(&finder, finder.context(), asked, || !reply.is_closed());
            // The caller may be gone.
            let _ = reply.send(metadata.and_then(|metadata| found_broker(&metadata, topic.as_deref())));
        };
        let started = self.runtime.blocking("hapax-kafka-look", Box::new(body));
        started.map_err(|error| unusable("cannot start a thread for Kafka").caused_by(error))?;
        found.await.unwrap_or_else(|_| Err(not_applied("the look at Kafka ended early")))
    }

    /// The limit for one record of a broker. None if it does not tell.
    pub(super) async fn limit_of_broker(&self, found: &FoundBroker) -> Option<usize> {
        self.read(ResourceSpecifier::Broker(found.id), "message.max.bytes").await
    }

    async fn read(&self, resource: ResourceSpecifier<'_>, name: &str) -> Option<usize> {
        let options = AdminOptions::new().request_timeout(Some(PATIENCE));
        let described = timeout(&*self.runtime, PATIENCE, self.admin.describe_configs([&resource], &options)).await?;
        let resource = described.ok()?.into_iter().next()?.ok()?;
        resource.get(name)?.value.as_ref()?.parse().ok()
    }
}

fn found_broker(metadata: &Metadata, topic: Option<&str>) -> Result<FoundBroker> {
    let broker = metadata.brokers().first().ok_or_else(|| not_applied("Kafka names no broker"))?;
    // What it says of the other name does not matter, not even that it denies access.
    let Some(topic) = topic else { return Ok(FoundBroker { id: broker.id(), has_topic: true }) };
    let listed = metadata.topics().iter().find(|listed| listed.name() == topic);
    Ok(FoundBroker { id: broker.id(), has_topic: is_there(listed, topic)? })
}

fn is_there(listed: Option<&MetadataTopic>, topic: &str) -> Result<bool> {
    match listed.and_then(MetadataTopic::error).map(RDKafkaErrorCode::from) {
        Some(RDKafkaErrorCode::TopicAuthorizationFailed) => {
            Err(unusable(format!("the Kafka broker denies access to the topic `{topic}`")))
        }
        Some(_) => Ok(false),
        None => Ok(listed.is_some_and(|listed| !listed.partitions().is_empty())),
    }
}

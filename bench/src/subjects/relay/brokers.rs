use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::outbox::Sink;
use hapax_systems::{BrokerUrl, TopicPlan};
use uuid::Uuid;

/// A broker that the relay and the bare loop publish to.
#[async_trait(?Send)]
pub(super) trait BenchBroker {
    /// Where topics are created and removed.
    fn url(&self) -> String;

    /// Creates a topic.
    async fn create(&self, topic: &str) -> anyhow::Result<()> {
        self.url().parse::<BrokerUrl>()?.create(&TopicPlan::new("", topic)).await
    }

    /// Removes a topic with its events, so that the disk keeps those of one measurement.
    async fn remove(&self, topic: &str) -> anyhow::Result<()> {
        self.url().parse::<BrokerUrl>()?.remove(topic).await
    }

    /// What the relay publishes to.
    async fn sink(&self) -> anyhow::Result<Arc<dyn Sink>>;

    /// Publishes these events with the driver alone, all at once, and waits for all confirmations.
    async fn publish(&self, topic: &str, events: Vec<BareEvent>) -> anyhow::Result<()>;
}

/// An event that the bare loop has read.
pub(super) struct BareEvent {
    pub(super) id: Uuid,
    pub(super) key: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

impl BareEvent {
    /// The headers that the relay's sinks write too, so that the brokers store as many bytes.
    pub(super) fn headers(&self, prefix: &str) -> Vec<(String, String)> {
        let id = self.id.to_string();
        let attribute = |name: &str, value: &str| (format!("{prefix}{name}"), value.to_owned());
        vec![
            ("Idempotency-Key".into(), id.clone()),
            ("content-type".into(), "application/json".into()),
            attribute("specversion", "1.0"),
            attribute("id", &id),
            attribute("source", "bench"),
            attribute("type", "com.example.paid"),
            attribute("time", "2026-01-01T00:00:00.000000Z"),
            attribute("partitionkey", &String::from_utf8_lossy(&self.key)),
        ]
    }
}

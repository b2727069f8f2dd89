use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::{Headers, Source};
use hapax_core::outbox::{Sink, TopicTemplate};
use hapax_core::runtime::Runtime;

/// A broker, a queue or an endpoint with a place of its own for each case.
#[async_trait]
pub trait SinkSetup: Send + Sync {
    /// The clock and the sleeps of the test.
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// The topic of events that the place takes, under the default template and under `{topic}` inside of another one.
    fn topic(&self) -> String;

    /// Opens a sink.
    async fn open(&self, options: SinkOptions) -> Arc<dyn Sink>;

    /// Everything that arrived in the place, read without the sink. What arrived for one ordering key is in order.
    async fn arrived(&self) -> Vec<ArrivedEvent>;

    /// A template, and the topic with which its name is [`topic`](Self::topic).
    fn split_topic(&self) -> (TopicTemplate, String);

    /// A topic that the sink can never use, under the default template.
    fn invalid_topic(&self) -> String;

    /// The address of the broker, for a proxy. Called only if the sink has `SinkCapability::Network`.
    fn address(&self) -> SocketAddr {
        unreachable!("the sink lacks `Network`")
    }

    /// Kills the broker. Called only if the sink has `SinkCapability::Restart`.
    fn kill_broker(&self) {
        unreachable!("the sink lacks `Restart`")
    }

    /// Starts the broker again. Called only if the sink has `SinkCapability::Restart`.
    async fn restart_broker(&self) {
        unreachable!("the sink lacks `Restart`")
    }

    /// Creates the place of the case, which was missing until now. Called only if the sink has
    /// `SinkCapability::MissingTopic`.
    async fn create_topic(&self) {
        unreachable!("the sink lacks `MissingTopic`")
    }

    /// A source of the place, for a worker. Called only if the sink has `SinkCapability::Source`.
    async fn source(&self) -> Box<dyn Source> {
        unreachable!("the sink lacks `Source`")
    }
}

/// How a case opens a sink.
#[derive(Clone, Debug)]
pub struct SinkOptions {
    /// From topics to names.
    pub topic: TopicTemplate,
    /// Where the broker is. None: where it listens itself.
    pub address: Option<SocketAddr>,
    /// How long one publication may take.
    pub timeout: Duration,
}

/// An event as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrivedEvent {
    /// The event id by which consumers tell repetitions.
    pub id: String,
    /// The topic, subject, queue or endpoint.
    pub name: String,
    /// What the broker orders by. None where the sink passes no key on, and where the event has none.
    pub ordering_key: Option<Bytes>,
    /// All headers.
    pub headers: Headers,
    /// The body.
    pub payload: Bytes,
}

/// A property of a sink that a case of the sink suite needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkCapability {
    /// It reaches its broker over a network, which a proxy can cut.
    Network,
    /// There is a server that can be killed and started again.
    Restart,
    /// A topic can be missing. The setup of a case that needs it creates no topic.
    MissingTopic,
    /// The broker has a limit for one event. The setup of a case that needs it has a limit below 1,000,000 bytes.
    SmallLimit,
    /// There is a source for what it publishes.
    Source,
}

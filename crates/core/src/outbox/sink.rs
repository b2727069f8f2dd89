use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::outbox::OutgoingEvent;
use crate::store::Finding;

/// What a relay publishes to: a broker, a queue, or endpoints of webhooks.
///
/// The relay calls [`publish`](Self::publish) for many events at once, and for one event of an ordering key at a time.
/// A sink that is faster with batches collects them itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no sink of events",
    label = "does not implement `Sink`",
    note = "pass a sink of `hapax::brokers`, each of which is a feature of hapax, or implement `Sink`"
)]
#[async_trait]
pub trait Sink: fmt::Debug + Send + Sync + 'static {
    /// The name of this sink in logs, without credentials, for instance `kafka/localhost:9092`.
    fn name(&self) -> &Arc<str>;

    /// The largest event that it takes, in bytes of payload and headers.
    fn max_len(&self) -> usize;

    /// How long its broker recognizes a repeated [`OutgoingEvent::deduplication_id`]. None if it recognizes none.
    fn window(&self) -> Option<Duration>;

    /// The endpoint that gets this event, by its configured name, for metrics. None where the sink has no endpoints, or
    /// none of this name.
    fn endpoint(&self, _event: &OutgoingEvent) -> Option<Arc<str>> {
        None
    }

    /// Checks whether the sink can be used.
    ///
    /// # Errors
    /// The reason why it cannot be reached.
    async fn check(&self) -> Result<Vec<Finding>>;

    /// Why nothing can be delivered to some of the endpoints now, for an operator who checks a configuration. A relay
    /// publishes to the others all the same. Empty where the sink has no endpoints.
    async fn undeliverable(&self) -> Vec<String> {
        Vec::new()
    }

    /// Publishes the event under its id, and waits for the confirmation. It returns within the sink's own time limit.
    ///
    /// # Cancel safety
    /// If dropped, it is unknown whether the event was published.
    async fn publish(&self, event: &Arc<OutgoingEvent>) -> Published;

    /// Waits for what is being published, and closes the connection.
    async fn close(&self);
}

/// What happened to an event.
#[derive(Debug)]
pub enum Published {
    /// The broker has it.
    Yes {
        /// Whether the broker had it before, and recognized this copy by its deduplication id.
        caught: bool,
    },
    /// The broker does not have it. The relay tries again, not before this time.
    NotPublished {
        /// How long to wait at least. Zero leaves it to the relay.
        after: Duration,
        /// Why.
        cause: Error,
    },
    /// The broker may have it. The relay tries again, under the same id.
    Unknown(Error),
    /// The broker will never take it. The relay parks its key.
    Refused(String),
}

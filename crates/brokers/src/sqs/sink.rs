//! Sends events to queues of SQS.
//!
//! ```text
//! config.rs   the URL
//! message.rs  from an event to a message
//! queues.rs   the queues that are known
//! ```

mod config;
mod message;
mod queues;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::Result;
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::store::Finding;

pub use self::config::SqsSinkConfig;
use self::queues::KnownQueues;
use super::queue::{MAX_BYTES, SqsApi};
use super::url::{check_name, is_fifo};
use crate::errors::{not_applied, unknown};
use crate::sinks::{InFlight, limit_finding, max_len, not_published};

/// How long a FIFO queue recognizes a deduplication id.
const WINDOW: Duration = Duration::from_secs(300);

/// The queue that is asked for where the template names none. It need not exist.
const ANY_QUEUE: &str = "hapax";

/// Sends events to queues of AWS SQS, in batches of up to ten.
///
/// The name of the queue comes from a template. The queues must exist; an event waits for a missing one. An event for
/// a FIFO queue has its ordering key as message group and its id as deduplication id: for five minutes the queue keeps
/// one copy. The sink tells that a copy was recognized only if it has sent the first one itself.
///
/// A body that is empty, or no text of XML, is sent in base64, with the attribute `hapax-encoding`. Headers that do not
/// fit in ten attributes are in the attribute `hapax-headers`, as JSON. An [`SqsSource`](crate::SqsSource) reads both.
/// Base64 is a third longer: an event whose body is no text is refused from about 780,000 bytes on.
///
/// The credentials need the right `sqs:SendMessage`, and `sqs:GetQueueUrl` if the URL names no account. With
/// `sqs:GetQueueAttributes` the sink knows the limits of the queues. A queue with a key of its own needs
/// `kms:GenerateDataKey` and `kms:Decrypt`.
///
/// ```no_run
/// # async fn run() -> Result<(), hapax::Error> {
/// use std::sync::Arc;
/// use hapax::brokers::{SqsSink, SqsSinkConfig};
/// use hapax::runtime::Tokio;
///
/// let config: SqsSinkConfig = "sqs://eu-west-1/orders-{topic}.fifo".parse()?;
/// let sink = SqsSink::open(config, Arc::new(Tokio::current())).await?;
/// # Ok(())
/// # }
/// ```
pub struct SqsSink {
    name: Arc<str>,
    config: SqsSinkConfig,
    api: SqsApi,
    queues: KnownQueues,
    in_flight: InFlight,
    runtime: Arc<dyn Runtime>,
}

impl SqsSink {
    /// Reads the limits of the queue, if the template names only one.
    ///
    /// # Errors
    /// Those of the TLS library. What is missing or denied, `check` reports.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn open(config: SqsSinkConfig, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let api = SqsApi::new(&config.place, &runtime).await?;
        let queues = KnownQueues::new(api.clone(), config.timeout, Arc::clone(&runtime));
        let name = config.name().into();
        let sink = Self { name, config, api, queues, in_flight: InFlight::new(), runtime };
        if let Some(queue) = sink.config.topic.constant() {
            let _ = sink.queues.find(&queue).await;
        }
        Ok(sink)
    }

    async fn send(&self, event: &OutgoingEvent) -> Published {
        let name = match self.config.topic.checked_name(event, check_name) {
            Ok(name) => name,
            Err(reason) => return Published::Refused(reason),
        };
        let message = match message::of(event, &name) {
            Ok(message) => message,
            Err(reason) => return Published::Refused(reason),
        };
        let queue = match timeout(&*self.runtime, self.config.timeout, self.queues.find(&name)).await {
            Some(Ok(queue)) => queue,
            // It was only asked for.
            Some(Err(failure)) if failure.is_unclear() => return not_published(failure.asked(&name)),
            Some(Err(failure)) => return failure.published(&name),
            None => return not_published(not_applied("SQS does not answer in time")),
        };
        let size = message::size(&message);
        if size > queue.max_bytes() {
            self.queues.read_limit(&queue).await;
        }
        let limit = queue.max_bytes();
        if size > limit {
            let how = if message::is_encoded(&message) { " in base64" } else { "" };
            return Published::Refused(format!(
                "the event has {size} bytes{how} with its attributes, and the queue `{name}` takes {limit}"
            ));
        }
        let sent = timeout(&*self.runtime, self.config.timeout, queue.sends.send(message));
        match sent.await.flatten() {
            Some(Ok(id)) => Published::Yes { caught: is_fifo(&name) && self.queues.is_repeated(&id) },
            Some(Err(failure)) => failure.published(&name),
            None => Published::Unknown(unknown(format!("SQS did not confirm an event for the queue `{name}` in time"))),
        }
    }
}

#[async_trait]
impl Sink for SqsSink {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn max_len(&self) -> usize {
        max_len(self.queues.smallest_limit())
    }

    fn window(&self) -> Option<Duration> {
        let is_fifo = self.queues.are_fifo(is_fifo(&self.config.topic.to_string()));
        is_fifo.then_some(WINDOW)
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        let constant = self.config.topic.constant();
        let name = constant.as_deref().unwrap_or(ANY_QUEUE);
        // A queue that is known is asked again: the service may be away by now.
        let asked = async { self.api.queue(name).await?.attributes().await };
        match asked.await {
            Ok(_) => {}
            // The right to send may be there all the same.
            Err(failure) if failure.is_denied() => {}
            // Nobody has said that this queue exists.
            Err(failure) if failure.is_missing() && constant.is_none() => {}
            Err(failure) => return Err(failure.asked(name)),
        }
        if let Some(queue) = &constant {
            let _ = self.queues.find(queue).await;
        }
        self.queues.read_small_limits().await;
        let limit = self.queues.smallest_limit();
        let small = limit_finding("a queue", limit, &format!("set its MaximumMessageSize to {MAX_BYTES}"));
        Ok(small.into_iter().collect())
    }

    async fn publish(&self, event: &Arc<OutgoingEvent>) -> Published {
        match self.in_flight.enter().await {
            Ok(_in_flight) => self.send(event).await,
            Err(closed) => closed,
        }
    }

    async fn close(&self) {
        self.in_flight.close().await;
    }
}

impl fmt::Debug for SqsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsSink").field("config", &self.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

//! Publishes events to exchanges of RabbitMQ.
//!
//! ```text
//! config.rs       the URL
//! message.rs      from an event to a message
//! channels.rs     the channels of a connection, and what is in flight on them
//! unconfirmed.rs  the events of a channel without a certain outcome, and whose a returned event is
//! outcome.rs      what a reply means, or the end of a channel: the rows of outcomes.md
//! ```

mod channels;
mod config;
mod message;
mod outcome;
mod unconfirmed;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::outbox::{OutgoingEvent, Published, Sink, TopicTemplate};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::store::Finding;
use hapax_core::{ErrorKind, Result};
use tokio::sync::Mutex;

use self::channels::LiveConnection;
pub use self::config::RabbitMqSinkConfig;
use super::connect::{self, PATIENCE, check_exchange};
use crate::errors::not_applied;
use crate::sinks::{InFlight, limit_finding, max_len, not_published, too_large, warning};

/// Publishes events to exchanges of RabbitMQ, each under its id as `message-id`, persistent, and confirmed. Needs a
/// server from 3.10 on, which recognizes no repeated event: consumers do.
///
/// Exchange and routing key come from templates. The exchange must exist, and a queue must be bound for the event; an
/// event waits for a missing one. The ordering key is in the header `cloudEvents:partitionkey`, so that a worker reads
/// it with `order=header:cloudEvents:partitionkey`.
///
/// The driver logs each event that no queue takes, with its payload, as a warning of the target `lapin`. Reduce that
/// target to errors if payloads are confidential; `hapax relay` does.
///
/// ```no_run
/// # async fn run() -> Result<(), hapax::Error> {
/// use std::sync::Arc;
/// use hapax::brokers::{RabbitMqSink, RabbitMqSinkConfig};
/// use hapax::runtime::Tokio;
///
/// let config: RabbitMqSinkConfig = "amqp://relay:secret@mq.example/shop?exchange=events".parse()?;
/// let sink = RabbitMqSink::open(config, Arc::new(Tokio::current())).await?;
/// # Ok(())
/// # }
/// ```
pub struct RabbitMqSink {
    name: Arc<str>,
    config: RabbitMqSinkConfig,
    live: Mutex<Option<Arc<LiveConnection>>>,
    /// The number of attempts to connect since the last connection. The next one begins with another host.
    attempts: AtomicUsize,
    in_flight: InFlight,
    runtime: Arc<dyn Runtime>,
}

impl RabbitMqSink {
    /// Connects. A connection that breaks later is made again by the next event.
    ///
    /// # Errors
    /// - `NotApplied`: no broker can be reached now.
    /// - `Unusable`: the broker refuses the credentials or the virtual host, or a file in the URL cannot be read.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn open(config: RabbitMqSinkConfig, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let sink = Self {
            name: config.name().into(),
            config,
            live: Mutex::new(None),
            attempts: AtomicUsize::new(0),
            in_flight: InFlight::new(),
            runtime,
        };
        sink.live().await?;
        Ok(sink)
    }

    /// The connection. Makes it again if it has ended.
    async fn live(&self) -> Result<Arc<LiveConnection>> {
        let mut current = self.live.lock().await;
        if let Some(live) = current.as_ref().filter(|live| live.connection.status().connected()) {
            return Ok(Arc::clone(live));
        }
        // Counted before: a publication may give up earlier than a silent host.
        let first = self.attempts.fetch_add(1, Ordering::Relaxed);
        let connection = connect::connect(&self.config.url, first, &*self.runtime).await?;
        self.attempts.store(0, Ordering::Relaxed);
        let live = Arc::new(LiveConnection::new(connection));
        *current = Some(Arc::clone(&live));
        Ok(live)
    }

    /// Carries out a step of a publication that must end by then.
    async fn by<T>(&self, until: Duration, step: impl Future<Output = T> + Send) -> Option<T> {
        timeout(&*self.runtime, until.saturating_sub(self.runtime.boottime_now()), step).await
    }

    async fn send(&self, event: &OutgoingEvent) -> Published {
        let until = self.runtime.boottime_now() + self.config.timeout;
        let live = match self.by(until, self.live()).await {
            Some(Ok(live)) => live,
            Some(Err(error)) => return not_published(error), // P3
            None => return not_published(not_applied("the broker cannot be reached in time")),
        };
        // A frame of 0 bytes has no limit.
        let frame = match live.connection.configuration().frame_max() {
            0 => usize::MAX,
            limit => usize::try_from(limit).unwrap_or(usize::MAX),
        };
        let message = match message::of(event, &self.config, frame) {
            Ok(message) => message,
            Err(reason) => return Published::Refused(reason), // P1
        };
        if live.connection.status().blocked() {
            return not_published(not_applied("the broker takes no events now: its memory or its disk is full")); // P2
        }
        let channel = match self.by(until, live.channel()).await {
            Some(Ok(channel)) => channel,
            Some(Err(error)) => return not_published(error), // P3
            None => return not_published(not_applied("the broker gives no channel in time")),
        };
        let target = message.target();
        let published = self.by(until, channel.publish(event, message, &target)).await;
        published.unwrap_or_else(|| {
            channel.mark_silent();
            outcome::silent(&target) // P9
        })
    }
}

#[async_trait]
impl Sink for RabbitMqSink {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn max_len(&self) -> usize {
        max_len(self.config.max_size)
    }

    fn window(&self) -> Option<Duration> {
        None
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        let live = self.live().await?;
        let remedy = "set its max_message_size to 16777216, and max-size in the URL";
        let mut findings = Vec::from_iter(limit_finding("the broker", self.config.max_size, remedy));
        if live.connection.status().blocked() {
            findings.push(warning("the broker takes no events now: its memory or its disk is full".into()));
        }
        if let Some(exchange) = self.config.exchange.as_ref().and_then(TopicTemplate::constant) {
            match check_exchange(&live.connection, &exchange, &*self.runtime).await {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Unusable => findings.push(warning(error.to_string())),
                Err(error) => return Err(error),
            }
        }
        Ok(findings)
    }

    async fn publish(&self, event: &Arc<OutgoingEvent>) -> Published {
        if let Some(refused) = too_large(event, self.config.max_size) {
            return refused; // P1
        }
        match self.in_flight.enter().await {
            Ok(_in_flight) => self.send(event).await,
            Err(closed) => closed,
        }
    }

    async fn close(&self) {
        self.in_flight.close().await;
        if let Some(live) = self.live.lock().await.take() {
            // An error means that it has ended.
            let _ = timeout(&*self.runtime, PATIENCE, live.connection.close(200, "the relay stops".into())).await;
        }
    }
}

impl fmt::Debug for RabbitMqSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqSink").field("config", &self.config).finish_non_exhaustive()
    }
}

//! Publishes events to streams of NATS JetStream.
//!
//! ```text
//! config.rs   the URL
//! message.rs  from an event to a message
//! streams.rs  what is known about the streams that take the events
//! ```

mod config;
mod message;
mod streams;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context, ErrorCode};
use async_trait::async_trait;
use hapax_core::outbox::{OutgoingEvent, Published, Sink};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::store::Finding;
use hapax_core::{Error, Result};

pub use self::config::NatsSinkConfig;
use self::streams::KnownStreams;
use super::connect::PATIENCE;
use super::driver::Driver;
use crate::errors::{not_applied, unknown};
use crate::sinks::{InFlight, limit_finding, max_len, not_published, too_large};

/// Where streams are listed and read.
const STREAMS: &str = "$JS.API.STREAM.";

/// How long to wait after an event that only an operator can help.
const OPERATOR_PAUSE: Duration = Duration::from_secs(1);

/// Publishes events to streams of NATS JetStream, each under its id as `Nats-Msg-Id`: within the `duplicate_window` of
/// its stream the server keeps one. Needs a server from 2.9 on.
///
/// The subject of an event comes from a template. The streams must exist; an event waits for a missing one. The
/// ordering key is in the header `ce-partitionkey`, so that a worker reads it with `order=header:ce-partitionkey`.
///
/// ```no_run
/// # async fn run() -> Result<(), hapax::Error> {
/// use std::sync::Arc;
/// use hapax::brokers::{NatsSink, NatsSinkConfig};
/// use hapax::runtime::Tokio;
///
/// let config: NatsSinkConfig = "nats://relay:secret@nats.example/orders.{topic}".parse()?;
/// let sink = NatsSink::open(config, Arc::new(Tokio::current())).await?;
/// # Ok(())
/// # }
/// ```
pub struct NatsSink {
    name: Arc<str>,
    config: NatsSinkConfig,
    driver: Driver,
    streams: Arc<KnownStreams>,
    in_flight: InFlight,
    runtime: Arc<dyn Runtime>,
}

impl NatsSink {
    /// Connects. A connection that breaks later comes back by itself.
    ///
    /// # Errors
    /// - `NotApplied`: no server can be reached now.
    /// - `Unusable`: the server refuses the credentials, or a file in the URL cannot be read.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn open(config: NatsSinkConfig, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let driver = Driver::connect(&config.url).await?;
        let (name, streams) = (config.name().into(), Arc::default());
        let sink = Self { name, config, driver, streams, in_flight: InFlight::new(), runtime };
        // What is missing or denied, `check` reports.
        let _ = sink.read_streams().await;
        Ok(sink)
    }

    /// The connection, with a driver that lives, and JetStream on it.
    async fn context(&self) -> Result<(Client, Context)> {
        self.driver.connected(self.config.timeout).await
    }

    async fn read_streams(&self) -> Result<Vec<Finding>> {
        let (_, context) = self.context().await?;
        let read = timeout(&*self.runtime, PATIENCE, self.streams.read(&context, &self.config.topic));
        let denied = |error| not_applied("JetStream does not list its streams").caused_by(error);
        let streams = self.driver.denials().watch(STREAMS, read).await.map_err(denied)?;
        streams.ok_or_else(|| not_applied("JetStream does not reply in time"))?
    }

    async fn send(&self, event: &OutgoingEvent) -> Published {
        let (subject, headers) = match message::of(event, &self.config.topic) {
            Ok(message) => message,
            Err(reason) => return Published::Refused(reason),
        };
        let (client, context) = match self.context().await {
            Ok(connected) => connected,
            Err(error) => return not_published(error),
        };
        // What is handed to the driver now is sent after it has connected again, which may be late.
        if client.connection_state() != State::Connected {
            return not_published(not_applied("the NATS server cannot be reached"));
        }
        let message = PublishMessage::build().payload(event.payload.clone()).headers(headers);
        let sent = async {
            match context.send_publish(subject.clone(), message).await {
                Ok(confirmation) => confirmation.await,
                Err(error) => Err(error),
            }
        };
        match timeout(&*self.runtime, self.config.timeout, sent).await {
            Some(Ok(confirmed)) => {
                let caught = confirmed.duplicate;
                self.meet(&context, confirmed.stream);
                Published::Yes { caught }
            }
            Some(Err(error)) => failed(error, &subject),
            None => Published::Unknown(silent(&subject)),
        }
    }
}

impl NatsSink {
    /// Reads a stream that is new, meanwhile: the server does not answer a user who may not read it.
    fn meet(&self, context: &Context, stream: String) {
        if !self.streams.note(&stream) {
            return;
        }
        let (streams, context, runtime) = (Arc::clone(&self.streams), context.clone(), Arc::clone(&self.runtime));
        self.runtime.spawn(Box::pin(async move {
            let _ = timeout(&*runtime, PATIENCE, streams.meet(&context, stream)).await;
        }));
    }
}

/// The error of a publication without a reply.
fn silent(subject: &str) -> Error {
    unknown(format!(
        "the NATS server did not confirm an event for {subject} in time; to a user who may not publish there it does \
         not reply either"
    ))
}

fn failed(error: PublishError, subject: &str) -> Published {
    let after_operator = |error| Published::NotPublished { after: OPERATOR_PAUSE, cause: error };
    match error.kind() {
        PublishErrorKind::StreamNotFound => after_operator(
            not_applied(format!("no stream of JetStream takes the subject {subject}: create it")).caused_by(error),
        ),
        PublishErrorKind::MaxPayloadExceeded => {
            Published::Refused("the event with its headers is larger than the max_payload of the NATS server".into())
        }
        PublishErrorKind::MaxAckPending => not_published(not_applied("too many events are in flight").caused_by(error)),
        PublishErrorKind::TimedOut => Published::Unknown(silent(subject).caused_by(error)),
        PublishErrorKind::BrokenPipe => {
            Published::Unknown(unknown("the connection broke before a confirmation").caused_by(error))
        }
        // The sink expects no last message, so these and the rest are what the server replied.
        PublishErrorKind::WrongLastMessageId | PublishErrorKind::WrongLastSequence | PublishErrorKind::Other => {
            let reply = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
            match reply.map(jetstream::Error::error_code) {
                Some(ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM) => {
                    Published::Refused(format!("the event is larger than the stream for {subject} takes"))
                }
                Some(_) => after_operator(
                    not_applied(format!("the stream for {subject} does not take an event now")).caused_by(error),
                ),
                None => Published::Unknown(
                    unknown(format!("the reply for {subject} is none of JetStream's")).caused_by(error),
                ),
            }
        }
    }
}

#[async_trait]
impl Sink for NatsSink {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn max_len(&self) -> usize {
        max_len(self.driver.client().server_info().max_payload)
    }

    fn window(&self) -> Option<Duration> {
        self.streams.window()
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        let (client, _) = self.context().await?;
        if client.connection_state() != State::Connected {
            return Err(not_applied("the NATS server cannot be reached"));
        }
        let limit = client.server_info().max_payload;
        let small = limit_finding("the NATS server", limit, "set its max_payload to 1048576");
        let streams = self.read_streams().await?;
        Ok(small.into_iter().chain(streams).collect())
    }

    async fn publish(&self, event: &Arc<OutgoingEvent>) -> Published {
        if let Some(refused) = too_large(event, self.driver.client().server_info().max_payload) {
            return refused;
        }
        match self.in_flight.enter().await {
            Ok(_in_flight) => self.send(event).await,
            Err(closed) => closed,
        }
    }

    async fn close(&self) {
        self.in_flight.close().await;
        // What was dropped may still be in the driver.
        let client = self.driver.client();
        let _ = timeout(&*self.runtime, PATIENCE, client.flush()).await;
        let _ = timeout(&*self.runtime, PATIENCE, client.drain()).await;
    }
}

impl fmt::Debug for NatsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSink").field("config", &self.config).finish_non_exhaustive()
    }
}

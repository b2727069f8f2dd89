//! A queue of RabbitMQ, by AMQP 0-9-1.
//!
//! ```text
//! url.rs      the URL
//! stream.rs   the stream below the driver: TCP or TLS
//! connect.rs  from the URL to a connection; questions about queues and exchanges
//! session.rs  a connection, a channel and a consumer, which end together
//! message.rs  from a message of AMQP to a delivery
//! settle.rs   acknowledgements
//! pause.rs    what happens while the worker pauses: the rows of pauses.md
//! sink.rs     the other direction: publishes events
//! ```

mod connect;
mod message;
mod pause;
mod session;
mod settle;
mod sink;
mod stream;
mod url;

use std::collections::VecDeque;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, poll_immediate};
use hapax_core::Result;
use hapax_core::broker::{Acknowledges, Capability, Delivery, Event, Lane, Pause, Room, Settle, Settlement, Source};
use hapax_core::runtime::{Runtime, timeout};
use lapin::Connection;
use tracing::{info, warn};

use self::connect::{PATIENCE, code, count_ready};
use self::message::{DeliveryReader, is_of_stream};
use self::pause::{SourceStep, WorkerPauses};
use self::session::{ConsumerItem, QueueSession, SessionStart};
use self::settle::RabbitMqSettle;
pub use self::sink::{RabbitMqSink, RabbitMqSinkConfig};
use self::url::MessageOrder;
pub use self::url::RabbitMqUrl;
use crate::errors::{unknown, unusable};

/// As many messages the broker sends in advance. The time that they wait here counts for its `consumer_timeout`.
const PREFETCH: u16 = 256;

/// The messages of a queue of RabbitMQ. Needs a server from 3.10 on.
///
/// The queue must exist, and may be classic or quorum. A message that waits for a retry is held by the worker. If the
/// channel or the connection ends, everything that was not acknowledged arrives again.
///
/// A quorum queue counts deliveries, also of messages that were only sent in advance, and drops a message after
/// `delivery-limit` of them unless it has a dead-letter exchange. A few deliveries before, the message becomes a dead
/// letter of the worker, with the reason `deliveries-exhausted`.
///
/// During a pause of the worker that is longer than a tenth of `consumer-timeout`, the source gives all messages back
/// once. It takes nothing more until the pause ends, and then one message at a time until one is processed.
///
/// Do not let messages of a key wait for a redrive of its dead letter: they would fill the prefetch and stop the queue.
///
/// ```no_run
/// # async fn run() -> Result<(), hapax::Error> {
/// use std::sync::Arc;
/// use hapax::brokers::{RabbitMqSource, RabbitMqUrl};
/// use hapax::runtime::Tokio;
///
/// let url: RabbitMqUrl = "amqp://worker:secret@mq.example/shop?queue=orders".parse()?;
/// let source = RabbitMqSource::connect(url, Arc::new(Tokio::current())).await?;
/// # Ok(())
/// # }
/// ```
pub struct RabbitMqSource {
    name: Arc<str>,
    url: Arc<RabbitMqUrl>,
    reader: DeliveryReader,
    session: Option<QueueSession>,
    /// A session that is being opened. It goes on when `next` is dropped.
    opening: Option<BoxFuture<'static, Result<QueueSession>>>,
    /// A channel that is being ended.
    ending: Option<BoxFuture<'static, ()>>,
    /// A connection without a consumer.
    idle: Option<Arc<Connection>>,
    pauses: WorkerPauses,
    /// The number of failed attempts to connect in a row.
    failures: usize,
    /// Messages that arrived and found no room yet.
    waiting: VecDeque<Delivery>,
    /// A lane whose end is not told yet.
    lost: Option<Lane>,
    has_stopped: bool,
    settle: Arc<RabbitMqSettle>,
    runtime: Arc<dyn Runtime>,
}

impl RabbitMqSource {
    /// Connects, and looks for the queue. The first call of `next` begins to consume.
    ///
    /// # Errors
    /// - `NotApplied`: no broker can be reached now.
    /// - `Unusable`: the broker refuses the credentials or the virtual host, or has no such queue for this user; a file
    ///   in the URL cannot be read.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn connect(url: RabbitMqUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let first = connect::connect(&url.url, 0, &*runtime).await?;
        count_ready(&first, url.queue(), &*runtime).await?;
        let is_ordered = url.order != MessageOrder::None;
        let pauses = WorkerPauses::new(url.consumer_timeout);
        let settle = Arc::new(RabbitMqSettle::new(url.queue().into(), is_ordered, Arc::clone(&runtime)));
        Ok(Self {
            name: format!("amqp/{}/{}", url.virtual_host(), url.queue()).into(),
            reader: DeliveryReader::new(&url),
            url: Arc::new(url),
            session: None,
            opening: None,
            ending: None,
            idle: Some(Arc::new(first)),
            pauses,
            failures: 0,
            waiting: VecDeque::new(),
            lost: None,
            has_stopped: false,
            settle,
            runtime,
        })
    }

    /// Begins to consume. A probe takes one message at a time.
    async fn open(&mut self, is_probe: bool) -> Result<()> {
        if self.opening.is_none() {
            let start = SessionStart {
                url: Arc::clone(&self.url),
                first_host: self.failures,
                connection: self.idle.take(),
                prefetch: if is_probe { 1 } else { self.url.prefetch.unwrap_or(PREFETCH) },
                is_probe,
                runtime: Arc::clone(&self.runtime),
            };
            self.opening = Some(Box::pin(start.open()));
        }
        let Some(opening) = &mut self.opening else { return Ok(()) };
        let opened = opening.await;
        self.opening = None;
        let mut session = opened.inspect_err(|_| self.failures = self.failures.wrapping_add(1))?;
        if self.failures > 0 {
            info!(source = %self.name, "the broker can be reached again");
        }
        self.failures = 0;
        session.lane = Some(self.settle.begin(Arc::clone(&session.connection)));
        self.session = Some(session);
        Ok(())
    }

    /// Keeps a delivery of the consumer, or notes that the channel or the consumer has ended.
    fn receive(&mut self, arrived: ConsumerItem) -> Result<()> {
        match arrived {
            Some(Ok(delivery)) => self.keep(delivery),
            Some(Err(error)) => {
                self.lose(Some(&error));
                Ok(())
            }
            None => {
                self.lose(None);
                Ok(())
            }
        }
    }

    fn keep(&mut self, delivery: lapin::message::Delivery) -> Result<()> {
        let Some(lane) = self.session.as_ref().and_then(|session| session.lane.clone()) else { return Ok(()) };
        if is_of_stream(&delivery.properties) {
            return Err(unusable(format!(
                "`{}` is a stream: AMQP 0-9-1 keeps no position for a reader of it, so a restart would begin anew. \
                 Bind a quorum queue instead",
                self.url.queue()
            )));
        }
        let is_probe = self.session.as_ref().is_some_and(|session| session.opened.is_probe);
        if is_probe && self.pauses.is_over() && !self.settle.has_open() {
            // The pause is over. This message is the first one of the next channel.
            self.give_back();
            return Ok(());
        }
        self.settle.arrived(delivery.delivery_tag, delivery.acker.clone());
        self.waiting.push_back(self.reader.read(&lane, delivery));
        Ok(())
    }

    /// The channel has ended, or the consumer: its queue is gone, or moves to another node.
    fn lose(&mut self, error: Option<&lapin::Error>) {
        let name = &self.name;
        match error {
            Some(error) if code(error) == Some(406) => warn!(
                source = %name, %error,
                "the broker has ended the channel, and what was not acknowledged arrives again: a message may have \
                 been held for longer than the broker's consumer_timeout"
            ),
            Some(error) => {
                warn!(source = %name, %error, "the broker cannot be reached; what was not acknowledged arrives again");
            }
            None => warn!(
                source = %name,
                "the broker has ended the consumer: its queue is gone, or moves, or a message was held for longer than \
                 the consumer_timeout"
            ),
        }
        self.settle.lose();
        self.waiting.clear();
        self.lost = self.session.take().and_then(|session| session.lane);
    }

    /// Gives everything back to the queue, in its order, by the end of the channel.
    fn give_back(&mut self) {
        let Some(session) = self.session.take() else { return };
        self.settle.lose();
        self.waiting.clear();
        self.idle = Some(Arc::clone(&session.connection));
        self.lost.clone_from(&session.lane);
        let runtime = Arc::clone(&self.runtime);
        self.ending = Some(Box::pin(async move {
            // An error means that it has ended.
            let _ = timeout(&*runtime, PATIENCE, session.end_channel()).await;
        }));
    }

    fn step(&self) -> SourceStep {
        let opened = self.session.as_ref().map(|session| session.opened);
        self.pauses.step(opened, self.runtime.boottime_now())
    }

    /// Closes a connection that waits for the end of a pause.
    async fn close_idle(&mut self) -> Result<()> {
        self.settle.mark_closed();
        if let Some(connection) = self.idle.take() {
            // An error means that it has ended.
            let _ = timeout(&*self.runtime, PATIENCE, connection.close(200, "the worker stops".into())).await;
        }
        Ok(())
    }

    /// Waits for the next message, at most until this time.
    async fn consume(&mut self, until: Option<Duration>) -> Result<()> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let arrived = match until.map(|until| until.saturating_sub(self.runtime.boottime_now())) {
            Some(time) => timeout(&*self.runtime, time, session.consumer.next()).await,
            None => Some(session.consumer.next().await),
        };
        arrived.map_or(Ok(()), |arrived| self.receive(arrived))
    }

    /// Takes deliveries that there is room for.
    fn take(&mut self, room: &Room) -> Vec<Delivery> {
        let (mut taken, mut bytes) = (Vec::new(), room.bytes);
        while let Some(next) = self.waiting.front() {
            let size = next.message.size();
            let fits = size <= bytes || (taken.is_empty() && bytes > 0);
            if taken.len() >= room.messages || !fits || room.closed.contains(&next.id.lane) {
                break;
            }
            bytes = bytes.saturating_sub(size);
            taken.extend(self.waiting.pop_front());
        }
        taken
    }

    /// Keeps everything that is here already.
    async fn receive_arrived(&mut self) -> Result<()> {
        while let Some(session) = &mut self.session
            && !self.has_stopped
            && let Some(arrived) = poll_immediate(session.consumer.next()).await
        {
            self.receive(arrived)?;
        }
        Ok(())
    }
}

#[async_trait]
impl Source for RabbitMqSource {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn capability(&self) -> Capability {
        Capability {
            acknowledges: Acknowledges::Each,
            redelivers: true,
            delays: false,
            lease: None,
            keeps_order: false,
            delivery_limit: self.url.delivery_limit,
        }
    }

    fn settler(&self) -> Arc<dyn Settle> {
        Arc::clone(&self.settle) as Arc<dyn Settle>
    }

    async fn next(&mut self, room: Room) -> Result<Event> {
        loop {
            self.receive_arrived().await?;
            if !self.has_stopped && self.step() == SourceStep::GiveBack {
                info!(source = %self.name, "messages go back to the queue: the worker pauses for long, or goes on");
                self.give_back();
            }
            if let Some(lane) = self.lost.take() {
                return Ok(Event::Lost { lanes: vec![lane] });
            }
            if let Some(ending) = &mut self.ending {
                ending.await;
                self.ending = None;
            }
            let taken = self.take(&room);
            if !taken.is_empty() {
                return Ok(Event::Deliveries(taken));
            }
            if self.has_stopped {
                return pending().await;
            }
            match self.step() {
                SourceStep::Consume { until } => self.consume(until).await?,
                SourceStep::GiveBack => {}
                SourceStep::Rest { until } => {
                    self.runtime.sleep(until.saturating_sub(self.runtime.boottime_now())).await;
                }
                SourceStep::Open { is_probe } => self.open(is_probe).await?,
            }
        }
    }

    fn note_pause(&mut self, pause: Option<Pause>) {
        self.pauses.note(pause, self.runtime.boottime_now());
    }

    async fn stop_reading(&mut self) {
        if std::mem::replace(&mut self.has_stopped, true) {
            return;
        }
        self.opening = None;
        if self.url.order != MessageOrder::None {
            // Without this consumer, the broker would give the next message of a key to another worker while an earlier
            // one is held here. The consumer ends with its channel, which gives back what it has got meanwhile.
            return;
        }
        let Some(session) = &mut self.session else { return };
        let arrived = session.cancel(&*self.runtime).await;
        for delivery in arrived {
            // A message of a stream is left alone.
            let _ = self.keep(delivery);
        }
    }

    async fn close(&mut self) -> Result<()> {
        self.stop_reading().await;
        for waiting in std::mem::take(&mut self.waiting) {
            // An error means that the channel has ended, which gives it back.
            let _ = self.settle.settle_one(waiting.id, Settlement::Retry(Duration::ZERO)).await;
        }
        let Some(session) = self.session.take() else { return self.close_idle().await };
        let closed = timeout(&*self.runtime, PATIENCE, session.close()).await;
        self.settle.mark_closed();
        match closed {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(unknown("the connection ended before it was closed").caused_by(error)),
            None => Err(unknown("the broker does not confirm the end of the connection")),
        }
    }
}

impl Drop for RabbitMqSource {
    fn drop(&mut self) {
        self.settle.mark_closed();
    }
}

impl fmt::Debug for RabbitMqSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMqSource").field("name", &self.name).finish_non_exhaustive()
    }
}

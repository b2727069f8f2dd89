//! A durable consumer of NATS JetStream.
//!
//! ```text
//! url.rs       the URL
//! connect.rs   from the URL to a connection and a durable consumer that can be used
//! denials.rs   what the server denies a user
//! losses.rs    losses of the connection, and the message that may be their cause
//! pump.rs      takes what the server sends, with the time of its arrival
//! pull.rs      asks for as many messages as there is room for, and reads the answers
//! message.rs   from a message of NATS to a delivery
//! settle.rs    double acks and their relatives
//! sink.rs      the other direction: publishes events
//! ```

mod connect;
mod denials;
mod losses;
mod message;
mod pull;
mod pump;
mod settle;
mod sink;
mod url;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use hapax_core::Result;
use hapax_core::broker::{Acknowledges, BrokerLease, Capability, Delivery, Event, Lane, Room, Settle, Source};
use hapax_core::runtime::{Runtime, timeout};

use self::message::Reader;
use self::pull::Puller;
use self::settle::NatsSettle;
pub use self::sink::{NatsSink, NatsSinkConfig};
pub use self::url::NatsUrl;

/// The messages of a stream for one durable consumer of NATS JetStream. Needs a server from 2.9 on.
///
/// An existing durable consumer is used as it is, if it acknowledges each message explicitly. A missing one is created
/// when the source connects. One that is deleted later ends the worker: with it, the server forgot what is finished.
///
/// With an order, one worker keeps it, also when it stops; several workers on one durable consumer cannot: the server
/// gives later messages to one while an earlier one is with the other, as after a crash. For order across workers, use
/// a consumer with a filter for each worker, or Kafka.
///
/// ```no_run
/// # async fn run() -> Result<(), hapax::Error> {
/// use std::sync::Arc;
/// use hapax::brokers::{NatsSource, NatsUrl};
/// use hapax::runtime::Tokio;
///
/// let url: NatsUrl = "nats://worker:secret@nats.example/orders?durable=billing".parse()?;
/// let source = NatsSource::connect(&url, Arc::new(Tokio::current())).await?;
/// # Ok(())
/// # }
/// ```
pub struct NatsSource {
    name: Arc<str>,
    capability: Capability,
    puller: Puller,
    reader: Reader,
    /// Messages that arrived and found no room yet.
    waiting: VecDeque<Delivery>,
    /// When their leases are extended next.
    extend_at: Duration,
    /// Whether messages have an order.
    is_ordered: bool,
    /// Whether nothing is asked for any more.
    has_stopped: bool,
    settle: Arc<NatsSettle>,
    runtime: Arc<dyn Runtime>,
}

impl NatsSource {
    /// Connects, and creates the durable consumer if it is missing.
    ///
    /// # Errors
    /// - `NotApplied`: no server can be reached now.
    /// - `Unusable`: the server refuses the credentials, has no such stream, or has a durable consumer that cannot be
    ///   used; a file in the URL cannot be read.
    ///
    /// # Cancel safety
    /// If dropped, the durable consumer may have been created.
    pub async fn connect(url: &NatsUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let connected = connect::connect(url).await?;
        let info = connected.consumer.cached_info().clone();
        let lane = Lane { topic: url.stream().into(), partition: 0, generation: 1 };
        let lease = connect::lease(&info.config);
        let settle = Arc::new(NatsSettle::new(&connected, lane.clone(), lease, Arc::clone(&runtime)));
        let reader = Reader::new(url, lane, &connected.created, lease);
        let puller = Puller::start(connected, Arc::clone(&runtime)).await?;
        let capability = Capability {
            acknowledges: Acknowledges::Each,
            redelivers: true,
            delays: true,
            lease: Some(BrokerLease { length: lease, longest: None }),
            keeps_order: false,
        };
        let name = format!("nats/{}/{}", url.stream(), url.durable()).into();
        let (waiting, extend_at, is_ordered) = (VecDeque::new(), Duration::ZERO, url.order_header().is_some());
        Ok(Self {
            name,
            capability,
            puller,
            reader,
            waiting,
            extend_at,
            is_ordered,
            has_stopped: false,
            settle,
            runtime,
        })
    }

    /// Extends the leases of the messages that wait for room, if it is time.
    async fn extend_waiting(&mut self) {
        let Some(lease) = self.capability.lease else { return };
        let now = self.runtime.boottime_now();
        if now < self.extend_at {
            return;
        }
        self.extend_at = now + lease.length / 3;
        let extended = self.waiting.iter().map(|waiting| self.settle.extend_waiting(waiting.id.clone()));
        let extended = join_all(extended.collect::<Vec<_>>()).await;
        for (waiting, until) in self.waiting.iter_mut().zip(extended) {
            waiting.leased_until = until.or(waiting.leased_until);
        }
    }

    /// Takes deliveries that there is room for. Forgets those whose lease has ended, as the server sends them again;
    /// but not where messages have an order: a later one of the same key may wait behind.
    fn take(&mut self, room: &Room) -> Vec<Delivery> {
        let now = self.runtime.boottime_now();
        let mut taken = Vec::new();
        let mut bytes = room.bytes;
        if room.closed.contains(self.reader.lane()) {
            return taken;
        }
        while let Some(next) = self.waiting.front() {
            if !self.is_ordered && next.leased_until.is_some_and(|until| until <= now) {
                self.waiting.pop_front();
                continue;
            }
            let size = next.message.size();
            let fits = size <= bytes || (taken.is_empty() && bytes > 0);
            if taken.len() >= room.messages || !fits {
                break;
            }
            bytes = bytes.saturating_sub(size);
            taken.extend(self.waiting.pop_front());
        }
        self.settle.handed_out(&taken);
        taken
    }
}

#[async_trait]
impl Source for NatsSource {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn capability(&self) -> Capability {
        self.capability
    }

    fn settler(&self) -> Arc<dyn Settle> {
        Arc::clone(&self.settle) as Arc<dyn Settle>
    }

    async fn next(&mut self, room: Room) -> Result<Event> {
        loop {
            while let Some(arrived) = self.puller.arrived() {
                self.waiting.extend(self.reader.read(arrived));
            }
            let taken = self.take(&room);
            if !taken.is_empty() {
                return Ok(Event::Deliveries(taken));
            }
            let has_room = room.messages > 0 && room.bytes > 0 && !room.closed.contains(self.reader.lane());
            if self.has_stopped {
                self.extend_waiting().await;
                let pause = self.extend_at.saturating_sub(self.runtime.boottime_now());
                self.runtime.sleep(pause).await;
                continue;
            }
            if self.waiting.is_empty() {
                let wanted = if has_room { room.messages } else { 0 };
                let arrived = self.puller.wait(wanted, room.bytes).await?;
                self.extend_at = arrived.1.at + self.capability.lease.map_or(Duration::MAX, |lease| lease.length) / 3;
                self.waiting.extend(self.reader.read(arrived));
                continue;
            }
            self.extend_waiting().await;
            let pause = self.extend_at.saturating_sub(self.runtime.boottime_now());
            let arrived = timeout(&*self.runtime, pause, self.puller.wait(0, room.bytes)).await;
            if let Some(arrived) = arrived.transpose()? {
                self.waiting.extend(self.reader.read(arrived));
            }
        }
    }

    async fn stop_reading(&mut self) {
        self.has_stopped = true;
        let late = self.puller.stop().await;
        self.waiting.extend(late.into_iter().filter_map(|arrived| self.reader.read(arrived)));
    }

    async fn close(&mut self) -> Result<()> {
        self.stop_reading().await;
        self.settle.give_back(self.waiting.drain(..)).await;
        self.settle.close().await
    }
}

impl Drop for NatsSource {
    fn drop(&mut self) {
        self.settle.mark_closed();
    }
}

impl fmt::Debug for NatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSource").field("name", &self.name).finish_non_exhaustive()
    }
}

//! A durable consumer of NATS JetStream.
//!
//! ```text
//! url.rs         the URL
//! connect.rs     from the URL to a connection and a durable consumer that can be used
//! driver.rs      the driver behind a connection, which is replaced when it has died
//! denials.rs     what the server denies a user
//! listen.rs      begins to listen, and begins again after a cut
//! hold.rs        keeps the order over a cut
//! unreadable.rs  finds messages that the driver cannot read
//! lost_alone.rs  tells a message that never arrives from one that is late
//! losses.rs      losses of the connection, and the message that may be their cause
//! pump.rs        takes what the server sends, with the time of its arrival
//! pull.rs        asks for as many messages as there is room for, and reads the answers
//! message.rs     from a message of NATS to a delivery
//! settle.rs      double acks and their relatives
//! sink.rs        the other direction: publishes events
//! ```

mod connect;
mod denials;
mod driver;
mod hold;
mod listen;
mod losses;
mod lost_alone;
mod message;
mod pull;
mod pump;
mod settle;
mod sink;
mod unreadable;
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

use self::connect::Connected;
use self::message::Reader;
use self::pull::{PulledItem, Puller};
use self::settle::NatsSettle;
pub use self::sink::{NatsSink, NatsSinkConfig};
pub use self::url::NatsUrl;

/// How long to wait for messages while none has a lease to extend.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The messages of a stream for one durable consumer of NATS JetStream. Needs a server from 2.9 on.
///
/// A missing durable consumer is created when the source connects. An existing one must be a pull consumer with
/// explicit acknowledgements, whole messages and no `max_deliver`; otherwise [`connect`](Self::connect) fails.
/// `max_deliver` also counts deliveries that no worker began, so the server would drop messages that were never
/// processed. If the consumer is deleted later, the worker ends, because the server has forgotten which messages are
/// finished.
///
/// If messages have an order, run only one worker on the durable consumer. It keeps the order also when it stops or
/// crashes, and when its connection breaks. After that, new messages wait until all earlier ones have arrived that the
/// server had sent, which may take as long as a lease. Two workers on one consumer do not keep the order: the server
/// gives a later message to one of them while the other has an earlier one. The source does not prevent that; it only
/// logs a warning when it connects. For order across workers, use a consumer with a filter for each worker, or Kafka.
///
/// A message that the driver of NATS cannot read becomes a dead letter, if the user may read the stream by
/// `$JS.API.STREAM.MSG.GET`. The header `Hapax-Unreadable-Headers` of the letter's message has the headers that could
/// not be read.
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
    /// Messages that wait, for the sake of the order, until all earlier ones have arrived.
    early: VecDeque<Delivery>,
    /// When their leases are extended next.
    extend_at: Duration,
    /// Whether messages have an order.
    is_ordered: bool,
    /// Whether the source has stopped asking for messages.
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
        let Connected { driver, consumer: info, created } = connected;
        let (driver, is_ordered) = (Arc::new(driver), url.order_header().is_some());
        let lane = Lane { topic: url.stream().into(), partition: 0, generation: 1 };
        let lease = connect::lease(&info.config);
        let settle = NatsSettle::new(Arc::clone(&driver), info.clone(), lane.clone(), Arc::clone(&runtime));
        let settle = Arc::new(settle);
        let reader = Reader::new(url, lane, &created, lease);
        let puller = Puller::new(driver, info, Arc::clone(settle.here()), is_ordered, Arc::clone(&runtime));
        let capability = Capability {
            acknowledges: Acknowledges::Each,
            redelivers: true,
            delays: true,
            lease: Some(BrokerLease { length: lease, longest: None }),
            keeps_order: false,
            delivery_limit: None,
        };
        let name = format!("nats/{}/{}", url.stream(), url.durable()).into();
        Ok(Self {
            name,
            capability,
            puller,
            reader,
            waiting: VecDeque::new(),
            early: VecDeque::new(),
            extend_at: Duration::ZERO,
            is_ordered,
            has_stopped: false,
            settle,
            runtime,
        })
    }

    /// Keeps what was found.
    fn receive(&mut self, found: PulledItem) {
        let (delivery, is_early) = match found {
            PulledItem::Message(arrived) => (self.reader.read(&arrived), false),
            PulledItem::Early(arrived) => (self.reader.read(&arrived), true),
            PulledItem::Unreadable(found) => {
                let now = self.runtime.boottime_now();
                (Some(self.reader.read_unreadable(found, self.puller.info(), now)), false)
            }
            PulledItem::NothingMissing => return self.waiting.extend(self.early.drain(..)),
        };
        let Some(delivery) = delivery else { return };
        self.settle.arrived(&delivery);
        if self.waiting.is_empty() && self.early.is_empty() {
            self.extend_at = delivery.leased_until.unwrap_or_default().saturating_sub(self.settle.lease() * 2 / 3);
        }
        // In the order of the stream: a message that was missing may belong between two that wait.
        let place = |delivery: &Delivery| message::sequence_of(&delivery.id.handle);
        let at = self.early.partition_point(|other| place(other) <= place(&delivery));
        if is_early || at > 0 { self.early.insert(at, delivery) } else { self.waiting.push_back(delivery) }
    }

    /// Extends the leases of the messages that wait, if it is time.
    async fn extend_waiting(&mut self) {
        let now = self.runtime.boottime_now();
        if now < self.extend_at {
            return;
        }
        self.extend_at = now + self.settle.lease() / 3;
        self.forget_ended(now);
        let waiting = self.waiting.iter().chain(&self.early);
        let extended = waiting.map(|waiting| self.settle.extend_waiting(waiting.id.clone()));
        let extended = join_all(extended.collect::<Vec<_>>()).await;
        for (waiting, until) in self.waiting.iter_mut().chain(&mut self.early).zip(extended) {
            waiting.leased_until = until.or(waiting.leased_until);
        }
    }

    /// Forgets deliveries whose lease has ended, as the server sends them again; but not where messages have an order:
    /// a later one of the same key may wait behind.
    fn forget_ended(&mut self, now: Duration) {
        let has_ended = |waiting: &Delivery| waiting.leased_until.is_some_and(|until| until <= now);
        if self.is_ordered || !self.waiting.iter().any(has_ended) {
            return;
        }
        let (ended, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(has_ended);
        self.waiting = waiting;
        let ended: VecDeque<Delivery> = ended;
        ended.iter().for_each(|ended| self.settle.leaves(&ended.id));
    }

    /// Takes deliveries that there is room for.
    fn take(&mut self, room: &Room) -> Vec<Delivery> {
        let mut taken = Vec::new();
        let mut bytes = room.bytes;
        if room.closed.contains(self.reader.lane()) {
            return taken;
        }
        self.forget_ended(self.runtime.boottime_now());
        while let Some(next) = self.waiting.front() {
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
            while let Some(found) = self.puller.arrived() {
                self.receive(found);
            }
            let taken = self.take(&room);
            if !taken.is_empty() {
                return Ok(Event::Deliveries(taken));
            }
            self.extend_waiting().await;
            let has_none = self.waiting.is_empty() && self.early.is_empty();
            let pause = self.extend_at.saturating_sub(self.runtime.boottime_now());
            let pause = if has_none { LONGEST_WAIT } else { pause };
            if self.has_stopped {
                self.runtime.sleep(pause).await;
                continue;
            }
            let has_room = room.messages > 0 && room.bytes > 0 && !room.closed.contains(self.reader.lane());
            let wanted = if has_room && self.waiting.is_empty() { room.messages } else { 0 };
            let found = timeout(&*self.runtime, pause, self.puller.wait(wanted, room.bytes)).await;
            if let Some(found) = found.transpose()? {
                self.receive(found);
            }
        }
    }

    async fn stop_reading(&mut self) {
        self.has_stopped = true;
        self.puller.stop().await.into_iter().for_each(|found| self.receive(found));
    }

    async fn close(&mut self) -> Result<()> {
        self.stop_reading().await;
        self.settle.give_back(self.waiting.drain(..).chain(self.early.drain(..))).await;
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

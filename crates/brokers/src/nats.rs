//! A durable consumer of NATS JetStream.
//!
//! ```text
//! url.rs       the URL
//! connect.rs   from the URL to a connection and a durable consumer that can be used
//! pump.rs      takes what the server sends, with the time of its arrival
//! pull.rs      asks for as many messages as there is room for, and reads the answers
//! message.rs   from a message of NATS to a delivery
//! settle.rs    double acks and their relatives
//! ```

mod connect;
mod message;
mod pull;
mod pump;
mod settle;
mod url;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::Result;
use hapax_core::broker::{Acknowledges, BrokerLease, Capability, Delivery, Event, Lane, Room, Settle, Source};
use hapax_core::runtime::Runtime;

use self::message::Reader;
use self::pull::Puller;
use self::settle::NatsSettle;
pub use self::url::NatsUrl;

/// The messages of a stream for one durable consumer of NATS JetStream. Needs a server from 2.9 on.
///
/// An existing durable consumer is used as it is, if it acknowledges each message explicitly. A missing one is created.
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
        Ok(Self { name, capability, puller, reader, waiting: VecDeque::new(), settle, runtime })
    }

    /// Takes deliveries that there is room for. Forgets those whose lease has ended: the server sends them again.
    fn take(&mut self, room: &Room) -> Vec<Delivery> {
        let now = self.runtime.boottime_now();
        let mut taken = Vec::new();
        let mut bytes = room.bytes;
        if room.closed.contains(self.reader.lane()) {
            return taken;
        }
        while let Some(next) = self.waiting.front() {
            if next.leased_until.is_some_and(|until| until <= now) {
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
            let wanted = if has_room && self.waiting.is_empty() { room.messages } else { 0 };
            let arrived = self.puller.wait(wanted, room.bytes).await?;
            self.waiting.extend(self.reader.read(arrived));
        }
    }

    async fn close(&mut self) -> Result<()> {
        // What no worker got arrives again after its lease.
        self.waiting.clear();
        self.puller.stop().await;
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

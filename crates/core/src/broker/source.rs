use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::broker::{Message, Settle};
use crate::error::Result;

/// A place from which messages come: topics of a broker for one group, or a queue. The [module](crate::broker) lists
/// what every source promises.
///
/// A source connects when it is built, with the [`Runtime`](crate::runtime::Runtime) whose clock it uses.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no source of messages",
    label = "does not implement `Source`",
    note = "pass a source of `hapax::brokers`, each of which is a feature of hapax, or implement `Source`"
)]
#[async_trait]
pub trait Source: fmt::Debug + Send + 'static {
    /// The name of this source and of the group that consumes it, for instance `kafka/orders/billing`: the same after a
    /// restart and in every process of the group. Without credentials. Dead letters keep it.
    fn name(&self) -> &Arc<str>;

    /// What this source can do. It never changes.
    fn capability(&self) -> Capability;

    /// Settles the deliveries of this source. It stays usable while a future of [`Source::next`] is pending.
    fn settler(&self) -> Arc<dyn Settle>;

    /// Waits for the next event, and keeps polling the broker meanwhile.
    ///
    /// Returns at most `room.messages` deliveries with at most `room.bytes` of payload together; a single delivery may
    /// be larger if there is any room. Returns none of a closed lane. What the broker has sent beyond that, the source
    /// keeps or gives back; it does not count as delivered. The worker calls it again with another room at any time.
    ///
    /// # Errors
    /// - `NotApplied`: the broker cannot be reached now. The source reconnects by itself; call again after a pause.
    /// - `Invalid`, `Unusable`: calling again does not help: no permission, no such topic, a committed offset that the
    ///   broker no longer has. The worker stops.
    ///
    /// # Cancel safety
    /// Safe to drop. No event is lost: the next call returns it.
    async fn next(&mut self, room: Room) -> Result<Event>;

    /// Takes nothing more from the broker: a message that the worker gives back from now on does not arrive here again.
    /// What has arrived already stays with the source until it is closed. The worker calls it when it stops, before it
    /// gives anything back. Does nothing unless a source has asked for messages in advance.
    ///
    /// # Cancel safety
    /// Safe to drop.
    async fn stop_reading(&mut self) {}

    /// Notes the pause of the worker, which starts nothing meanwhile. None: it does not pause. The worker calls it
    /// before each call of [`Source::next`].
    ///
    /// Does nothing unless a broker limits how long a worker may hold messages. Such a source gives them back during a
    /// long pause, reports their lanes as [lost](Event::Lost), and takes nothing until the pause ends.
    fn note_pause(&mut self, _pause: Option<Pause>) {}

    /// Leaves the group and closes the connection. The worker calls it after the last settlement. It acknowledges
    /// nothing.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown` if the broker does not confirm it. Other members then take over after a timeout.
    async fn close(&mut self) -> Result<()>;
}

/// How much a worker can take now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// The number of messages. With 0, `next` returns no deliveries, and still polls.
    pub messages: usize,
    /// The bytes of payload.
    pub bytes: usize,
    /// Lanes that are full. `next` returns none of their deliveries.
    pub closed: Arc<BTreeSet<Lane>>,
}

/// A pause of a worker, on the boot-time clock of its runtime. A pause that begins before a job has ended otherwise
/// continues the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// When the first of these pauses began.
    pub since: Duration,
    /// When the worker tries again. It may be past: then the end of the pause shows at the end of the next job.
    pub until: Duration,
}

/// What a source reports.
#[derive(Debug)]
pub enum Event {
    /// Messages. Those of one lane are in the order of the broker, except for redeliveries.
    Deliveries(Vec<Delivery>),
    /// The broker takes these lanes away, and lets the worker finish. No further delivery of them follows. The worker
    /// starts nothing new, settles what has ended, and calls [`Settle::leave`]; the source then lets the lanes go.
    Revoking {
        /// The lanes.
        lanes: Vec<Lane>,
        /// When the source lets the lanes go in any case, on the boot-time clock of its runtime.
        until: Duration,
    },
    /// These lanes belong to another worker already. Nothing of them may be settled.
    Lost {
        /// The lanes.
        lanes: Vec<Lane>,
    },
}

/// A sequence of messages that one worker reads at a time. After it was taken away and given back, it has another
/// generation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// The topic, stream or queue.
    pub topic: Arc<str>,
    /// The partition; 0 where there are none.
    pub partition: u32,
    /// Grows whenever the source gets the lane again.
    pub generation: u64,
}

/// For logs: the topic, the partition and the generation.
impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}#{}", self.topic, self.partition, self.generation)
    }
}

/// A message that has arrived. Dropping it does nothing.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Names this delivery in settlements. A redelivery has another id.
    pub id: DeliveryId,
    /// The message.
    pub message: Arc<Message>,
    /// How often the broker has delivered the message, this time included. None if it does not count. It may have
    /// counted deliveries that no worker saw.
    pub attempt: Option<u32>,
    /// Until when the broker keeps the delivery for this worker at least, on the boot-time clock of the source's
    /// runtime. None without a lease.
    pub leased_until: Option<Duration>,
}

/// Names one delivery.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryId {
    /// The lane.
    pub lane: Lane,
    /// The place of the delivery in its lane: it grows with each delivery, and no two deliveries of a generation share
    /// one. Where [`Capability::acknowledges`] is [`Prefix`](Acknowledges::Prefix), it is the broker's own number of
    /// the message, and numbers may be missing in between.
    pub number: u64,
    /// What the source needs to settle it, for instance a receipt handle. It may be empty.
    pub handle: Bytes,
}

/// For logs: the lane and the number.
impl fmt::Debug for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:{}", self.lane, self.number)
    }
}

/// What a source can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// What an acknowledgement covers.
    pub acknowledges: Acknowledges,
    /// Whether [`Settlement::Retry`](crate::broker::Settlement::Retry) makes the broker deliver the message again.
    /// Otherwise the worker holds the message.
    pub redelivers: bool,
    /// Whether the broker waits for the time in a `Retry`. Otherwise it delivers again at once, and the worker waits
    /// before it gives the message back.
    pub delays: bool,
    /// How long a delivery belongs to this worker without a settlement. None: as long as its lane.
    pub lease: Option<BrokerLease>,
    /// Whether the source delivers a message only when no earlier one of its ordering key is undecided. Otherwise the
    /// worker keeps the order, and holds a failed message with an ordering key instead of giving it back.
    pub keeps_order: bool,
    /// After how many deliveries the broker drops a message. The worker writes a dead letter before, as row D2 of
    /// [`rules`](crate::worker::rules#the-rows) says. None: the broker drops none.
    pub delivery_limit: Option<u32>,
}

/// What an acknowledgement covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledges {
    /// One delivery. The worker sends `Ack`.
    Each,
    /// A delivery and everything before it in its lane. The worker sends `UpTo`.
    Prefix,
}

/// The lease that a broker gives with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerLease {
    /// How long it lasts without `Extend`.
    pub length: Duration,
    /// How long it can be extended at most, from the delivery on. None: for ever.
    pub longest: Option<Duration>,
}

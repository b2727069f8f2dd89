//! The channels of a connection, on which events are sent.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use hapax_core::Result;
use hapax_core::outbox::{OutgoingEvent, Published};
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{Channel, Confirmation, Connection};
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use super::message::OutgoingMessage;
use super::outcome;
use super::unconfirmed::{DriverReply, EventEnd, EventMarks, ReplyFuture, ReplyWord, SendFuture, UnconfirmedEvents};
use crate::errors::not_applied;

/// As many events are in flight on one channel. Each confirmation looks at all of them.
const PER_CHANNEL: usize = 64;

/// A connection and its channels.
pub(super) struct LiveConnection {
    pub(super) connection: Connection,
    channels: AsyncMutex<Vec<Arc<PublishChannel>>>,
}

/// A channel on which the broker confirms events.
pub(super) struct PublishChannel {
    channel: Channel,
    /// After a restart of the broker or a rejection, a channel may never confirm an event again that a new one gets
    /// confirmed at once. RabbitMQ 3.10 goes on to reject what a channel sends that began without a leader.
    is_silent: AtomicBool,
    /// Locked while an event is handed to the driver, whose numbers must have the order of the frames.
    unconfirmed: Mutex<UnconfirmedEvents>,
}

impl LiveConnection {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection, channels: AsyncMutex::default() }
    }

    /// A channel with room for one more.
    ///
    /// # Errors
    /// `NotApplied` if the broker gives none.
    pub(super) async fn channel(&self) -> Result<Arc<PublishChannel>> {
        self.open_channel().await.map_err(|error| not_applied("the broker gives no channel").caused_by(error))
    }

    async fn open_channel(&self) -> lapin::Result<Arc<PublishChannel>> {
        let mut channels = self.channels.lock().await;
        channels.retain(|channel| channel.channel.status().connected() && !channel.is_silent.load(Ordering::Relaxed));
        // The list has one reference, and each event in flight another one.
        if let Some(free) = channels.iter().find(|channel| Arc::strong_count(channel) <= PER_CHANNEL) {
            return Ok(Arc::clone(free));
        }
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let (is_silent, unconfirmed) = (AtomicBool::new(false), Mutex::default());
        let channel = Arc::new(PublishChannel { channel, is_silent, unconfirmed });
        channels.push(Arc::clone(&channel));
        Ok(channel)
    }
}

impl PublishChannel {
    /// No further event is sent on this channel.
    pub(super) fn mark_silent(&self) {
        self.is_silent.store(true, Ordering::Relaxed);
    }

    /// Sends an event, and waits until its outcome is certain.
    pub(super) async fn publish(&self, event: &OutgoingEvent, message: OutgoingMessage, target: &str) -> Published {
        let sent = EventMarks {
            id: event.deduplication_id(),
            exchange: message.exchange.clone(),
            key: message.routing_key.clone(),
            size: event.payload.len(),
        };
        let mut sending = Some((sent, send(self.channel.clone(), event.payload.clone(), message)));
        let mut place = UnconfirmedPlace { events: &self.unconfirmed, number: None };
        let end = poll_fn(|context| {
            let mut unconfirmed = self.unconfirmed.lock();
            if let Some((sent, sending)) = sending.take() {
                place.number = Some(unconfirmed.add(sent, sending));
            }
            unconfirmed.poll(place.number.unwrap_or_default(), context)
        });
        let end = end.await;
        if matches!(end, EventEnd::NotConfirmed(_)) {
            self.mark_silent();
        }
        outcome::of_end(end, target)
    }
}

fn send(channel: Channel, payload: Bytes, message: OutgoingMessage) -> SendFuture {
    let sending = async move {
        let (exchange, key) = (ShortString::from(message.exchange), ShortString::from(message.routing_key));
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let confirmed = channel.basic_publish(exchange, key, options, &payload, message.properties).await?;
        Ok::<ReplyFuture, lapin::Error>(async move { confirmed.await.map(reply) }.boxed())
    };
    sending.boxed()
}

fn reply(confirmation: Confirmation) -> DriverReply {
    let word = match &confirmation {
        Confirmation::Ack(_) => ReplyWord::Confirmed,
        Confirmation::Nack(_) => ReplyWord::Rejected,
        Confirmation::NotRequested => ReplyWord::NotAsked,
    };
    let id = |message: BasicReturnMessage| {
        // The broker gives back what it got.
        message.properties.message_id().as_ref().map(|id| id.as_str().to_owned()).unwrap_or_default()
    };
    DriverReply { word, returned: confirmation.take_message().map(id) }
}

/// The place of an event among the unconfirmed ones.
struct UnconfirmedPlace<'a> {
    events: &'a Mutex<UnconfirmedEvents>,
    number: Option<u64>,
}

impl Drop for UnconfirmedPlace<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.events.lock().leave(number);
        }
    }
}

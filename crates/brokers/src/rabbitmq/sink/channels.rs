//! The channels of a connection, on which events are sent.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hapax_core::Result;
use hapax_core::outbox::{OutgoingEvent, Published};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{Channel, Connection, ErrorKind};
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use super::message::OutgoingMessage;
use super::outcome::{self, UnconfirmedEvent, UnconfirmedEvents};
use crate::errors::not_applied;
use crate::sinks::not_published;

/// As many events are in flight on one channel.
const PER_CHANNEL: usize = 256;

/// A connection and its channels.
pub(super) struct LiveConnection {
    pub(super) connection: Connection,
    channels: AsyncMutex<Vec<Arc<PublishChannel>>>,
}

/// A channel on which the broker confirms events.
pub(super) struct PublishChannel {
    channel: Channel,
    /// After a restart of the broker, a channel may never confirm an event again that a new one gets confirmed at once.
    is_silent: AtomicBool,
    /// Locked while an event gets its number: the driver's numbers must have the order of the frames.
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

    /// Sends an event, and waits for its confirmation.
    pub(super) async fn publish(&self, event: &OutgoingEvent, message: OutgoingMessage, target: &str) -> Published {
        let (exchange, key) = (ShortString::from(message.exchange.as_str()), ShortString::from(message.routing_key));
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let mut sent = pin!(self.channel.basic_publish(exchange, key, options, &event.payload, message.properties));
        let mut place = EventPlace { events: &self.unconfirmed, number: None };
        let event = UnconfirmedEvent { exchange: message.exchange, size: event.payload.len() };
        let confirmation = poll_fn(|context| {
            let mut unconfirmed = self.unconfirmed.lock();
            place.number.get_or_insert_with(|| unconfirmed.add(event.clone()));
            sent.as_mut().poll(context)
        });
        let confirmed = match confirmation.await {
            Ok(confirmation) => confirmation.await,
            Err(error) if is_unsent(&error) => {
                return not_published(not_applied("the channel has ended").caused_by(error)); // P3
            }
            Err(error) => Err(error),
        };
        match confirmed {
            Ok(confirmation) => outcome::of_confirmation(confirmation, target),
            Err(error) => {
                let number = place.number.unwrap_or_default();
                outcome::of_end(&mut self.unconfirmed.lock(), number, error, target)
            }
        }
    }
}

/// Whether the channel had ended before the event was handed to it.
fn is_unsent(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_))
}

/// The place of an event among the unconfirmed ones.
struct EventPlace<'a> {
    events: &'a Mutex<UnconfirmedEvents>,
    number: Option<u64>,
}

impl Drop for EventPlace<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.events.lock().remove(number);
        }
    }
}

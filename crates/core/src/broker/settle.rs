use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::broker::{DeliveryId, Lane};
use crate::error::Result;

/// Settles the deliveries of one [`Source`](crate::broker::Source). It can be shared and used at any time.
#[diagnostic::on_unimplemented(
    message = "`{Self}` settles no deliveries",
    label = "does not implement `Settle`",
    note = "take it from the `settler` of the source, or implement `Settle`"
)]
#[async_trait]
pub trait Settle: fmt::Debug + Send + Sync + 'static {
    /// Settles deliveries. Returns one result for each, in their order, after the broker has confirmed it or, where a
    /// broker confirms in groups (`UpTo` on Kafka), after the source has taken it over.
    ///
    /// A settlement for an old generation of its lane, or for a delivery that was settled before, does nothing and
    /// returns `Ok`.
    ///
    /// # Errors
    /// - `NotApplied`: the broker was not asked, or refused it for now. The worker tries again while it has the lane.
    /// - `Unknown`: the broker did not confirm it in time. It may be repeated: the message is processed already, and a
    ///   redelivery is caught.
    /// - `Invalid`: this source cannot do it, as its [`Capability`](crate::broker::Capability) says.
    ///
    /// # Cancel safety
    /// If dropped, each settlement may have been carried out or not.
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>>;

    /// Notes that the worker has finished with lanes that are being revoked: no settlement of them follows. The source
    /// commits what is settled and lets them go. Does nothing for lanes that are gone.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown` if the broker did not confirm the last position. The messages arrive again at another
    /// worker.
    async fn leave(&self, lanes: &[Lane]) -> Result<()>;

    /// Whether a delivery still belongs to this worker, as far as the source knows without asking the broker. The
    /// worker asks right before it processes a message, which may have waited for long. If not, the worker forgets the
    /// delivery, and gives back what it holds of the same ordering key.
    fn is_ours(&self, _delivery: &DeliveryId) -> bool {
        true
    }

    /// The number of messages that are not acknowledged yet, delivered or not. None if the broker does not tell.
    ///
    /// # Errors
    /// `NotApplied` if the broker cannot be asked now.
    async fn lag(&self) -> Result<Option<u64>>;
}

/// What is to be done with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It is finished: do not deliver it again. For sources that acknowledge each delivery.
    Ack,
    /// It is not finished: deliver it again, not before this time has passed. For sources that redeliver.
    Retry(Duration),
    /// It is still being processed: its lease ends not before this time from now. For sources with a lease.
    Extend(Duration),
    /// It is finished, and so is everything before it in its lane. For sources that acknowledge a prefix. A lower
    /// number than one that was settled before does nothing.
    UpTo,
}

//! The claims that the heartbeat renews.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::machine::Renewed;
use crate::store::Store;

/// A claim that lapses unless it is renewed in time.
#[async_trait]
pub(crate) trait Renew: Send + Sync + 'static {
    /// Renews the claim, in one atomic step that changes nothing if another holder has it. `store` is the heartbeat's
    /// own handle, for claims that the store keeps.
    ///
    /// After `Gone` the holder goes on, as after `Yes`. A claim that its holder must not keep then returns `Lost`.
    async fn renew(&self, store: &dyn Store) -> Result<Renewed>;

    /// Logs and counts an event of the claim.
    fn report(&self, event: LeaseEvent<'_>);
}

/// A claim, and how long it lasts.
pub(crate) struct HeldLease<C> {
    pub(crate) claim: C,
    /// When the request was sent that got the claim, on the boot-time clock.
    pub(crate) sent_at: Duration,
    /// How long the claim is valid without renewal.
    pub(crate) lease: Duration,
    /// How long the claim is renewed at most, counted from `sent_at`. None if its holder may keep it for ever.
    pub(crate) max_execution: Option<Duration>,
}

/// An event of a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaseEvent<'a> {
    /// Another holder has it.
    Lost,
    /// Its record is gone. Reported once.
    Forgotten,
    /// It is not renewed any more, because its holder has kept it too long.
    RanTooLong,
    /// A renewal failed with this error, or got no reply in time.
    NotConfirmed(Option<&'a Error>),
}

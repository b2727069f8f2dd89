//! The renewal of an attempt's grant.

use async_trait::async_trait;

use crate::error::Result;
use crate::lease::{LeaseEvent, Renew};
use crate::machine::{Claim, Grant, Renewed};
use crate::store::{Protocol, Store};
use crate::telemetry;

/// The grant of an attempt.
///
/// If the store forgot the record, no other attempt has the key yet, and the attempt goes on, because its completion
/// recreates the record. If another attempt gets the key, the next renewal is `Lost`.
pub(super) struct AttemptGrant(pub(super) Grant);

#[async_trait]
impl Renew for AttemptGrant {
    async fn renew(&self, store: &dyn Store) -> Result<Renewed> {
        Protocol::over(store).renew(&self.0.rk, &Claim::from(&self.0)).await
    }

    fn report(&self, event: LeaseEvent<'_>) {
        match event {
            LeaseEvent::Lost => telemetry::grant_lost(&self.0),
            LeaseEvent::Forgotten => telemetry::forgotten(&self.0),
            LeaseEvent::RanTooLong => telemetry::ran_too_long(&self.0),
            LeaseEvent::NotConfirmed(error) => telemetry::renewal_failed(&self.0, error),
        }
    }
}

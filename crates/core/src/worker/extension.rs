//! Keeps the leases of deliveries, by the lease engine.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::broker::{Capability, Delivery, DeliveryId, Settle, Settlement};
use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Cancellation, Heartbeat, HeldLease, LeaseEngine, LeaseEvent, Renew};
use crate::machine::Renewed;
use crate::record::Millis;
use crate::runtime::Runtime;
use crate::store::{Memory, MemorySettings, Store};
use crate::telemetry;

/// Extends the leases of all deliveries that a worker holds. It does nothing for a source without leases.
pub(super) struct Extensions {
    engine: Option<Arc<LeaseEngine>>,
    settler: Arc<dyn Settle>,
    lease: Duration,
    longest: Option<Duration>,
}

/// How long the broker has to confirm an extension.
const CONFIRM_WITHIN: Duration = Duration::from_secs(5);

impl Extensions {
    pub(super) fn start(runtime: &Arc<dyn Runtime>, capability: &Capability, settler: Arc<dyn Settle>) -> Result<Self> {
        let Some(lease) = capability.lease else {
            return Ok(Self { engine: None, settler, lease: Duration::ZERO, longest: None });
        };
        // The leases are the broker's; the engine needs a store only for claims that a store keeps.
        let store = Arc::new(Memory::with(Arc::clone(runtime), MemorySettings::default()));
        let millis = u32::try_from(lease.length.as_millis()).unwrap_or(u32::MAX);
        let limit = CONFIRM_WITHIN.min(lease.length / 3);
        let engine = LeaseEngine::start(store, Arc::clone(runtime), limit, Millis(millis))?;
        Ok(Self { engine: Some(engine), settler, lease: lease.length, longest: lease.longest })
    }

    /// Extends the lease of a delivery until the result is dropped.
    pub(super) fn hold(&self, delivery: &Delivery) -> Option<Heartbeat> {
        let (engine, until) = (self.engine.as_ref()?, delivery.leased_until?);
        let claim = DeliveryLease { id: delivery.id.clone(), settler: Arc::clone(&self.settler), length: self.lease };
        let sent_at = until.saturating_sub(self.lease);
        let held = HeldLease { claim, sent_at, lease: self.lease, max_execution: self.longest };
        let heartbeat = Heartbeat::start(engine, held, Arc::new(Cancellation::default()));
        if Mutant::ExtensionStopsEarly.is_on() {
            return None;
        }
        Some(heartbeat)
    }
}

/// The lease of one delivery.
struct DeliveryLease {
    id: DeliveryId,
    settler: Arc<dyn Settle>,
    length: Duration,
}

#[async_trait]
impl Renew for DeliveryLease {
    async fn renew(&self, _store: &dyn Store) -> Result<Renewed> {
        let extension = (self.id.clone(), Settlement::Extend(self.length));
        let result = self.settler.settle(vec![extension]).await.pop();
        let missing = || Error::new(ErrorKind::Unknown, "the source gave no result for a settlement");
        result.unwrap_or_else(|| Err(missing())).map(|()| Renewed::Yes)
    }

    fn report(&self, event: LeaseEvent<'_>) {
        match event {
            LeaseEvent::NotConfirmed(error) => telemetry::extension_failed(&self.id, error),
            LeaseEvent::RanTooLong => telemetry::extended_too_long(&self.id),
            // The broker does not tell.
            LeaseEvent::Lost | LeaseEvent::Forgotten => {}
        }
    }
}

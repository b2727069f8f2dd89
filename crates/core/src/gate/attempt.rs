use tokio_util::sync::CancellationToken;

use crate::key::{EventId, OperationId};
use crate::machine::Grant;

/// What a handler is told about the attempt it runs.
#[derive(Clone, Debug)]
pub struct Attempt {
    grant: Grant,
    operation: OperationId,
    cancellation: CancellationToken,
}

impl Attempt {
    pub(super) fn new(grant: Grant) -> Self {
        Self { grant, operation: grant.rk.operation(), cancellation: CancellationToken::new() }
    }

    /// The grant: its token fences whatever the handler writes to.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Which attempt this is, from 1.
    pub fn number(&self) -> u16 {
        self.grant.attempt
    }

    /// The operation's derived id, the same in every attempt: the transaction id and idempotency key to use downstream.
    pub fn operation(&self) -> OperationId {
        self.operation
    }

    /// The derived id of the n-th event that the operation emits, the same in every attempt.
    pub fn event_id(&self, n: u32) -> EventId {
        self.operation.event(n)
    }

    /// Waits until the grant is lost or the handler has run for too long: start nothing new then. What the handler returns
    /// is recorded all the same, if it can be.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn cancelled(&self) {
        self.cancellation.cancelled().await;
    }

    pub(super) fn cancellation(&self) -> CancellationToken {
        self.cancellation.clone()
    }
}

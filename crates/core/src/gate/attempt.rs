use std::sync::Arc;

use crate::key::{Call, EventId, Fingerprint, OperationId, RecordKey};
use crate::lease::Cancellation;
use crate::machine::Grant;

/// The handler's view of its attempt: the grant, the derived ids, and the cancellation.
///
/// ```
/// use hapax::gate::{Attempt, Failure};
///
/// async fn ship(attempt: Attempt) -> Result<String, Failure<String>> {
///     let (transaction, message) = (attempt.operation(), attempt.event_id("shipping", 0));
///     tokio::select! {
///         biased;
///         // The grant is lost or may soon be: start nothing new.
///         () = attempt.cancelled() => Err(Failure::unknown(std::io::Error::other("out of time"))),
///         shipped = async { format!("{transaction} shipped, message {message} sent") } => Ok(shipped),
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Attempt {
    rk: RecordKey,
    fingerprint: Fingerprint,
    grant: Option<Grant>,
    cancellation: Arc<Cancellation>,
}

impl Attempt {
    pub(super) fn granted(grant: Grant) -> Self {
        Self { rk: grant.rk, fingerprint: grant.fingerprint, grant: Some(grant), cancellation: Arc::default() }
    }

    pub(super) fn unprotected(call: &Call) -> Self {
        let fingerprint = call.newest_fingerprint();
        Self { rk: call.record_key(), fingerprint, grant: None, cancellation: Arc::default() }
    }

    /// The record key of the call.
    pub fn record_key(&self) -> RecordKey {
        self.rk
    }

    /// The payload's fingerprint: that of the record, or of the call if there is no record.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The grant. Its token fences the handler's own writes. None if the handler runs without a record, because the
    /// store is down and the policy allows it.
    pub fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// The number of this attempt, from 1. Always 1 without a grant.
    pub fn number(&self) -> u16 {
        self.grant.map_or(1, |grant| grant.attempt)
    }

    /// The operation's derived id, the same in every attempt: the transaction id and idempotency key to use downstream.
    pub fn operation(&self) -> OperationId {
        self.rk.operation()
    }

    /// The derived id of the n-th event that the operation emits in a namespace, the same in every attempt.
    pub fn event_id(&self, namespace: &str, n: u32) -> EventId {
        self.operation().event(namespace, n)
    }

    /// Waits until the handler should start nothing new: the grant is lost, the lease may soon expire because the store
    /// confirms no renewal, or the attempt exceeds `max_execution`, counted from its begin. Never ends if there is no
    /// grant. The gate still tries to record the handler's answer.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn cancelled(&self) {
        self.cancellation.wait().await;
    }

    pub(super) fn cancellation(&self) -> Arc<Cancellation> {
        Arc::clone(&self.cancellation)
    }
}

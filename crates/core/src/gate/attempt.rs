use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::key::{EventId, OperationId, RecordKey};
use crate::machine::Grant;

/// What a handler is told about the attempt it runs.
///
/// ```
/// use hapax_core::gate::{Attempt, Failure};
///
/// async fn ship(attempt: Attempt) -> Result<String, Failure<String>> {
///     let (transaction, letter) = (attempt.operation(), attempt.event_id(0));
///     tokio::select! {
///         biased;
///         // The grant is lost: what was not begun must not be begun.
///         () = attempt.cancelled() => Err(Failure::unknown(std::io::Error::other("out of time"))),
///         shipped = async { format!("{transaction} shipped, letter {letter} is out") } => Ok(shipped),
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Attempt {
    rk: RecordKey,
    grant: Option<Grant>,
    cancellation: Arc<Cancellation>,
}

impl Attempt {
    pub(super) fn granted(grant: Grant) -> Self {
        Self { grant: Some(grant), ..Self::unprotected(grant.rk) }
    }

    pub(super) fn unprotected(rk: RecordKey) -> Self {
        Self { rk, grant: None, cancellation: Arc::default() }
    }

    /// The record key of the call.
    pub fn record_key(&self) -> RecordKey {
        self.rk
    }

    /// The grant: its token fences whatever the handler writes to. None while the store is down and calls are let pass.
    pub fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// Which attempt this is, from 1, as far as is known.
    pub fn number(&self) -> u16 {
        self.grant.map_or(1, |grant| grant.attempt)
    }

    /// The operation's derived id, the same in every attempt: the transaction id and idempotency key to use downstream.
    pub fn operation(&self) -> OperationId {
        self.rk.operation()
    }

    /// The derived id of the n-th event that the operation emits, the same in every attempt.
    pub fn event_id(&self, n: u32) -> EventId {
        self.operation().event(n)
    }

    /// Waits until the grant is lost or the handler has run for too long: start nothing new then. What the handler returns
    /// is recorded all the same, if it can be.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn cancelled(&self) {
        self.cancellation.fired().await;
    }

    pub(super) fn cancellation(&self) -> Arc<Cancellation> {
        Arc::clone(&self.cancellation)
    }
}

/// Tells the handler of an attempt to stop.
#[derive(Debug, Default)]
pub(super) struct Cancellation {
    fired: AtomicBool,
    told: Notify,
}

impl Cancellation {
    pub(super) fn fire(&self) {
        if !self.fired.swap(true, Ordering::AcqRel) {
            self.told.notify_waiters();
        }
    }

    async fn fired(&self) {
        // Made before the look: it hears of what is fired after it.
        let told = self.told.notified();
        if !self.fired.load(Ordering::Acquire) {
            told.await;
        }
    }
}

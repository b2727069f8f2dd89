//! The lease engine: gets grants from a store, keeps their leases renewed, and gives them back. Whatever implements
//! [`Renew`] can be kept renewed, with or without a longest time.
//!
//! ```text
//! claim.rs      sends a begin, repeats it once if it is ambiguous, and cancels grants that no attempt uses
//! renew.rs      what the heartbeat renews
//! heartbeat.rs  renews every held lease, on a thread of its own
//! give_back.rs  release, bury, abandon and cancel, each repeated until the store replies, its error is permanent, or
//!               the record has expired
//! breaker.rs    refuses begins at once while the store does not answer
//! ```

mod breaker;
mod cancellation;
mod claim;
mod give_back;
mod heartbeat;
mod renew;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};
use crate::record::{Completion, Millis, Owner, Seconds, StoredAnswer};
use crate::runtime::{Runtime, Tasks, timeout};
use crate::settings::PolicyTerms;
use crate::store::{Protocol, Store};
use breaker::Breaker;
use heartbeat::LeaseRegistry;

pub(crate) use cancellation::Cancellation;
pub(crate) use claim::{Granted, PendingClaim};
pub(crate) use give_back::GiveBack;
pub(crate) use heartbeat::Heartbeat;
pub(crate) use renew::{HeldLease, LeaseEvent, Renew};

/// Holds the leases of all attempts of one gate in one store.
pub(crate) struct LeaseEngine {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    store_timeout: Duration,
    attempts: Tasks,
    give_backs: Tasks,
    leases: LeaseRegistry,
    breaker: Breaker,
}

/// The part of a policy that the lease engine needs to give grants back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTerms {
    pub(crate) lease: Millis,
    pub(crate) released_retention: Seconds,
    pub(crate) unknown_retention: Seconds,
}

impl From<&PolicyTerms> for LeaseTerms {
    fn from(terms: &PolicyTerms) -> Self {
        Self {
            lease: terms.lease,
            released_retention: terms.released_retention,
            unknown_retention: terms.unknown_retention,
        }
    }
}

impl LeaseEngine {
    /// Starts the engine and its heartbeat thread, for leases of at least this length. The thread ends when the engine
    /// is dropped.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        store_timeout: Duration,
        lease: Millis,
    ) -> Result<Arc<Self>> {
        let engine = Arc::new(Self {
            store,
            runtime,
            store_timeout,
            attempts: Tasks::default(),
            give_backs: Tasks::default(),
            leases: LeaseRegistry::default(),
            breaker: Breaker::default(),
        });
        engine.expect_lease(lease);
        heartbeat::start(&engine)?;
        Ok(engine)
    }

    pub(crate) fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    pub(crate) fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Announces a policy with this lease. From now on the heartbeat checks often enough for it.
    pub(crate) fn expect_lease(&self, lease: Millis) {
        self.leases.expect_lease(lease);
    }

    /// Runs one protocol operation within the store timeout. The operation may send several requests. After a timeout
    /// it is unknown whether they were carried out.
    pub(crate) async fn call_store<'a, T, F>(&'a self, request: impl FnOnce(Protocol<'a>) -> F + Send) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        timeout(&*self.runtime, self.store_timeout, request(Protocol::over(&*self.store)))
            .await
            .unwrap_or_else(|| Err(Error::new(ErrorKind::Unknown, "the store did not answer in time")))
    }

    /// The recorded answer itself. The limit is that of the place where it lies.
    pub(crate) async fn fetch(&self, completion: Completion) -> Result<Completion> {
        match completion.form {
            StoredAnswer::Whole => Ok(completion),
            StoredAnswer::Pointer => self.store.fetch(completion).await,
        }
    }

    /// Draws a new owner at random.
    pub(crate) fn mint_owner(&self) -> Owner {
        let mut bytes = [0; 16];
        self.runtime.fill_random(&mut bytes);
        Owner(bytes)
    }

    /// Runs an attempt in a task of its own.
    pub(crate) fn spawn_attempt(&self, attempt: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(Box::pin(self.attempts.track(attempt)));
    }

    fn spawn_give_back(&self, give_back: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(Box::pin(self.give_backs.track(give_back)));
    }

    /// The number of grants that are given back in the background.
    pub(crate) fn give_backs(&self) -> usize {
        self.give_backs.count()
    }

    /// Waits until no attempt runs.
    pub(crate) async fn wait_for_attempts(&self) {
        self.attempts.wait_until_idle().await;
    }

    /// Waits until no attempt runs and every grant is given back.
    pub(crate) async fn wait_until_idle(&self) {
        // In this order, because an attempt that ends may leave a grant to give back.
        self.attempts.wait_until_idle().await;
        if !Mutant::DrainForgetsGiveBacks.is_on() {
            self.give_backs.wait_until_idle().await;
        }
    }
}

impl fmt::Debug for LeaseEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseEngine").field("store", &self.store).field("leases", &self.leases).finish_non_exhaustive()
    }
}

/// Whether an error means that the store cannot take a begin now: it cannot be used, or it is full. Any other error
/// concerns the request or the record.
pub(crate) fn is_unavailable(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::NotApplied | ErrorKind::Full | ErrorKind::Unknown | ErrorKind::Unusable => true,
        ErrorKind::Damaged => Mutant::DamagedIsDown.is_on(),
        ErrorKind::Invalid => false,
    }
}

#[cfg(test)]
mod tests;

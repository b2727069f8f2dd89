use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use hapax::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax::store::{Inserted, Swapped};
use hapax::{Completion, Error, ErrorKind, RecordKey, Result, Store};

/// A wrapper that refuses begins until the start-up checks pass. Attempts that other processes run, or that ran before,
/// can still be renewed and completed.
#[derive(Debug)]
pub(crate) struct UnverifiedStore {
    store: Arc<dyn Store>,
    is_verified: AtomicBool,
}

impl UnverifiedStore {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, is_verified: AtomicBool::new(false) }
    }

    pub(crate) fn is_verified(&self) -> bool {
        self.is_verified.load(Ordering::Acquire)
    }

    /// The checks have passed: from now on begins reach the store.
    pub(crate) fn set_verified(&self) {
        self.is_verified.store(true, Ordering::Release);
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Store for UnverifiedStore {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        if !self.is_verified() {
            return Err(Error::new(ErrorKind::NotApplied, "the store has not passed its checks yet"));
        }
        self.store.begin(ask).await
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.store.renew(rk, claim).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        self.store.complete(rk, ask).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.store.read(rk).await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Arc::clone(&self.store).dedicated().await
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        self.store.swap(rk, seen, next).await
    }

    async fn fetch(&self, completion: Completion) -> Result<Completion> {
        self.store.fetch(completion).await
    }
}

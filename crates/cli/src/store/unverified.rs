use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use hapax::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax::store::{Inserted, Swapped};
use hapax::{Error, ErrorKind, RecordKey, Result, Store};

/// A store on which nothing begins until it is known that it may be used. What runs elsewhere, or ran before, goes on.
#[derive(Debug)]
pub(crate) struct UnverifiedStore {
    store: Arc<dyn Store>,
    is_open: AtomicBool,
}

impl UnverifiedStore {
    pub(crate) fn over(store: Arc<dyn Store>) -> Self {
        Self { store, is_open: AtomicBool::new(false) }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// From now on it is the store.
    pub(crate) fn open(&self) {
        self.is_open.store(true, Ordering::Release);
    }
}

#[async_trait]
impl Store for UnverifiedStore {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        if !self.is_open() {
            return Err(Error::new(ErrorKind::NotApplied, "the store has not been looked at yet"));
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
}

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::runtime::BoxFuture;
use hapax_core::store::Inspect;
use hapax_core::{RecordKey, Store};

/// An empty store, and ways to bring it into the state that a case needs without sleeping. Each backend implements them
/// in its own way.
#[async_trait]
pub trait Setup: Send + Sync {
    /// The store under test.
    fn store(&self) -> Arc<dyn Store>;

    /// The same store, for sweeps and checks.
    fn inspect(&self) -> Arc<dyn Inspect>;

    /// Makes the lease of this record expire.
    async fn lapse(&self, rk: &RecordKey);

    /// Makes this record expire.
    async fn expire(&self, rk: &RecordKey);

    /// Steps the store's clock.
    async fn step_clock(&self, step: ClockStep);

    /// Changes one byte in a part of this record's stored form. Called only if the backend has
    /// `Capability::StoredForm`.
    async fn corrupt(&self, rk: &RecordKey, part: StoredPart);

    /// Writes the golden record of version 1: completed, under [`golden_call`](crate::golden_call), with the answer
    /// [`GOLDEN_ANSWER`](crate::GOLDEN_ANSWER). Called only if the backend has `Capability::StoredForm`.
    async fn put_golden(&self);

    /// The stored value of this record, if the store keeps records as [`Record::encode`](hapax_core::Record::encode)
    /// writes them.
    async fn value(&self, _rk: &RecordKey) -> Option<Bytes> {
        None
    }
}

/// A part of a stored record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredPart {
    /// A field that every record has: the token or the fingerprint.
    Header,
    /// The answer of a completed record. It is not empty.
    Answer,
}

/// A step of a store's clock.
#[derive(Clone, Copy, Debug)]
pub enum ClockStep {
    /// This much ahead.
    Forward(Duration),
    /// This much back.
    Back(Duration),
}

/// A capability that a backend may declare as lacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// The backend stores records as bytes. A test can damage them, and a later version can read them.
    StoredForm,
    /// A store that is too full for a begin still accepts completions.
    RoomToComplete,
    /// The store keeps one token high-water mark for all keys, so tokens grow even if a record is gone and the clock
    /// stepped back.
    HighWaterMark,
    /// The store reads its clock to the microsecond. Without it a lapse may be noticed some seconds late, and never
    /// early.
    ExactClock,
}

/// One case of the suite. `run` panics if the store violates the clause.
#[derive(Clone, Copy)]
pub struct SuiteCase {
    /// The stable name.
    pub name: &'static str,
    /// The clause of the store's contract.
    pub clause: u8,
    /// The capability that the case needs.
    pub needs: Option<Capability>,
    /// Runs the case.
    pub run: for<'a> fn(&'a dyn Setup) -> BoxFuture<'a, ()>,
}

impl fmt::Debug for SuiteCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (clause {})", self.name, self.clause)
    }
}

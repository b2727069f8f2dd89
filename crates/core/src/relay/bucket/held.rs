use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::outbox::{OutgoingEvent, RowId};

/// Which rows that have failed one bucket holds. The others are deferred, so that they leave room to rows of other
/// keys.
#[derive(Clone, Copy, Debug)]
pub(in crate::relay) struct FailingRoom {
    pub(in crate::relay) rows: usize,
    pub(in crate::relay) bytes: usize,
    /// A row that may be published again only after this time is not held.
    pub(in crate::relay) until: Duration,
    /// Whether reads leave the row out that fails. Then it is read again with all rows, and is not deferred.
    pub(in crate::relay) is_left_out: bool,
}

#[derive(Debug)]
pub(super) struct HeldRow {
    pub(super) event: Arc<OutgoingEvent>,
    pub(super) damage: Option<String>,
    pub(super) order: Bytes,
    pub(super) phase: RowPhase,
    pub(super) failures: u32,
    /// When it may be published again; zero for at once.
    pub(super) due: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowPhase {
    Waiting,
    InFlight,
    /// The sink has it; the row is not marked yet.
    Published,
}

/// The rows of one ordering key that are not published.
#[derive(Debug, Default)]
pub(super) struct HeldKey {
    pub(super) rows: BTreeSet<RowId>,
    pub(super) in_flight: bool,
    /// The row that is in `ready` or in `retries`.
    pub(super) offered: Option<RowId>,
}

/// A row that is to be published now.
#[derive(Debug)]
pub(in crate::relay) struct StartedRow {
    pub(in crate::relay) id: RowId,
    pub(in crate::relay) event: Arc<OutgoingEvent>,
    /// Why it cannot be published.
    pub(in crate::relay) damage: Option<String>,
    /// Whether it has failed before.
    pub(in crate::relay) is_retry: bool,
}

/// Whether a bucket holds a row that was read, or the reason why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::relay) enum TakenRow {
    /// It is held now.
    New,
    /// It was held before.
    Known,
    /// Its key has enough rows here; it is read again later.
    Skipped,
    /// Its key is parked, so the row is to be set aside.
    Parked,
}

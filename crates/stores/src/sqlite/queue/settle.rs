use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use hapax_core::broker::{DeliveryId, Lane, Settle, Settlement};
use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, Result, Timestamp};
use rusqlite::Connection;

use super::statements::{self, LeaseKey};
use crate::sqlite::file_thread::{FileThread, in_transaction, not_applied};

/// What the source and its settlers share.
#[derive(Debug)]
pub(super) struct SharedQueue {
    pub(super) thread: FileThread,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) lane: Lane,
    /// Names this source in the leases of its messages.
    pub(super) owner: [u8; 16],
    pub(super) is_closed: AtomicBool,
}

impl SharedQueue {
    fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::NotApplied, "the source of the SQLite queue is closed"));
        }
        Ok(())
    }

    /// The lease that a delivery has. None if the delivery is not one of this source.
    pub(super) fn lease_of(&self, id: &DeliveryId) -> Option<LeaseKey> {
        let (row, attempts) = id.handle.split_first_chunk()?;
        let attempts = u32::from_be_bytes(attempts.try_into().ok()?);
        let lease = LeaseKey { id: i64::from_be_bytes(*row), attempts, owner: self.owner };
        (id.lane == self.lane).then_some(lease)
    }

    /// Carries out all steps in one transaction. All have the same result.
    async fn settle_rows(&self, steps: Vec<(LeaseKey, Settlement)>) -> Result<()> {
        let runtime = Arc::clone(&self.runtime);
        let work = move |connection: &mut Connection| {
            in_transaction(connection, |transaction| {
                // Read behind the lock, so that the wait for it does not shorten a lease.
                let now = runtime.wall_now();
                steps.iter().try_for_each(|(lease, step)| settle_row(transaction, lease, (*step, now)))
            })
        };
        self.thread.run(work).await
    }
}

fn settle_row(
    connection: &Connection,
    lease: &LeaseKey,
    (settlement, now): (Settlement, Timestamp),
) -> rusqlite::Result<()> {
    match settlement {
        Settlement::Ack => statements::acknowledge(connection, lease),
        Settlement::Retry(after) => statements::give_back(connection, lease, now.plus(after)),
        Settlement::Extend(by) => statements::extend(connection, lease, now.plus(by)),
        // `settle` has answered it.
        Settlement::UpTo => Ok(()),
    }
}

#[async_trait]
impl Settle for SharedQueue {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        let is_wrong = |settlement: &Settlement| *settlement == Settlement::UpTo;
        let steps: Vec<(LeaseKey, Settlement)> = settlements
            .iter()
            .filter(|(_, settlement)| !is_wrong(settlement))
            .filter_map(|(id, settlement)| Some((self.lease_of(id)?, *settlement)))
            .collect();
        let settled = match self.check_open() {
            Ok(()) if steps.is_empty() => Ok(()),
            Ok(()) => self.settle_rows(steps).await,
            Err(closed) => Err(closed),
        };
        let settled = settled.map_err(Arc::new);
        let result = |(_, settlement): &(DeliveryId, Settlement)| match &settled {
            _ if is_wrong(settlement) => {
                Err(Error::new(ErrorKind::Invalid, "the SQLite queue acknowledges each message on its own"))
            }
            Ok(()) => Ok(()),
            Err(error) => Err(Error::new(error.kind(), "the SQLite queue did not settle").caused_by(Arc::clone(error))),
        };
        settlements.iter().map(result).collect()
    }

    /// Does nothing: nobody takes the lane away.
    async fn leave(&self, _lanes: &[Lane]) -> Result<()> {
        Ok(())
    }

    async fn lag(&self) -> Result<Option<u64>> {
        self.check_open()?;
        let lane = self.lane.clone();
        self.thread
            .run(move |connection| statements::count(connection, &lane.topic).map_err(not_applied))
            .await
            .map(Some)
    }
}

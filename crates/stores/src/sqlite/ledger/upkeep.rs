//! What a ledger needs beside its calls: the removal of old rows, and a second chance for closed operations.

use std::time::Duration;

use hapax_core::ledger::Retention;
use hapax_core::runtime::Runtime;
use hapax_core::{OperationId, Result, telemetry};
use rusqlite::{Connection, OptionalExtension, params};

use super::SqliteLedger;
use super::statements::fault;
use crate::sqlite::turn::Turn;

/// How many rows one step of a sweep looks at, so that no writer waits for long.
const STEP: u32 = 1_000;

/// The pause between two steps, so that writers get their turn.
const STEP_PAUSE: Duration = Duration::from_millis(20);

/// What one step of a sweep did.
struct SweptRows {
    removed: usize,
    /// The last row that was looked at.
    next: Option<i64>,
}

impl SqliteLedger {
    /// Removes rows of this namespace that are older than the retention of the terms, from the next `limit` rows after
    /// `after`. Returns the last row that was looked at, to continue there, or None if nothing is left to do. The steps
    /// at the end of the table also remove up to `limit` old counts of failed attempts each. Waits for its turn, as
    /// [`run`](Self::run) does.
    ///
    /// # Errors
    /// `NotApplied` if another connection writes.
    pub fn sweep(&self, connection: &Connection, after: i64, limit: u32) -> Result<Option<i64>> {
        Ok(self.sweep_rows(connection, after, limit)?.next)
    }

    /// Sweeps the whole file in this interval, in small steps with pauses. Spawn it once in each process, or in one of
    /// them: nothing else removes rows of a ledger. Each step blocks its executor for some milliseconds. It ends at
    /// once if the terms keep rows forever, otherwise never. An error is logged; the next try is after the interval.
    ///
    /// # Cancel safety
    /// Safe to drop, which ends it.
    pub async fn sweep_regularly(&self, connection: Connection, runtime: &dyn Runtime, every: Duration) {
        while self.terms.kept_for() != Retention::Forever {
            let (mut removed, mut after) = (0, Some(0));
            while let Some(row) = after {
                after = match self.sweep_rows(&connection, row, STEP) {
                    Ok(swept) => {
                        removed += swept.removed;
                        swept.next
                    }
                    Err(error) => {
                        telemetry::ledger_sweep_failed(&self.terms, &error);
                        None
                    }
                };
                runtime.sleep(STEP_PAUSE).await;
            }
            telemetry::ledger_swept(&self.terms, removed as u64);
            runtime.sleep(every).await;
        }
    }

    fn sweep_rows(&self, connection: &Connection, after: i64, limit: u32) -> Result<SweptRows> {
        let Retention::For(kept) = self.terms.kept_for() else {
            return Ok(SweptRows { removed: 0, next: None });
        };
        let (namespace, last) = (&**self.terms.namespace(), after.saturating_add(limit.into()));
        let kept = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
        let remove = || {
            let newest: Option<i64> = connection.query_row(include_str!("newest.sql"), [], |row| row.get(0))?;
            let newest = newest.unwrap_or_default();
            let mut removed = 0;
            if newest > after {
                let _turn = take_turn(connection);
                let mut statement = connection.prepare_cached(include_str!("sweep.sql"))?;
                removed += statement.execute((namespace, after + 1, last, kept))?;
            }
            if newest > last {
                return Ok(SweptRows { removed, next: Some(last) });
            }
            // The search takes no lock that a writer needs.
            let mut has_old = connection.prepare_cached(include_str!("has_old_attempts.sql"))?;
            if has_old.query_row((namespace, kept), |row| row.get(0))? {
                let _turn = take_turn(connection);
                let mut statement = connection.prepare_cached(include_str!("sweep_attempts.sql"))?;
                let attempts = statement.execute((namespace, kept, limit))?;
                return Ok(SweptRows {
                    removed: removed + attempts,
                    next: (attempts > 0).then_some(newest.max(after)),
                });
            }
            Ok(SweptRows { removed, next: None })
        };
        remove().map_err(|error| fault(error).into())
    }

    /// Lets an operation run again that is closed after too many failed attempts, and counts its attempts from 0.
    /// Returns whether it was closed. A redrive of its dead letter does the same.
    ///
    /// # Errors
    /// - `NotApplied` if another connection writes.
    /// - `Unusable`: the tables are missing.
    pub fn reopen(&self, connection: &Connection, operation: OperationId) -> Result<bool> {
        let _turn = take_turn(connection);
        let reopen = || {
            let mut statement = connection.prepare_cached(include_str!("reopen.sql"))?;
            let row = params![operation.as_bytes(), &**self.terms.namespace()];
            statement.query_row(row, |row| row.get(0)).optional()
        };
        Ok(reopen().map_err(fault)?.unwrap_or(false))
    }
}

/// The turn of a statement in a transaction of its own. A transaction of the caller's own has the file's lock, or waits
/// for it without a turn.
fn take_turn(connection: &Connection) -> Option<Turn> {
    connection.is_autocommit().then(|| Turn::take(connection)).flatten()
}

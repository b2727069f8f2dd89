//! What a ledger needs beside its calls: checks of the server, the removal of old rows, and a second chance for closed
//! operations.

use std::time::Duration;

use hapax_core::ledger::Retention;
use hapax_core::store::Finding;
use hapax_core::{Error, ErrorKind, OperationId, Result, telemetry};
use tokio_postgres::types::Type;

use super::statements::uuid;
use super::{PostgresLedger, guard};
use crate::postgres::call_error::PostgresCallError;
use crate::postgres::check::{ServerFacts, ledger_findings, replication_finding};
use crate::postgres::trust;

/// How many pages of 8 KiB of each table one step of a sweep reads: about a thousand rows, so that no call waits long.
const PAGES: u32 = 16;

/// The pause between two steps, so that a sweep leaves the server to the calls most of the time.
const STEP_PAUSE: Duration = Duration::from_millis(20);

/// What one step of a sweep did.
struct SweptPages {
    removed: i64,
    /// The page to continue at.
    next: Option<u32>,
}

impl PostgresLedger {
    /// Checks whether the server can be trusted with effects. `calls` is the number of calls that all batches together
    /// may claim at once: each holds a lock of the server until its transaction ends. Do it at start.
    ///
    /// # Errors
    /// - `NotApplied` if the server cannot be reached.
    /// - `Unusable` if the server does not let the role in.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn check(&self, calls: usize) -> Result<Vec<Finding>> {
        let rows = self.pool.query(&self.sql.facts, &[]).await?;
        let unread = || Error::new(ErrorKind::NotApplied, "the server does not tell its settings");
        let row = rows.first().ok_or_else(unread)?;
        let facts = ServerFacts::read(row).map_err(PostgresCallError::Sent)?;
        let locks: i64 = row.try_get("locks").map_err(PostgresCallError::Sent)?;
        let mut findings = facts.findings(&["hapax_ledger", "hapax_attempt", "hapax_outbox"]);
        findings.extend(ledger_findings(locks, calls));
        findings.extend(self.preparation.finding());
        findings.extend(replication_finding(self.pool.is_unreplicated()));
        let connection = self.pool.get().await?;
        findings.extend(trust::findings(&connection, &self.url.schema).await?);
        findings.extend(guard::findings(&connection, &self.url.schema).await?);
        Ok(findings)
    }

    /// Removes the rows of this namespace that are older than the retention of the terms from some pages, from page
    /// `from` on: operations that have ended, and failed attempts. Returns the page to continue at, or None at the end
    /// of the tables. The role needs `DELETE` on `hapax_ledger` and `hapax_attempt`.
    ///
    /// # Errors
    /// - `NotApplied` or `Unknown`: repeat the call.
    /// - `Unusable`: the tables are missing, or the role lacks a permission.
    ///
    /// # Cancel safety
    /// If dropped, the rows may be removed.
    pub async fn sweep(&self, from: u32) -> Result<Option<u32>> {
        Ok(self.sweep_pages(from).await?.next)
    }

    /// Sweeps the whole tables in this interval, in small steps with pauses. Spawn it once in each process, or in one
    /// of them: nothing else removes rows of a ledger. It ends at once if the terms keep rows forever, otherwise never.
    /// An error is logged; the next try is after the interval.
    ///
    /// # Cancel safety
    /// Safe to drop, which ends it.
    pub async fn sweep_regularly(&self, every: Duration) {
        while self.terms.kept_for() != Retention::Forever {
            match self.sweep_all().await {
                Ok(removed) => telemetry::ledger_swept(&self.terms, removed),
                Err(error) => telemetry::ledger_sweep_failed(&self.terms, &error),
            }
            self.runtime.sleep(every).await;
        }
    }

    async fn sweep_all(&self) -> Result<u64> {
        let (mut removed, mut from) = (0, Some(0));
        while let Some(page) = from {
            let swept = self.sweep_pages(page).await?;
            removed += swept.removed.unsigned_abs();
            from = swept.next;
            self.runtime.sleep(STEP_PAUSE).await;
        }
        Ok(removed)
    }

    async fn sweep_pages(&self, from: u32) -> Result<SweptPages> {
        let Retention::For(kept) = self.terms.kept_for() else {
            return Ok(SweptPages { removed: 0, next: None });
        };
        let to = from.saturating_add(PAGES);
        let (begin, end) = (format!("({from},0)"), format!("({to},0)"));
        let (seconds, namespace) = (kept.as_secs_f64(), &**self.terms.namespace());
        let range = [
            (&namespace as _, Type::TEXT),
            (&begin as _, Type::TEXT),
            (&end as _, Type::TEXT),
            (&seconds as _, Type::FLOAT8),
        ];
        let rows = self.pool.query(&self.sql.sweep, &range).await?;
        let (removed, pages) = rows.first().map_or((0, 0), |row| (row.get(0), row.get::<_, i64>(1)));
        Ok(SweptPages { removed, next: (i64::from(to) < pages).then_some(to) })
    }

    /// Lets an operation run again that is closed after too many failed attempts, and counts its attempts from 0.
    /// Returns whether it was closed. A redrive of its dead letter does the same.
    ///
    /// # Errors
    /// - `NotApplied` or `Unknown`: repeat the call.
    /// - `Unusable`: the tables are missing, or the role lacks a permission.
    ///
    /// # Cancel safety
    /// If dropped, the operation may be open.
    pub async fn reopen(&self, operation: OperationId) -> Result<bool> {
        let (namespace, operation) = (&**self.terms.namespace(), uuid(operation));
        let parameters = [(&namespace as _, Type::TEXT), (&operation as _, Type::UUID)];
        let rows = self.pool.query(&self.sql.reopen, &parameters).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }
}

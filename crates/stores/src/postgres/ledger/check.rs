//! What a server can be trusted with, as the home of a ledger.

use hapax_core::store::{Finding, Severity};
use tokio_postgres::{Error, Row};

use crate::postgres::check::OLDEST;

/// What the server says about itself.
#[derive(Debug)]
pub(super) struct LedgerFacts {
    version: i32,
    version_name: String,
    is_standby: bool,
    is_unlogged: bool,
    has_no_fsync: bool,
    has_no_sync: bool,
    /// The number of locks that all transactions together can hold.
    locks: i64,
}

impl LedgerFacts {
    pub(super) fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            version: row.try_get("version")?,
            version_name: row.try_get("version_name")?,
            is_standby: row.try_get("is_standby")?,
            is_unlogged: row.try_get("is_unlogged")?,
            has_no_fsync: row.try_get("has_no_fsync")?,
            has_no_sync: row.try_get("has_no_sync")?,
            locks: row.try_get("locks")?,
        })
    }

    /// The findings for transactions that together claim up to `calls` operations at once.
    pub(super) fn findings(&self, calls: usize) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut add = |applies: bool, severity, message: String| {
            if applies {
                findings.push(Finding { severity, message });
            }
        };
        let old = format!("the server is PostgreSQL {}, which is too old; use 14 or later", self.version_name);
        add(self.version < OLDEST, Severity::Refuse, old);
        add(self.is_standby, Severity::Refuse, STANDBY.into());
        add(self.is_unlogged, Severity::Refuse, UNLOGGED.into());
        add(self.has_no_fsync, Severity::Warn, NO_FSYNC.into());
        add(self.has_no_sync, Severity::Warn, NO_SYNC.into());
        let locks = format!(
            "batches may claim {calls} operations at once, which is more than half of the server's table of {} locks; \
             make the batches smaller, or raise max_locks_per_transaction",
            self.locks
        );
        add(i64::try_from(calls).unwrap_or(i64::MAX) > self.locks / 2, Severity::Warn, locks);
        findings
    }
}

const STANDBY: &str = "the server is a standby, which takes no writes; use the URL of the primary";
const UNLOGGED: &str = "a table of the ledger is unlogged: a crash of the server empties it, and operations run again; \
    run `alter table hapax_ledger set logged`, and the same for hapax_attempt and hapax_outbox";
const NO_FSYNC: &str = "fsync is off: a crash of the server's host can lose effects, or damage the database; set it on";
const NO_SYNC: &str = "synchronous_commit is off: a crash of the server loses the last effects that it confirmed, with \
    their rows; set it to on for this role";

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> LedgerFacts {
        LedgerFacts {
            version: OLDEST,
            version_name: "14.0".into(),
            is_standby: false,
            is_unlogged: false,
            has_no_fsync: false,
            has_no_sync: false,
            locks: 6400,
        }
    }

    fn severities(facts: &LedgerFacts, calls: usize) -> Vec<Severity> {
        facts.findings(calls).iter().map(|finding| finding.severity).collect()
    }

    #[test]
    fn a_server_that_would_lose_effects_or_run_out_of_locks_is_refused_or_reported() {
        use Severity::{Refuse, Warn};
        assert_eq!(severities(&facts(), 3200), []);
        assert_eq!(severities(&facts(), 3201), [Warn]);
        assert_eq!(severities(&LedgerFacts { version: 130_022, ..facts() }, 1), [Refuse]);
        let unsafe_copy = LedgerFacts { is_standby: true, is_unlogged: true, ..facts() };
        assert_eq!(severities(&unsafe_copy, 1), [Refuse, Refuse]);
        let fast = LedgerFacts { has_no_fsync: true, has_no_sync: true, ..facts() };
        assert_eq!(severities(&fast, 1), [Warn, Warn]);
    }
}

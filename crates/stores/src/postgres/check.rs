//! What a server can be trusted with.

use hapax_core::store::{Finding, Severity};
use tokio_postgres::{Error, Row};

/// The oldest server that knows all statements.
pub(super) const OLDEST: i32 = 140_000;

/// What the server says about itself.
#[derive(Debug)]
pub(super) struct ServerFacts {
    version: i32,
    version_name: String,
    is_standby: bool,
    is_unlogged: bool,
    has_no_fsync: bool,
    has_no_sync: bool,
}

impl ServerFacts {
    pub(super) fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            version: row.try_get("version")?,
            version_name: row.try_get("version_name")?,
            is_standby: row.try_get("is_standby")?,
            is_unlogged: row.try_get("is_unlogged")?,
            has_no_fsync: row.try_get("has_no_fsync")?,
            has_no_sync: row.try_get("has_no_sync")?,
        })
    }

    /// What keeps the server from being trusted with these tables.
    pub(super) fn findings(&self, tables: &[&str]) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut add = |applies, severity, message: String| findings.extend(finding(applies, severity, message));
        let old = format!("the server is PostgreSQL {}, which is too old; use 14 or later", self.version_name);
        add(self.version < OLDEST, Severity::Refuse, old);
        add(self.is_standby, Severity::Refuse, STANDBY.into());
        let unlogged = format!(
            "a table of Hapax is unlogged: a crash of the server empties it, and operations run again; run `alter \
             table NAME set logged` for each of {}",
            tables.join(", ")
        );
        add(self.is_unlogged, Severity::Refuse, unlogged);
        add(self.has_no_fsync, Severity::Warn, NO_FSYNC.into());
        add(self.has_no_sync, Severity::Warn, NO_SYNC.into());
        findings
    }
}

fn finding(applies: bool, severity: Severity, message: String) -> Option<Finding> {
    applies.then_some(Finding { severity, message })
}

/// What a server is not trusted with as the home of records, beside what holds for all tables.
pub(super) fn record_findings(isolation: &str, trusts_everybody: bool) -> impl Iterator<Item = Finding> {
    let message = format!(
        "default_transaction_isolation is '{isolation}', so calls for the same key at the same time fail; set it to \
         'read committed' for this role"
    );
    let isolation = finding(isolation != "read committed", Severity::Warn, message);
    isolation.into_iter().chain(finding(trusts_everybody, Severity::Warn, UNVERIFIED.into()))
}

/// What a server is not trusted with as the home of a ledger, beside what holds for all tables. `locks` is the number
/// of locks that all transactions together can hold, and `calls` that of the operations that are claimed at once.
pub(super) fn ledger_findings(locks: i64, calls: usize) -> Option<Finding> {
    let message = format!(
        "batches may claim {calls} operations at once, which is more than half of the server's table of {locks} locks; \
         make the batches smaller, or raise max_locks_per_transaction"
    );
    finding(i64::try_from(calls).unwrap_or(i64::MAX) > locks / 2, Severity::Warn, message)
}

/// The warning for an operator, if a COMMIT of the ledger has ended before its standby had it.
pub(super) fn replication_finding(is_unreplicated: bool) -> Option<Finding> {
    finding(is_unreplicated, Severity::Warn, UNREPLICATED.into())
}

const UNREPLICATED: &str = "a COMMIT has ended before the standby had it, because its wait was cancelled: if the \
    standby is promoted, the effect is lost, and a copy of its operation may have been answered; let nobody cancel or \
    terminate a session that waits for SyncRep";
const STANDBY: &str =
    "the server is a standby: it takes no writes, and what it shows may be old; use the URL of the primary";
const NO_FSYNC: &str = "fsync is off: a crash of the server's host can lose commits or damage the database; set it on";
const NO_SYNC: &str = "synchronous_commit is off: a crash of the server loses the last commits that it confirmed; set \
    it to on for this role";
const UNVERIFIED: &str = "sslmode=require trusts every server; write sslmode=verify-full and name the authority by \
    ca=";

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> ServerFacts {
        ServerFacts {
            version: OLDEST,
            version_name: "14.0".into(),
            is_standby: false,
            is_unlogged: false,
            has_no_fsync: false,
            has_no_sync: false,
        }
    }

    fn severities(facts: &ServerFacts) -> Vec<Severity> {
        facts.findings(&["hapax_record"]).iter().map(|finding| finding.severity).collect()
    }

    #[test]
    fn a_server_that_would_lose_what_it_confirmed_is_refused_or_reported() {
        use Severity::{Refuse, Warn};
        assert_eq!(severities(&facts()), []);
        assert_eq!(severities(&ServerFacts { version: 130_022, ..facts() }), [Refuse]);
        let unsafe_copy = ServerFacts { is_standby: true, is_unlogged: true, ..facts() };
        assert_eq!(severities(&unsafe_copy), [Refuse, Refuse]);
        assert!(unsafe_copy.findings(&["hapax_record"])[1].message.ends_with("set logged` for each of hapax_record"));
        assert_eq!(severities(&ServerFacts { has_no_fsync: true, has_no_sync: true, ..facts() }), [Warn, Warn]);
    }

    #[test]
    fn records_are_reported_without_their_isolation_or_a_verified_server() {
        let count = |isolation, trusts_everybody| record_findings(isolation, trusts_everybody).count();
        assert_eq!(count("read committed", false), 0);
        assert_eq!(count("read committed", true), 1);
        assert_eq!(count("serializable", false), 1);
    }

    #[test]
    fn batches_that_could_fill_the_table_of_locks_are_reported() {
        assert!(ledger_findings(6400, 3200).is_none());
        assert!(ledger_findings(6400, 3201).is_some_and(|finding| finding.severity == Severity::Warn));
    }
}

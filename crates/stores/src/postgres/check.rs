//! What a server can be trusted with.

use hapax_core::store::{Finding, Severity};
use tokio_postgres::{Error, Row};

use super::tls::TlsMode;

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
    isolation: String,
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
            isolation: row.try_get("isolation")?,
        })
    }

    pub(super) fn findings(&self, tls: TlsMode) -> Vec<Finding> {
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
        let isolation = format!(
            "default_transaction_isolation is '{}', so calls for the same key at the same time fail; set it to \
             'read committed' for this role",
            self.isolation
        );
        add(self.isolation != "read committed", Severity::Warn, isolation);
        add(tls == TlsMode::Require, Severity::Warn, UNVERIFIED.into());
        findings
    }
}

const STANDBY: &str =
    "the server is a standby: it takes no records, and what it shows may be old; use the URL of the primary";
const UNLOGGED: &str = "the tables of Hapax are unlogged: a crash of the server empties them; run `alter table \
    hapax_record set logged` and the same for hapax_store";
const NO_FSYNC: &str = "fsync is off: a crash of the server's host can lose or damage records; set fsync = on";
const NO_SYNC: &str = "synchronous_commit is off: a crash of the server loses the last records that it confirmed; set \
    it to on for this role";
const UNVERIFIED: &str = "sslmode=require trusts every server; write sslmode=verify-full and name the authority by \
    sslrootcert=";

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
            isolation: "read committed".into(),
        }
    }

    fn severities(facts: &ServerFacts, tls: TlsMode) -> Vec<Severity> {
        facts.findings(tls).iter().map(|finding| finding.severity).collect()
    }

    #[test]
    fn a_server_that_would_lose_records_is_refused_or_reported() {
        use Severity::{Refuse, Warn};
        assert_eq!(severities(&facts(), TlsMode::VerifyFull), []);
        assert_eq!(severities(&facts(), TlsMode::Require), [Warn]);
        let old = ServerFacts { version: 130_022, ..facts() };
        assert_eq!(severities(&old, TlsMode::Disable), [Refuse]);
        let unsafe_copy = ServerFacts { is_standby: true, is_unlogged: true, ..facts() };
        assert_eq!(severities(&unsafe_copy, TlsMode::Disable), [Refuse, Refuse]);
        let fast = ServerFacts { has_no_fsync: true, has_no_sync: true, isolation: "serializable".into(), ..facts() };
        assert_eq!(severities(&fast, TlsMode::Disable), [Warn, Warn, Warn]);
    }
}

//! The tables of Hapax in a database: those of the records, of the ledger and of the outbox.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::ledger::{CommittedRow, LedgerRows, LedgerVerdict, Terms};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::store::{Finding, Severity};
use hapax_core::{Error, ErrorKind, Fingerprint, OperationId, Result, Rule};

use super::SpannerUrl;
use super::api::SpannerApi;
use super::messages::{SqlList, SqlValue};
use super::tables::{self, RecordTableState, without_comments};
use super::values::{SqlStatement, columns};

/// The statements of each version behind that of the records, which is the first.
const VERSIONS: [(i32, &str); 2] =
    [(2, include_str!("migrations/0002_ledger.sql")), (OUTBOX, include_str!("migrations/0003_outbox.sql"))];

/// The version of the table of the records.
const RECORDS: i32 = 1;

/// The version of the tables of the outbox.
const OUTBOX: i32 = 3;

/// The column by which each row deletion policy counts.
const POLICIES: [(&str, &str); 3] =
    [("hapax_ledger", "created_at"), ("hapax_attempt", "first_at"), ("hapax_outbox", "published_at")];

const OUTBOX_TABLE: &str = "hapax_outbox";

const SECONDS_OF_A_DAY: u64 = 24 * 60 * 60;

/// The tables of Hapax in a database of Spanner, for operators.
pub struct SpannerTables {
    api: SpannerApi,
}

/// A statement that makes one table or one index.
#[derive(Debug, PartialEq, Eq)]
struct TableStatement {
    version: i32,
    text: String,
}

impl TableStatement {
    /// Those of all versions behind the first one, in the order in which they run.
    fn all() -> Vec<Self> {
        let texts = VERSIONS.into_iter().flat_map(|(version, file)| {
            let file = without_comments(file);
            let texts: Vec<_> = file.split(';').map(|text| text.trim().to_owned()).collect();
            texts.into_iter().map(move |text| Self { version, text })
        });
        texts.filter(|statement| !statement.text.is_empty()).collect()
    }

    /// The name of the table or of the index.
    fn name(&self) -> &str {
        let mut words = self.text.split_whitespace();
        words.find(|word| matches!(*word, "TABLE" | "INDEX"));
        words.next().unwrap_or_default()
    }
}

impl SpannerTables {
    /// The tables in the database of this URL, on the current tokio runtime. Connects to nothing yet.
    ///
    /// # Errors
    /// `Unusable` if the system has no authorities for TLS.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect(url: &SpannerUrl) -> Result<Self> {
        Self::with(url, Arc::new(Tokio::current()))
    }

    /// The tables in the database of this URL, on this runtime. Connects to nothing yet.
    ///
    /// # Errors
    /// `Unusable` if the system has no authorities for TLS.
    pub fn with(url: &SpannerUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        Ok(Self { api: SpannerApi::new(url, runtime)? })
    }

    pub(super) fn of(api: &SpannerApi) -> Self {
        Self { api: api.clone() }
    }

    /// The versions of the tables that are missing: 1 has the records, 2 the ledger, 3 the outbox.
    ///
    /// # Errors
    /// As Spanner says.
    pub async fn missing(&self) -> Result<Vec<i32>> {
        let missing = self.missing_statements().await?;
        let versions: BTreeSet<i32> = missing.iter().map(|statement| statement.version).collect();
        Ok(versions.into_iter().collect())
    }

    /// Whether tables of the outbox are missing.
    ///
    /// # Errors
    /// As Spanner says.
    pub async fn lack_outbox(&self) -> Result<bool> {
        Ok(self.missing().await?.contains(&OUTBOX))
    }

    /// Whether the table of the records is missing.
    ///
    /// # Errors
    /// As Spanner says.
    pub async fn lack_records(&self) -> Result<bool> {
        Ok(!RecordTableState::read(&self.api).await?.exists())
    }

    /// Makes what is missing, and waits until it is there. On an emulator it makes the instance and the database, too.
    /// Returns the versions that were not complete.
    ///
    /// # Errors
    /// `Unusable` without the right to do it, `NotApplied` if it takes longer than ten minutes.
    ///
    /// # Cancel safety
    /// If dropped, some tables may be made. A second call goes on.
    pub async fn create(&self) -> Result<Vec<i32>> {
        if !self.api.url().is_google() {
            tables::create_database(&self.api).await?;
        }
        let missing = self.missing_statements().await?;
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let versions: BTreeSet<i32> = missing.iter().map(|statement| statement.version).collect();
        let changed = tables::change(&self.api, missing.into_iter().map(|statement| statement.text).collect()).await;
        // Another process may have made them meanwhile; the next look says so.
        if let Err(error) = changed
            && !self.missing_statements().await?.is_empty()
        {
            return Err(error);
        }
        Ok(versions.into_iter().collect())
    }

    /// The statements that [`create`](Self::create) would run now.
    ///
    /// # Errors
    /// As Spanner says.
    pub async fn script(&self) -> Result<String> {
        let missing = self.missing_statements().await?;
        Ok(missing.iter().map(|statement| format!("{};\n", statement.text)).collect())
    }

    /// Findings about tables that are there and endanger the guarantee.
    ///
    /// # Errors
    /// As Spanner says.
    pub async fn check(&self) -> Result<Vec<Finding>> {
        let mut findings = RecordTableState::read(&self.api).await?.findings();
        let guard = self.texts(include_str!("migrations/guard.sql")).await?;
        let key = self.texts(include_str!("migrations/ledger_key.sql")).await?;
        findings.extend(ledger_findings(guard.is_empty(), &key));
        findings.extend(self.policies().await?.iter().filter_map(policy_finding));
        Ok(findings)
    }

    /// Findings about the tables of the outbox.
    pub(super) async fn outbox_findings(&self) -> Result<Vec<Finding>> {
        if self.lack_outbox().await? {
            return Ok(vec![refuse("tables of the outbox are missing: run `hapax migrate --database`")]);
        }
        let policies = self.policies().await?;
        Ok(policies.iter().filter(|(table, _)| table == OUTBOX_TABLE).filter_map(policy_finding).collect())
    }

    /// Whether Spanner removes rows of the outbox.
    pub(super) async fn outbox_has_policy(&self) -> Result<bool> {
        Ok(self.policies().await?.iter().any(|(table, _)| table == OUTBOX_TABLE))
    }

    /// The tables with a row deletion policy, and the policies.
    async fn policies(&self) -> Result<Vec<(String, String)>> {
        let rows = self.api.read(&SqlStatement::new(include_str!("migrations/policies.sql"))).await?;
        let text = |value: &SqlValue| value.as_text().map(|text| text.unwrap_or_default().to_owned());
        rows.iter()
            .map(|row| columns::<2>(&row.values).and_then(|[table, policy]| Ok((text(table)?, text(policy)?))))
            .collect()
    }

    async fn missing_statements(&self) -> Result<Vec<TableStatement>> {
        let records = RecordTableState::read(&self.api).await?.missing();
        let found = self.texts(include_str!("migrations/names.sql")).await?;
        let records = records.into_iter().map(|text| TableStatement { version: RECORDS, text });
        let others =
            TableStatement::all().into_iter().filter(|statement| !found.iter().any(|it| it == statement.name()));
        Ok(records.chain(others).collect())
    }

    /// The rows of a query with one column of texts.
    async fn texts(&self, sql: &'static str) -> Result<Vec<String>> {
        let rows = self.api.read(&SqlStatement::new(sql)).await?;
        rows.iter().map(|row| Ok(columns::<1>(&row.values)?[0].as_text()?.unwrap_or_default().to_owned())).collect()
    }
}

fn refuse(message: impl Into<String>) -> Finding {
    Finding { severity: Severity::Refuse, message: message.into() }
}

fn ledger_findings(lacks_guard: bool, key: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if lacks_guard {
        findings.push(refuse(
            "the table hapax_ledger has lost its constraint hapax_ledger_open, so a transaction could commit an \
             operation that has no end: make the table anew, or add the constraint",
        ));
    }
    if key != ["namespace", "operation"] {
        findings.push(refuse(
            "the primary key of hapax_ledger is not (operation, namespace), so an operation could run twice: make the \
             table anew",
        ));
    }
    findings
}

/// The finding about a policy that removes rows that are still needed.
fn policy_finding((table, policy): &(String, String)) -> Option<Finding> {
    let (_, column) = POLICIES.into_iter().find(|(name, _)| name == table)?;
    let Some(days) = tables::kept_days(policy, column) else {
        return Some(refuse(format!(
            "the row deletion policy of {table} removes rows that are still needed: replace it by OLDER_THAN({column}, \
             INTERVAL 90 DAY)"
        )));
    };
    let is_short = table == "hapax_ledger" && days < Terms::HORIZON.as_secs() / SECONDS_OF_A_DAY;
    is_short.then(|| {
        refuse(format!(
            "the row deletion policy of {table} keeps rows for {days} days, but copies of an operation may arrive for \
             14 days: it would run again"
        ))
    })
}

#[async_trait]
impl LedgerRows for SpannerTables {
    async fn rows_of(&self, operations: &[OperationId]) -> Result<Vec<CommittedRow>> {
        let operations: Vec<_> = operations.iter().map(|id| Bytes::copy_from_slice(id.as_bytes())).collect();
        let statement = SqlStatement::new(include_str!("ledger/rows_of.sql")).all_bytes("operations", &operations);
        self.api.read(&statement).await?.iter().map(committed_row).collect()
    }
}

fn committed_row(row: &SqlList) -> Result<CommittedRow> {
    let unreadable = || Error::new(ErrorKind::Damaged, "a row of the ledger cannot be read");
    let [operation, namespace, verdict, rule, fingerprint] = columns::<5>(&row.values)?;
    let operation = <[u8; 16]>::try_from(&operation.as_bytes()?[..]).map_err(|_| unreadable())?;
    let rule = u8::try_from(rule.as_integer()?).map_err(|_| unreadable())?;
    let fingerprint = fingerprint.as_bytes()?[..].try_into().map_err(|_| unreadable())?;
    let verdict = match verdict.as_integer()? {
        1 => LedgerVerdict::Applied,
        2 => LedgerVerdict::Rejected,
        _ => return Err(unreadable()),
    };
    Ok(CommittedRow {
        operation: OperationId::from_bytes(operation),
        namespace: namespace.as_text()?.unwrap_or_default().to_owned(),
        fingerprint: Fingerprint::from_parts(Rule(rule), fingerprint),
        verdict,
    })
}

impl fmt::Debug for SpannerTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpannerTables").field("api", &self.api).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_makes_one_table_or_one_index() {
        let names: Vec<_> = TableStatement::all().iter().map(|it| (it.version, it.name().to_owned())).collect();
        let expected = [
            (2, "hapax_never"),
            (2, "hapax_ledger"),
            (2, "hapax_attempt"),
            (3, "hapax_outbox"),
            (3, "hapax_outbox_event"),
            (3, "hapax_outbox_open"),
            (3, "hapax_outbox_aside"),
            (3, "hapax_parked"),
            (3, "hapax_relay"),
        ];
        assert_eq!(names, expected.map(|(version, name)| (version, name.to_owned())));
        assert!(TableStatement::all().iter().all(|statement| !statement.text.contains("--")));
    }

    #[test]
    fn a_ledger_that_could_run_an_operation_twice_is_refused() {
        let key = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let whole = key(&["namespace", "operation"]);
        assert_eq!(ledger_findings(false, &whole), []);
        assert_eq!(ledger_findings(true, &whole).len(), 1);
        for other in [key(&["operation"]), key(&["created_at", "namespace", "operation"]), Vec::new()] {
            assert_eq!(ledger_findings(false, &other).len(), 1, "{other:?}");
        }
    }

    #[test]
    fn a_policy_that_removes_what_is_needed_is_refused() {
        let finding = |table: &str, policy: &str| policy_finding(&(table.to_owned(), policy.to_owned()));
        assert_eq!(finding("hapax_ledger", "OLDER_THAN(created_at, INTERVAL 90 DAY)"), None);
        assert_eq!(finding("hapax_outbox", "OLDER_THAN(published_at, INTERVAL 1 DAY)"), None);
        assert_eq!(finding("hapax_record", "OLDER_THAN(expires_at, INTERVAL 1 DAY)"), None);
        for (table, policy) in [
            ("hapax_ledger", "OLDER_THAN(created_at, INTERVAL 13 DAY)"),
            ("hapax_ledger", "TRUE"),
            ("hapax_outbox", "OLDER_THAN(created_at, INTERVAL 90 DAY)"),
        ] {
            assert!(finding(table, policy).is_some(), "{table} {policy}");
        }
    }
}

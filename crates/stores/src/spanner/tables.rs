//! The tables: how they are made, and what is wrong with them.

use std::time::Duration;

use hapax_core::store::{Finding, Severity};
use hapax_core::{Error, Result};

use super::answers::{SpannerFailure, SpannerResult};
use super::api::SpannerApi;
use super::messages::{
    AdminOperation, CreateDatabaseRequest, CreateInstanceRequest, InstanceSettings, SessionName, UpdateDdlRequest,
};
use super::values::{SqlStatement, columns};
use crate::errors::{not_applied, unusable};

/// The columns of the table of the records, and their types.
const COLUMNS: [(&str, &str); 4] =
    [("rk", "BYTES(16)"), ("value", "BYTES(2097152)"), ("armed_at", "TIMESTAMP"), ("expires_at", "TIMESTAMP")];

/// The pause between two looks at work of the service.
const POLL: Duration = Duration::from_millis(500);

/// How long the service may take to change tables.
const PATIENCE: Duration = Duration::from_secs(600);

/// The columns, the key and the row deletion policy of the table of the records.
#[derive(Debug)]
pub(super) struct RecordTableState {
    /// The name and the type of each. Empty if there is no table.
    columns: Vec<(String, String)>,
    /// The columns of the primary key.
    key: Vec<String>,
    /// Which rows Spanner removes, as it says it. Empty if none.
    policy: String,
}

impl RecordTableState {
    pub(super) async fn read(api: &SpannerApi) -> Result<Self> {
        let rows = api.read(&SqlStatement::new(include_str!("migrations/columns.sql"))).await?;
        let mut found = Vec::new();
        for row in &rows {
            let [name, column_type] = columns::<2>(&row.values)?;
            let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
            found.push((text(name.as_text()?), text(column_type.as_text()?)));
        }
        let policy = api.read(&SqlStatement::new(include_str!("migrations/policy.sql"))).await?;
        let policy = policy.first().map(|row| columns::<1>(&row.values)?[0].as_text()).transpose()?.flatten();
        let rows = api.read(&SqlStatement::new(include_str!("migrations/key.sql"))).await?;
        let key = rows.iter().map(|row| Ok(columns::<1>(&row.values)?[0].as_text()?.unwrap_or_default().to_owned()));
        Ok(Self { columns: found, key: key.collect::<Result<_>>()?, policy: policy.unwrap_or_default().to_owned() })
    }

    pub(super) fn exists(&self) -> bool {
        !self.columns.is_empty()
    }

    /// Whether Spanner removes rows.
    pub(super) fn removes_expired(&self) -> bool {
        !self.policy.is_empty()
    }

    /// Whether the policy removes only rows whose record has expired: `OLDER_THAN(expires_at, INTERVAL 1 DAY)`.
    fn keeps_live_records(&self) -> bool {
        kept_days(&self.policy, "expires_at").is_some()
    }

    /// The statements that make what is missing.
    pub(super) fn missing(&self) -> Vec<String> {
        let statement = match (self.exists(), self.removes_expired()) {
            (true, true) => return Vec::new(),
            (true, false) => include_str!("migrations/0001_records_policy.sql"),
            (false, _) => include_str!("migrations/0001_records.sql"),
        };
        vec![without_comments(statement)]
    }

    /// Findings about a table that endangers the guarantee, or costs more than it should.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let has = |(name, column_type): &(&str, &str)| {
            self.columns.iter().any(|(found, found_type)| found == name && found_type == column_type)
        };
        let (severity, message) = if !self.exists() {
            (Severity::Refuse, "the table hapax_record is missing: run `hapax migrate`")
        } else if !COLUMNS.iter().all(has) {
            let why = "the table hapax_record has other columns: another program or a later release made it";
            (Severity::Refuse, why)
        } else if self.key != ["rk"] {
            let why = "the primary key of hapax_record is not rk, so a key could be granted twice: make the table anew";
            (Severity::Refuse, why)
        } else if !self.removes_expired() {
            let why = "the table hapax_record has no row deletion policy, so sweeps read the whole table: run `hapax \
                       migrate`";
            (Severity::Warn, why)
        } else if !self.keeps_live_records() {
            let why = "the row deletion policy of hapax_record removes records before their end: replace it by \
                       OLDER_THAN(expires_at, INTERVAL 1 DAY)";
            (Severity::Refuse, why)
        } else {
            return Vec::new();
        };
        vec![Finding { severity, message: message.into() }]
    }
}

/// Makes what is missing, and waits until it is there. Returns whether it changed anything. An emulator has no
/// database yet when it starts, so it gets one.
pub(super) async fn create(api: &SpannerApi) -> Result<bool> {
    if !api.url().is_google() {
        create_database(api).await?;
    }
    let statements = RecordTableState::read(api).await?.missing();
    if statements.is_empty() {
        return Ok(false);
    }
    let changed = change(api, statements).await;
    // Another process may have made it meanwhile; the next look says so.
    if let Err(error) = changed
        && !RecordTableState::read(api).await?.missing().is_empty()
    {
        return Err(error);
    }
    Ok(true)
}

/// Runs statements that change tables, and waits for their end.
pub(super) async fn change(api: &SpannerApi, statements: Vec<String>) -> Result<()> {
    let database = api.url().database_name();
    let request = UpdateDdlRequest { database: database.clone(), statements };
    let path = "/google.spanner.admin.database.v1.DatabaseAdmin/UpdateDatabaseDdl";
    let begun = api.administer(path, ("database", database), request).await;
    finish(api, begun).await.map_err(SpannerFailure::into_error)
}

/// The days for which this row deletion policy keeps a row after the time in this column. None if it is no policy of
/// that form.
pub(super) fn kept_days(policy: &str, column: &str) -> Option<u64> {
    let written = policy.to_ascii_lowercase().replace([' ', '`'], "");
    let days = written.strip_prefix(&format!("older_than({column},interval"))?.strip_suffix("day)")?;
    days.bytes().all(|byte| byte.is_ascii_digit()).then(|| days.parse().ok()).flatten()
}

/// Statements without the lines that are comments.
pub(super) fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n")
}

/// Makes the instance and the database of an emulator, which has none when it starts.
pub(super) async fn create_database(api: &SpannerApi) -> Result<()> {
    let (url, parent) = (api.url(), format!("projects/{}", api.url().project()));
    let (name, config) = (url.instance_name(), format!("{parent}/instanceConfigs/emulator-config"));
    let display_name = url.instance().to_owned();
    let instance = Some(InstanceSettings { name, config, display_name, node_count: 1 });
    let request = CreateInstanceRequest { parent: parent.clone(), instance_id: url.instance().to_owned(), instance };
    let path = "/google.spanner.admin.instance.v1.InstanceAdmin/CreateInstance";
    let begun = api.administer(path, ("parent", parent), request).await;
    unless_there(finish(api, begun).await)?;
    let (parent, create_statement) =
        (url.instance_name(), include_str!("migrations/create_database.sql").trim().replace("NAME", url.database()));
    let request = CreateDatabaseRequest { parent: parent.clone(), create_statement };
    let path = "/google.spanner.admin.database.v1.DatabaseAdmin/CreateDatabase";
    let begun = api.administer(path, ("parent", parent), request).await;
    unless_there(finish(api, begun).await)
}

fn unless_there(created: SpannerResult<()>) -> Result<()> {
    match created {
        Ok(()) | Err(SpannerFailure::RowExists(_)) => Ok(()),
        Err(failure) => Err(failure.into_error()),
    }
}

/// Waits for the end of work that the service does in the background.
async fn finish(api: &SpannerApi, begun: SpannerResult<AdminOperation>) -> SpannerResult<()> {
    let (mut operation, since) = (begun?, api.runtime().boottime_now());
    while !operation.done {
        if api.runtime().boottime_now().saturating_sub(since) > PATIENCE {
            return Err(SpannerFailure::Failed(not_applied("Spanner is still changing the tables; look again later")));
        }
        api.runtime().sleep(POLL).await;
        let (name, path) = (operation.name.clone(), "/google.longrunning.Operations/GetOperation");
        operation = api.administer(path, ("name", name.clone()), SessionName { name }).await?;
    }
    let failed = |message: String| Error::new(hapax_core::ErrorKind::Unusable, message);
    operation.error.map_or(Ok(()), |error| {
        let what = unusable("Spanner does not make the tables").caused_by(failed(error.message));
        Err(SpannerFailure::Failed(what))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "OLDER_THAN(expires_at, INTERVAL 1 DAY)";

    fn state(columns: &[(&str, &str)], policy: &str) -> RecordTableState {
        let columns = columns.iter().map(|(name, column_type)| ((*name).to_owned(), (*column_type).to_owned()));
        RecordTableState { columns: columns.collect(), key: vec!["rk".to_owned()], policy: policy.to_owned() }
    }

    fn is_refused(state: &RecordTableState) -> bool {
        matches!(&state.findings()[..], [Finding { severity: Severity::Refuse, .. }])
    }

    #[test]
    fn a_table_with_other_columns_is_refused_and_one_that_keeps_what_has_expired_is_worth_a_warning() {
        assert_eq!(state(&COLUMNS, POLICY).findings(), []);
        assert!(matches!(&state(&COLUMNS, "").findings()[..], [Finding { severity: Severity::Warn, .. }]));
        let others = [&COLUMNS[..3], &[("rk", "STRING(16)"), COLUMNS[1], COLUMNS[2], COLUMNS[3]], &[]];
        for columns in others {
            assert!(is_refused(&state(columns, POLICY)), "{columns:?}");
        }
    }

    #[test]
    fn a_table_that_loses_live_records_or_has_a_key_twice_is_refused() {
        for policy in ["OLDER_THAN(armed_at, INTERVAL 1 DAY)", "OLDER_THAN(expires_at, INTERVAL -1 DAY)", "TRUE"] {
            assert!(is_refused(&state(&COLUMNS, policy)), "{policy}");
        }
        assert_eq!(state(&COLUMNS, "older_than(`expires_at`, interval 30 day)").findings(), []);
        for key in [&["rk", "armed_at"][..], &["expires_at"], &[]] {
            let key = key.iter().map(|column| (*column).to_owned()).collect();
            assert!(is_refused(&RecordTableState { key, ..state(&COLUMNS, POLICY) }));
        }
    }

    #[test]
    fn a_migration_is_a_statement_without_comments() {
        let has = |state: RecordTableState, words: &str| {
            let missing = state.missing();
            assert!(missing.len() == 1 && missing[0].contains(words) && !missing[0].contains("--"), "{missing:?}");
        };
        has(state(&[], ""), "TABLE hapax_record (");
        has(state(&COLUMNS, ""), "TABLE hapax_record ADD ROW DELETION POLICY");
        assert_eq!(state(&COLUMNS, POLICY).missing(), Vec::<String>::new());
    }
}

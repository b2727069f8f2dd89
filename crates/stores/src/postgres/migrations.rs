//! The versions of the schema. Each is one file, and is applied once and as a whole; there is no way back.

mod mutated;

use hapax_core::{Error, ErrorKind};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, IsolationLevel, Row, Transaction};

use super::PostgresUrl;
use super::call_error::{PostgresCallError, PostgresDriverError};
use super::pool::{ConnectionPool, Parameter};
use super::schema::Schema;
use super::trust;
use mutated::mutated;

/// One version of the schema.
#[derive(Debug)]
pub(crate) struct Migration {
    pub(crate) version: i32,
    /// A release must know at least this version to use the tables once this one is applied. It is an earlier one where
    /// the version only adds what earlier releases do not look at: their processes then run on.
    pub(crate) needs: i32,
    /// The tables have no schema in their names: `apply` sets the search path. What another role may have created in
    /// that schema must not be called: a function whose arguments are converted names its schema. The body of a
    /// function names the schema of the tables as `"SCHEMA"`.
    pub(crate) sql: &'static str,
}

/// All versions, in order.
pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, needs: 1, sql: include_str!("migrations/0001_records.sql") },
    Migration { version: 2, needs: 2, sql: include_str!("migrations/0002_ledger.sql") },
    Migration { version: 3, needs: 3, sql: include_str!("migrations/0003_dead.sql") },
    Migration { version: 4, needs: 4, sql: include_str!("migrations/0004_outbox.sql") },
    Migration { version: 5, needs: 5, sql: include_str!("migrations/0005_ledger_functions.sql") },
    Migration { version: 6, needs: 6, sql: include_str!("migrations/0006_outbox_attributes.sql") },
    Migration { version: 7, needs: 7, sql: include_str!("migrations/0007_dead_keys.sql") },
    Migration { version: 8, needs: 8, sql: include_str!("migrations/0008_ledger_guard.sql") },
];

/// The versions that the schema lacks. None means that the schema can be used.
///
/// # Errors
/// `Unusable` if the schema has a version that needs a newer release than this one, or somebody else could change what
/// the statements of Hapax do.
pub(crate) async fn missing(client: &Client, schema: &Schema) -> Result<Vec<&'static Migration>, PostgresCallError> {
    trust::verify(client, schema).await?;
    let exists = has_name(client, include_str!("migrations/has_table.sql"), schema).await?;
    let applied = if exists { applied(client, schema).await? } else { Vec::new() };
    let known = MIGRATIONS.last().map_or(0, |newest| newest.version);
    if let Some(newer) = applied.iter().find(|applied| applied.version > known && applied.needs > known) {
        let AppliedVersion { version, needs } = newer;
        return Err(PostgresCallError::Judged(Error::new(
            ErrorKind::Unusable,
            format!(
                "the schema {schema} has version {version}, which needs a release that knows version {needs}, and this \
                 release knows {known}; use the release that wrote it, or a newer one"
            ),
        )));
    }
    let is_applied = |version: i32| applied.iter().any(|applied| applied.version == version);
    Ok(MIGRATIONS.iter().filter(|migration| !is_applied(migration.version)).collect())
}

/// A version that a schema has.
struct AppliedVersion {
    version: i32,
    needs: i32,
}

async fn applied(client: &Client, schema: &Schema) -> Result<Vec<AppliedVersion>, PostgresCallError> {
    let select = schema.qualify(include_str!("migrations/applied.sql"));
    let rows: Vec<Row> = client.query_typed(&select, &[]).await.map_err(PostgresCallError::Sent)?;
    let column = |row: &Row, name| row.try_get(name).map_err(PostgresCallError::Sent);
    rows.iter()
        .map(|row| Ok(AppliedVersion { version: column(row, "version")?, needs: column(row, "needs")? }))
        .collect()
}

/// Makes the tables usable for a handle: brings the schema to the newest version, or, where the handle must not write
/// to it, finds out that it has all versions.
///
/// # Errors
/// As [`apply`]. `Unusable` if the handle may not migrate, and the schema lacks a version.
///
/// # Cancel safety
/// As [`apply_on`].
pub(crate) async fn prepare(pool: &ConnectionPool, url: &PostgresUrl) -> Result<(), PostgresCallError> {
    if url.migrates {
        return apply_on(pool, &url.schema).await.map(drop);
    }
    let connection = pool.get().await?;
    let missing = missing(&connection, &url.schema).await?;
    if missing.is_empty() {
        return Ok(());
    }
    let versions: Vec<String> = missing.iter().map(|migration| migration.version.to_string()).collect();
    Err(PostgresCallError::Judged(Error::new(
        ErrorKind::Unusable,
        format!(
            "the schema {} lacks version {}, and this command changes no tables; use the release that the running \
             processes have, or run `hapax migrate --database URL` first",
            url.schema,
            versions.join(", ")
        ),
    )))
}

/// Whether the query finds something for the name of the schema.
async fn has_name(client: &Client, query: &str, schema: &Schema) -> Result<bool, PostgresCallError> {
    let rows = client.query_typed(query, &[(&schema.name(), Type::TEXT)]).await.map_err(PostgresCallError::Sent)?;
    Ok(!rows.is_empty())
}

/// As [`apply`], on a connection of this pool.
///
/// # Errors
/// As [`apply`].
///
/// # Cancel safety
/// If the future is dropped, either all missing versions are applied or none.
pub(crate) async fn apply_on(pool: &ConnectionPool, schema: &Schema) -> Result<Vec<i32>, PostgresCallError> {
    let mut connection = pool.get().await?;
    let applied = apply(&mut connection, schema).await;
    if applied.is_err() {
        // It may be in the middle of a transaction.
        connection.discard();
    }
    applied
}

/// Brings the schema to the newest version, and creates it if it does not exist. All versions are one transaction.
/// Several processes may do this at the same time: each waits for the one before.
///
/// # Errors
/// As for every statement. `Unusable` without the right to create tables, or if a name is taken.
///
/// # Cancel safety
/// If the future is dropped, either all missing versions are applied or none.
async fn apply(client: &mut Client, schema: &Schema) -> Result<Vec<i32>, PostgresCallError> {
    /// Processes that create the first table at once wait for each other, and all but one of them begin anew.
    const TRIES: usize = 20;
    if missing(client, schema).await?.is_empty() {
        return Ok(Vec::new());
    }
    for _ in 1..TRIES {
        match apply_once(client, schema).await {
            Err(PostgresCallError::Sent(error)) if is_created_meanwhile(&error) => {}
            ended => return ended,
        }
    }
    apply_once(client, schema).await.map_err(|error| match error {
        PostgresCallError::Sent(error) => creation_error(error),
        judged @ (PostgresCallError::Judged(_) | PostgresCallError::NotConnected(_)) => judged,
    })
}

/// Whether another process has just created the schema or the table of versions.
fn is_created_meanwhile(error: &tokio_postgres::Error) -> bool {
    const CREATED: [SqlState; 4] =
        [SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_SCHEMA, SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_OBJECT];
    error.code().is_some_and(|code| CREATED.contains(code))
}

async fn apply_once(client: &mut Client, schema: &Schema) -> Result<Vec<i32>, PostgresCallError> {
    // Under a stricter level, the statements after the lock would not see what the process before has committed.
    let transaction = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start();
    let transaction = transaction.await.map_err(PostgresCallError::Sent)?;
    begin_alone(&transaction, schema).await?;
    let missing = missing(transaction.client(), schema).await?;
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let run = async |sql: &str| transaction.batch_execute(sql).await.map_err(creation_error);
    for migration in &missing {
        run(&schema.replace_in(&mutated(migration.version, migration.sql))).await?;
        let version: [Parameter<'_>; 2] = [(&migration.version, Type::INT4), (&migration.needs, Type::INT4)];
        let added = transaction.query_typed(include_str!("migrations/add_version.sql"), &version).await;
        added.map_err(PostgresCallError::Sent)?;
    }
    transaction.commit().await.map_err(PostgresCallError::Sent)?;
    Ok(missing.iter().map(|migration| migration.version).collect())
}

/// Takes the lock of the migrations. It is one on a table of Hapax, which is created if it is missing: an advisory lock
/// could be held by every role that may connect.
async fn begin_alone(transaction: &Transaction<'_>, schema: &Schema) -> Result<(), PostgresCallError> {
    // The caller tells apart what another process has created meanwhile.
    let create = async |sql: &str| transaction.batch_execute(sql).await.map_err(locking_error);
    create(include_str!("migrations/lock_timeout.sql")).await?;
    if !has_name(transaction.client(), include_str!("migrations/has_schema.sql"), schema).await? {
        create(&schema.replace_in(include_str!("migrations/create_schema.sql"))).await?;
    }
    create(&set_path(schema)).await?;
    create(include_str!("migrations/create_versions.sql")).await?;
    // Another role may have created the table at this moment.
    trust::verify(transaction.client(), schema).await?;
    create(include_str!("migrations/lock.sql")).await
}

/// Says what a migration has waited for in vain.
fn locking_error(error: tokio_postgres::Error) -> PostgresCallError {
    const LOCKED: &str = "another session has held a lock that the migration needs for 15s, and nothing was changed; \
                          pg_locks and pg_stat_activity show which one, and a later try may succeed";
    if error.code() != Some(&SqlState::LOCK_NOT_AVAILABLE) {
        return PostgresCallError::Sent(error);
    }
    let locked = Error::new(ErrorKind::NotApplied, LOCKED);
    PostgresCallError::Judged(locked.caused_by(PostgresDriverError(error)))
}

/// A table has what the migration cannot change.
const UNFINISHED: SqlState = SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE;

const NAME_TAKEN: &str = "another object in the schema has a name that Hapax needs; drop or rename that object, or use \
    another schema";

/// A type, an index or a function that is no part of Hapax stays until an operator removes it. What a migration raises
/// itself says what to do.
fn creation_error(error: tokio_postgres::Error) -> PostgresCallError {
    const TAKEN: [SqlState; 3] = [SqlState::DUPLICATE_OBJECT, SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_FUNCTION];
    if error.code().is_some_and(|code| TAKEN.contains(code)) {
        let taken = Error::new(ErrorKind::Unusable, NAME_TAKEN);
        return PostgresCallError::Judged(taken.caused_by(PostgresDriverError(error)));
    }
    let raised = [(SqlState::OBJECT_IN_USE, ErrorKind::NotApplied), (UNFINISHED, ErrorKind::Unusable)];
    if let Some(reply) = error.as_db_error()
        && let Some((_, kind)) = raised.into_iter().find(|(code, _)| code == reply.code())
    {
        let message = format!("{}; {}", reply.message(), reply.hint().unwrap_or_default());
        return PostgresCallError::Judged(Error::new(kind, message).caused_by(PostgresDriverError(error)));
    }
    locking_error(error)
}

/// Whether the tables cannot be created because another object has the name of one of their parts.
pub(super) fn is_name_taken(error: &Error) -> bool {
    error.to_string() == NAME_TAKEN
}

/// Tables are created in the schema, and nothing is found in the session's own schema before the system's.
fn set_path(schema: &Schema) -> String {
    format!("set local search_path to {schema}, pg_temp")
}

/// A script that applies the missing versions in one transaction, for `psql`.
///
/// # Errors
/// As [`missing`].
pub(crate) async fn script(client: &Client, schema: &Schema) -> Result<String, PostgresCallError> {
    let missing = missing(client, schema).await?;
    let has_schema = has_name(client, include_str!("migrations/has_schema.sql"), schema).await?;
    let create_schema = schema.replace_in(include_str!("migrations/create_schema.sql"));
    let mut script = format!("begin;\n\n{};\n\n", include_str!("migrations/lock_timeout.sql").trim_end());
    if !has_schema {
        script += &format!("{};\n\n", create_schema.trim_end());
    }
    script += &format!("{};\n\n{}\n", set_path(schema), include_str!("migrations/create_versions.sql"));
    script += &format!("{};\n", include_str!("migrations/lock.sql").trim_end());
    for Migration { version, needs, sql } in missing {
        let sql = schema.replace_in(sql);
        script += &format!("\n{sql}\ninsert into hapax_migration (version, needs) values ({version}, {needs});\n");
    }
    script += "\ncommit;\n";
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_no_gap() {
        assert!(MIGRATIONS.iter().zip(1..).all(|(migration, version)| migration.version == version));
        assert!(MIGRATIONS.iter().all(|migration| (1..=migration.version).contains(&migration.needs)));
    }
}

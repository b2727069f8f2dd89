//! The versions of the schema. Each is one file, and is applied once and as a whole; there is no way back.

use hapax_core::{Error, ErrorKind};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, IsolationLevel, Row};

use super::call_error::PostgresCallError;
use super::pool::Parameter;
use super::schema::Schema;

/// One version of the schema.
#[derive(Debug)]
pub(crate) struct Migration {
    pub(crate) version: i32,
    /// The tables have no schema in their names: `apply` sets the search path.
    pub(crate) sql: &'static str,
}

/// All versions, in order.
pub(crate) const MIGRATIONS: &[Migration] =
    &[Migration { version: 1, sql: include_str!("migrations/0001_records.sql") }];

/// The versions that the schema lacks. None means that the schema can be used.
///
/// # Errors
/// `Unusable` if the schema has a version that this release does not know.
pub(crate) async fn missing(client: &Client, schema: &Schema) -> Result<Vec<&'static Migration>, PostgresCallError> {
    let exists = has_name(client, include_str!("migrations/has_table.sql"), schema).await?;
    let applied = if exists { applied(client, schema).await? } else { Vec::new() };
    let known = MIGRATIONS.last().map_or(0, |newest| newest.version);
    if let Some(newer) = applied.iter().find(|version| **version > known) {
        return Err(PostgresCallError::Judged(Error::new(
            ErrorKind::Unusable,
            format!(
                "the schema {schema} has version {newer} and this release knows {known}; use the release that wrote \
                 it, or a newer one"
            ),
        )));
    }
    Ok(MIGRATIONS.iter().filter(|migration| !applied.contains(&migration.version)).collect())
}

async fn applied(client: &Client, schema: &Schema) -> Result<Vec<i32>, PostgresCallError> {
    let select = schema.qualify(include_str!("migrations/applied.sql"));
    let rows: Vec<Row> = client.query_typed(&select, &[]).await.map_err(PostgresCallError::Sent)?;
    rows.iter().map(|row| row.try_get(0).map_err(PostgresCallError::Sent)).collect()
}

/// Whether the query finds something for the name of the schema.
async fn has_name(client: &Client, query: &str, schema: &Schema) -> Result<bool, PostgresCallError> {
    let rows = client.query_typed(query, &[(&schema.name(), Type::TEXT)]).await.map_err(PostgresCallError::Sent)?;
    Ok(!rows.is_empty())
}

/// Brings the schema to the newest version, and creates it if it does not exist. All versions are one transaction.
/// Several processes may do this at the same time: each waits for the one before.
///
/// # Errors
/// As for every statement. Without the right to create tables, `Unusable`.
///
/// # Cancel safety
/// If the future is dropped, either all missing versions are applied or none.
pub(crate) async fn apply(client: &mut Client, schema: &Schema) -> Result<(), PostgresCallError> {
    if missing(client, schema).await?.is_empty() {
        return Ok(());
    }
    // Under a stricter level, the statements after the lock would not see what the process before has committed.
    let transaction = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start();
    let transaction = transaction.await.map_err(PostgresCallError::Sent)?;
    let run = async |sql: &str| transaction.batch_execute(sql).await.map_err(PostgresCallError::Sent);
    run(include_str!("migrations/lock.sql")).await?;
    let missing = missing(transaction.client(), schema).await?;
    if missing.is_empty() {
        return Ok(());
    }
    if !has_name(transaction.client(), include_str!("migrations/has_schema.sql"), schema).await? {
        run(&schema.replace_in(include_str!("migrations/create_schema.sql"))).await?;
    }
    run(&format!("set local search_path to {schema}")).await?;
    run(include_str!("migrations/create_versions.sql")).await?;
    for migration in missing {
        run(migration.sql).await?;
        let version: Parameter<'_> = (&migration.version, Type::INT4);
        let added = transaction.query_typed(include_str!("migrations/add_version.sql"), &[version]).await;
        added.map_err(PostgresCallError::Sent)?;
    }
    transaction.commit().await.map_err(PostgresCallError::Sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_no_gap() {
        assert!(MIGRATIONS.iter().zip(1..).all(|(migration, version)| migration.version == version));
    }
}

//! Whether the tables of claims stop a COMMIT of what is not finished.

use hapax_core::store::{Finding, Severity};
use tokio_postgres::Client;

use crate::postgres::call_error::PostgresCallError;
use crate::postgres::schema::Schema;

/// The faults of the tables of claims. A database without these tables, and a standby, have none. The role needs
/// `SELECT` on `hapax_guard` and `hapax_open`.
///
/// # Errors
/// As for every statement.
pub(in crate::postgres) async fn findings(client: &Client, schema: &Schema) -> Result<Vec<Finding>, PostgresCallError> {
    let sql = schema.qualify(include_str!("has_guard.sql"));
    let row = client.query_typed_one(&sql, &[]).await.map_err(PostgresCallError::Sent)?;
    if !row.try_get("has_guard").map_err(PostgresCallError::Sent)? {
        return Ok(Vec::new());
    }
    let sql = schema.qualify(include_str!("guard.sql"));
    let rows = client.query_typed(&sql, &[]).await.map_err(PostgresCallError::Sent)?;
    let findings = rows.iter().map(|row| {
        let (fault, name): (&str, &str) = (row.try_get("fault")?, row.try_get("name")?);
        let message = format!("{name} {fault}, so that an effect could be committed without its row; {REMEDY}");
        Ok(Finding { severity: Severity::Refuse, message })
    });
    findings.collect::<Result<_, _>>().map_err(PostgresCallError::Sent)
}

const REMEDY: &str = "find out who has changed it, look for effects without a row, and restore the table as `hapax \
    migrate --print` has it, without rows";

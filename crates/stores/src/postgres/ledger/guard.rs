//! Whether the tables of claims stop a COMMIT of what is not finished, and whether they stay small.

use hapax_core::store::{Finding, Severity};
use hapax_core::telemetry;
use tokio_postgres::{Client, Error, Row};

use crate::postgres::call_error::PostgresCallError;
use crate::postgres::schema::Schema;

/// How many dead rows are too many. Vacuum looks after the tables each minute by default, and at 5,000 transactions a
/// second it finds a third of that.
const MANY_DEAD_ROWS: i64 = 1_000_000;

/// The faults of the tables of claims, and whether they grow. A database without these tables, and a standby, have
/// none. A role without `SELECT` on both tables learns nothing about their rows. Sets the metric of their size.
///
/// # Errors
/// As for every statement.
pub(in crate::postgres) async fn findings(client: &Client, schema: &Schema) -> Result<Vec<Finding>, PostgresCallError> {
    read_findings(client, schema).await.map_err(PostgresCallError::Sent)
}

async fn read_findings(client: &Client, schema: &Schema) -> Result<Vec<Finding>, Error> {
    let query = async |sql: &str| client.query_typed(&schema.qualify(sql), &[]).await;
    let state = client.query_typed_one(&schema.qualify(include_str!("guard_state.sql")), &[]).await?;
    if !state.try_get("has_guard")? {
        return Ok(Vec::new());
    }
    telemetry::ledger_claims_size(state.try_get::<_, i64>("bytes")?.unsigned_abs());
    let mut faults = query(include_str!("guard.sql")).await?;
    if state.try_get("is_readable")? {
        faults.extend(query(include_str!("guard_rows.sql")).await?);
    }
    let mut findings: Vec<Finding> = faults.iter().map(fault).collect::<Result<_, _>>()?;
    findings.extend(growth(state.try_get("dead_rows")?));
    Ok(findings)
}

fn fault(row: &Row) -> Result<Finding, Error> {
    let (fault, name): (&str, &str) = (row.try_get("fault")?, row.try_get("name")?);
    let message = format!("{name} {fault}, so that an effect could be committed without its row; {REMEDY}");
    Ok(Finding { severity: Severity::Refuse, message })
}

fn growth(dead_rows: i64) -> Option<Finding> {
    (dead_rows > MANY_DEAD_ROWS).then(|| Finding { severity: Severity::Warn, message: GROWTH.to_owned() })
}

const REMEDY: &str = "find out who has changed it, look for effects without a row, and restore the table as `hapax \
    migrate --print` has it, without rows";

const GROWTH: &str = "the tables of claims, hapax_guard and hapax_open, have more than a million dead rows that vacuum \
    has not removed; end what has held an old snapshot for long: see backend_xmin in pg_stat_activity, \
    pg_prepared_xacts and xmin in pg_replication_slots. If there is nothing, turn autovacuum on";

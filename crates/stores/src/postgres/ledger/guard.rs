//! Whether the tables of claims stop a COMMIT of what is not finished, and whether they stay small.

use hapax_core::store::{Finding, Severity};
use hapax_core::telemetry;
use tokio_postgres::{Client, Error, Row};

use crate::postgres::call_error::PostgresCallError;
use crate::postgres::schema::Schema;

/// How many dead rows are too many. Vacuum looks after the tables each minute by default, and at 5,000 transactions a
/// second it finds a third of that.
const MANY_DEAD_ROWS: i64 = 1_000_000;

/// How large the tables may be to be searched for rows: 128 MiB. They have two and a half million dead rows then, which
/// the server reads in some tenths of a second. A search that takes longer than a check may would fail the check.
const MOST_SEARCHED_BYTES: i64 = 128 << 20;

/// The faults of the tables of claims, and whether they grow. A database without these tables, and a standby, have
/// none. A role without `SELECT` on both tables learns nothing about their rows, and nobody does while the tables are
/// too large. Sets the metric of their size.
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
    let bytes: i64 = state.try_get("bytes")?;
    let is_too_large = bytes > MOST_SEARCHED_BYTES;
    telemetry::ledger_claims_size(bytes.unsigned_abs());
    let mut faults = query(include_str!("guard.sql")).await?;
    let is_readable: bool = state.try_get("is_readable")?;
    if is_readable && !is_too_large {
        faults.extend(query(include_str!("guard_rows.sql")).await?);
    }
    let mut findings: Vec<Finding> = faults.iter().map(fault).collect::<Result<_, _>>()?;
    let has_many_dead_rows = state.try_get::<_, i64>("dead_rows")? > MANY_DEAD_ROWS;
    findings.extend(has_many_dead_rows.then(|| warning(GROWTH)));
    findings.extend(is_too_large.then(|| warning(NOT_SEARCHED)));
    Ok(findings)
}

fn fault(row: &Row) -> Result<Finding, Error> {
    let (fault, name): (&str, &str) = (row.try_get("fault")?, row.try_get("name")?);
    let message = format!("{name} {fault}, so that an effect could be committed without its row; {REMEDY}");
    Ok(Finding { severity: Severity::Refuse, message })
}

fn warning(message: &str) -> Finding {
    Finding { severity: Severity::Warn, message: message.to_owned() }
}

const REMEDY: &str = "find out who has changed it, look for effects without a row, and restore the table as `hapax \
    migrate --print` has it, without rows";

const GROWTH: &str = "the tables of claims, hapax_guard and hapax_open, have more than a million dead rows that vacuum \
    has not removed; end what has held an old snapshot for long: see backend_xmin in pg_stat_activity, \
    pg_prepared_xacts and xmin in pg_replication_slots. If there is nothing, turn autovacuum on";

const NOT_SEARCHED: &str = "the tables of claims, hapax_guard and hapax_open, have more than 128 MiB, so that they are \
    not searched for a claim that was committed without its end; when nothing holds an old snapshot any more, run \
    `vacuum full` for both";

use std::error::Error as StdError;
use std::sync::Arc;

use hapax_core::OperationId;
use hapax_core::ledger::{Call, Fault, FaultKind, Finished, FoundRow, OutboxRow, Transaction, Tried, TriedClaims};
use sqlx::postgres::{PgArguments, PgDatabaseError, PgRow, Postgres};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use super::uuid::SqlxUuid;
use crate::ledger_row::{FinishedRow, headers, keys_in_commit_order, verdict_number};
use crate::schema::Schema;
use crate::sql_state::fault_kind;

/// The texts of the statements, with the tables in their schema. They are those of the other driver.
#[derive(Debug)]
pub(super) struct SqlxSql {
    claim: Arc<str>,
    claim_one: Arc<str>,
    read: Arc<str>,
    emit: Arc<str>,
    order: Arc<str>,
    finish: Arc<str>,
}

impl SqlxSql {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            claim: schema.qualify(include_str!("../postgres/ledger/claim.sql")).into(),
            claim_one: schema.qualify(include_str!("../postgres/ledger/claim_one.sql")).into(),
            read: schema.qualify(include_str!("../postgres/ledger/read.sql")).into(),
            emit: schema.qualify(include_str!("../postgres/ledger/emit.sql")).into(),
            order: schema.qualify(include_str!("../postgres/ledger/order.sql")).into(),
            finish: schema.qualify(include_str!("../postgres/ledger/finish.sql")).into(),
        }
    }
}

/// The statements of the ledger in the open transaction of a connection.
pub(super) struct SqlxStatements<'t> {
    sql: &'t SqlxSql,
    connection: &'t mut PgConnection,
}

impl<'t> SqlxStatements<'t> {
    pub(super) fn new(sql: &'t SqlxSql, connection: &'t mut PgConnection) -> Self {
        Self { sql, connection }
    }

    async fn rows(&mut self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, Fault> {
        query.fetch_all(&mut *self.connection).await.map_err(fault)
    }

    async fn execute(&mut self, sql: &'static str) -> Result<(), Fault> {
        self.connection.execute(sql).await.map(drop).map_err(fault)
    }

    /// Claims one operation by a plain insertion. None: it was not inserted.
    async fn claim_one(&mut self, namespace: &str, call: Call) -> Result<Option<TriedClaims>, Fault> {
        let fingerprint = call.newest_fingerprint();
        let query = statement(&self.sql.claim_one)
            .bind(namespace)
            .bind(SqlxUuid::from(call.operation()))
            .bind(i16::from(fingerprint.rule().0))
            .bind(&fingerprint.as_bytes()[..]);
        let rows = self.rows(query).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let transaction = row.try_get::<i64, _>("transaction").map_err(fault)?.cast_unsigned();
        Ok(Some(TriedClaims { transaction: Some(transaction), tries: vec![Tried::Inserted] }))
    }

    /// Claims one operation. Each is a statement of its own: a caller claims one at a time.
    async fn try_claim(&mut self, namespace: &str, call: Call) -> Result<TriedClaims, Fault> {
        if let Some(claimed) = self.claim_one(namespace, call).await? {
            return Ok(claimed);
        }
        let fingerprint = call.newest_fingerprint();
        let query = statement(&self.sql.claim)
            .bind(namespace)
            .bind(vec![SqlxUuid::from(call.operation())])
            .bind(vec![i16::from(fingerprint.rule().0)])
            .bind(vec![fingerprint.as_bytes().to_vec()]);
        let rows = self.rows(query).await?;
        let Some(row) = rows.first() else {
            return Ok(TriedClaims { transaction: None, tries: vec![Tried::NotInserted] });
        };
        let is_inserted = row.try_get("is_inserted").map_err(fault)?;
        let transaction: Option<i64> = row.try_get("transaction").map_err(fault)?;
        let tried = if is_inserted { Tried::Inserted } else { Tried::Locked };
        Ok(TriedClaims { transaction: transaction.map(i64::cast_unsigned), tries: vec![tried] })
    }
}

/// A statement that is sent unnamed, as those of the other driver are: no plan outlives the state of the tables that it
/// was made for.
fn statement<'q>(sql: &Arc<str>) -> Query<'q, Postgres, PgArguments> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql))).persistent(false)
}

impl Transaction for SqlxStatements<'_> {
    async fn claim(&mut self, namespace: &str, calls: &[Call]) -> Result<TriedClaims, Fault> {
        let mut all = TriedClaims { transaction: None, tries: Vec::new() };
        for call in calls {
            let claimed = self.try_claim(namespace, *call).await?;
            all.transaction = claimed.transaction.or(all.transaction);
            all.tries.extend(claimed.tries);
        }
        Ok(all)
    }

    async fn read(&mut self, namespace: &str, operations: &[OperationId]) -> Result<Vec<FoundRow>, Fault> {
        let operations: Vec<SqlxUuid> = operations.iter().copied().map(SqlxUuid::from).collect();
        let rows = self.rows(statement(&self.sql.read).bind(namespace).bind(operations)).await?;
        rows.iter().map(|row| found(row).map_err(fault)).collect()
    }

    async fn savepoint(&mut self) -> Result<(), Fault> {
        self.execute("savepoint hapax_handler").await
    }

    async fn roll_back_to_savepoint(&mut self) -> Result<(), Fault> {
        self.execute("rollback to savepoint hapax_handler").await
    }

    async fn emit(&mut self, namespace: &str, rows: &[OutboxRow]) -> Result<(), Fault> {
        fn column<'r, T>(rows: &'r [OutboxRow], value: impl Fn(&'r OutboxRow) -> T) -> Vec<T> {
            rows.iter().map(value).collect()
        }
        let keys = keys_in_commit_order(rows);
        if !keys.is_empty() {
            self.rows(statement(&self.sql.order).bind(keys)).await?;
        }
        let query = statement(&self.sql.emit)
            .bind(namespace)
            .bind(column(rows, |row| SqlxUuid::from(row.id)))
            .bind(column(rows, |row| SqlxUuid::from(row.operation)))
            .bind(column(rows, |row| row.number.cast_signed()))
            .bind(column(rows, |row| row.ordering_key.as_deref()))
            .bind(column(rows, |row| &*row.topic))
            .bind(column(rows, |row| row.kind.as_deref()))
            .bind(column(rows, |row| row.source.as_deref()))
            .bind(column(rows, |row| row.content_type.as_deref()))
            .bind(column(rows, headers))
            .bind(column(rows, |row| &row.payload[..]));
        self.rows(query).await.map(drop)
    }

    async fn finish(&mut self, namespace: &str, rows: &[Finished]) -> Result<usize, Fault> {
        let query = statement(&self.sql.finish)
            .bind(namespace)
            .bind(rows.iter().map(|row| SqlxUuid::from(row.operation)).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| verdict_number(row.verdict)).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| &row.answer[..]).collect::<Vec<_>>());
        Ok(self.rows(query).await?.len())
    }

    fn fault_of(error: &(dyn StdError + 'static)) -> Option<FaultKind> {
        Some(kind(error.downcast_ref()?))
    }
}

fn found(row: &PgRow) -> Result<FoundRow, sqlx::Error> {
    if row.try_get("is_claimed_here")? {
        return Ok(FoundRow::ClaimedHere);
    }
    if !row.try_get("is_found")? {
        return Ok(if row.try_get("is_dead")? { FoundRow::Dead } else { FoundRow::Nothing });
    }
    Ok(FoundRow::from(FinishedRow {
        rule: row.try_get("rule")?,
        verdict: row.try_get("verdict")?,
        fingerprint: row.try_get("fingerprint")?,
        answer: row.try_get("answer")?,
        transaction: row.try_get("transaction")?,
    }))
}

fn fault(error: sqlx::Error) -> Fault {
    Fault::new(kind(&error), error)
}

fn kind(error: &sqlx::Error) -> FaultKind {
    if let sqlx::Error::Database(error) = error {
        let error = error.downcast_ref::<PgDatabaseError>();
        return fault_kind(error.code(), error.routine());
    }
    // Without a reply: the connection broke, unless the driver could not read or write a value.
    let is_broken = matches!(error, sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::WorkerCrashed);
    if is_broken { FaultKind::Unavailable } else { FaultKind::Failed }
}

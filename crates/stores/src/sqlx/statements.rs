use std::error::Error as StdError;
use std::sync::Arc;

use hapax_core::OperationId;
use hapax_core::ledger::{Call, Fault, FaultKind, Finished, FoundRow, OutboxRow, Transaction, Tried, TriedClaims};
use sqlx::postgres::{PgArguments, PgRow, Postgres};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use super::faults::{fault, kind};
use super::uuid::SqlxUuid;
use crate::ledger_row::{FinishedRow, headers, keys_in_commit_order, own_claim};
use crate::schema::Schema;

/// The texts of the statements, with the tables in their schema. They are those of the other driver.
#[derive(Debug)]
pub(super) struct SqlxSql {
    pub(super) schema: Schema,
    claim_own: Arc<str>,
    done: Arc<str>,
    done_emit: Arc<str>,
    pub(super) read: Arc<str>,
    pub(super) order: Arc<str>,
    pub(super) claim: Arc<str>,
    pub(super) claim_one: Arc<str>,
    pub(super) finish: Arc<str>,
    pub(super) finish_one: Arc<str>,
    pub(super) finish_emit: Arc<str>,
    pub(super) count: Arc<str>,
}

impl SqlxSql {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            schema: schema.clone(),
            claim_own: schema.qualify(include_str!("../postgres/ledger/claim_own.sql")).into(),
            done: schema.qualify(include_str!("../postgres/ledger/done.sql")).into(),
            done_emit: schema.qualify(include_str!("../postgres/ledger/done_emit.sql")).into(),
            read: schema.qualify(include_str!("../postgres/ledger/read.sql")).into(),
            order: schema.qualify(include_str!("../postgres/ledger/order.sql")).into(),
            claim: schema.qualify(include_str!("../postgres/ledger/claim.sql")).into(),
            claim_one: schema.qualify(include_str!("../postgres/ledger/claim_one.sql")).into(),
            finish: schema.qualify(include_str!("../postgres/ledger/finish.sql")).into(),
            finish_one: schema.qualify(include_str!("../postgres/ledger/finish_one.sql")).into(),
            finish_emit: schema.qualify(include_str!("../postgres/ledger/finish_emit.sql")).into(),
            count: schema.qualify(include_str!("../postgres/ledger/count.sql")).into(),
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

    async fn claim_own(&mut self, namespace: &str, call: Call) -> Result<Tried, Fault> {
        let fingerprint = call.newest_fingerprint();
        let query = statement(&self.sql.claim_own)
            .bind(namespace)
            .bind(SqlxUuid::from(call.operation()))
            .bind(i16::from(fingerprint.rule().0))
            .bind(&fingerprint.as_bytes()[..]);
        let rows = self.rows(query).await?;
        let found = rows.first().map(|row| row.try_get("found")).transpose().map_err(fault)?;
        own_claim(found.unwrap_or_default())
    }

    /// Finishes one operation, and writes its events.
    async fn finish_own(&mut self, namespace: &str, row: &Finished, events: &[OutboxRow]) -> Result<(), Fault> {
        let sql = if events.is_empty() { &self.sql.done } else { &self.sql.done_emit };
        let query = statement(sql).bind(namespace).bind(SqlxUuid::from(row.operation)).bind(&row.answer[..]);
        let query = if events.is_empty() { query } else { bind_events(query, events) };
        self.rows(query).await.map(drop)
    }
}

/// A parameter with the same column of each row.
pub(super) fn column<'r, R, T>(rows: &'r [R], value: impl Fn(&'r R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

/// Binds the columns of events.
pub(super) fn bind_events<'q>(
    query: Query<'q, Postgres, PgArguments>,
    events: &'q [OutboxRow],
) -> Query<'q, Postgres, PgArguments> {
    query
        .bind(column(events, |row| SqlxUuid::from(row.id)))
        .bind(column(events, |row| SqlxUuid::from(row.operation)))
        .bind(column(events, |row| row.number.cast_signed()))
        .bind(column(events, |row| row.ordering_key.as_deref()))
        .bind(column(events, |row| &*row.topic))
        .bind(column(events, |row| row.kind.as_deref()))
        .bind(column(events, |row| row.source.as_deref()))
        .bind(column(events, |row| row.content_type.as_deref()))
        .bind(column(events, headers))
        .bind(column(events, |row| &row.payload[..]))
}

/// A statement that is sent unnamed, as those of the other driver are: no plan outlives the state of the tables that it
/// was made for.
pub(super) fn statement<'q>(sql: &Arc<str>) -> Query<'q, Postgres, PgArguments> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql))).persistent(false)
}

impl Transaction for SqlxStatements<'_> {
    /// Each operation is a statement of its own: a caller claims one at a time.
    async fn claim(&mut self, namespace: &str, calls: &[Call]) -> Result<TriedClaims, Fault> {
        let mut tries = Vec::with_capacity(calls.len());
        for call in calls {
            tries.push(self.claim_own(namespace, *call).await?);
        }
        Ok(TriedClaims { transaction: None, tries })
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

    async fn finish(&mut self, namespace: &str, rows: &[Finished], events: &[OutboxRow]) -> Result<usize, Fault> {
        let keys = keys_in_commit_order(events);
        if !keys.is_empty() {
            self.rows(statement(&self.sql.order).bind(keys)).await?;
        }
        let [row] = rows else {
            return Err(Fault::new(FaultKind::Failed, "a caller finishes one operation at a time"));
        };
        self.finish_own(namespace, row, events).await?;
        Ok(1)
    }

    fn fault_of(error: &(dyn StdError + 'static)) -> Option<FaultKind> {
        Some(kind(error.downcast_ref()?))
    }
}

/// Reads a row of the result of `read.sql`.
pub(super) fn found(row: &PgRow) -> Result<FoundRow, sqlx::Error> {
    if row.try_get("is_finished_here")? {
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

use std::collections::HashSet;
use std::error::Error as StdError;

use hapax_core::OperationId;
use hapax_core::ledger::{Call, Fault, FaultKind, Finished, FoundRow, OutboxRow, Transaction, TriedClaims};
use sqlx::postgres::{PgArguments, PgRow, Postgres};
use sqlx::query::Query;
use sqlx::{Executor, Row};
use tokio::sync::Mutex;

use crate::ledger_row::{ascending, guard_of_one, keys_in_commit_order, tries, verdict_number};
use crate::sqlx::faults::{fault, is_of_key, kind};
use crate::sqlx::statements::{SqlxSql, bind_events, column, found, statement};
use crate::sqlx::uuid::SqlxUuid;

/// The transaction of a runner. Its statements and the handler use it in turn.
pub(super) type SharedTransaction<'c> = Mutex<sqlx::Transaction<'c, Postgres>>;

/// The statements of a runner in its transaction, under READ COMMITTED. One guard row stands for all of its operations.
pub(super) struct RunnerStatements<'t, 'c> {
    sql: &'t SqlxSql,
    transaction: &'t SharedTransaction<'c>,
    /// The place of the guard row.
    guard: String,
}

impl<'t, 'c> RunnerStatements<'t, 'c> {
    pub(super) fn new(sql: &'t SqlxSql, transaction: &'t SharedTransaction<'c>) -> Self {
        Self { sql, transaction, guard: String::new() }
    }

    async fn rows(&self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut transaction = self.transaction.lock().await;
        query.fetch_all(&mut **transaction).await
    }

    async fn execute(&self, sql: &'static str) -> Result<(), Fault> {
        let mut transaction = self.transaction.lock().await;
        transaction.execute(sql).await.map(drop).map_err(fault)
    }

    async fn claim_rows(&self, query: Query<'_, Postgres, PgArguments>) -> Result<PgRow, Fault> {
        let rows = self.rows(query).await.map_err(fault)?;
        rows.into_iter().next().ok_or_else(|| Fault::new(FaultKind::Failed, "the claim returned no row"))
    }

    async fn claim_one(&mut self, namespace: &str, call: Call) -> Result<TriedClaims, Fault> {
        let query = statement(&self.sql.claim_one).bind(namespace).bind(SqlxUuid::from(call.operation()));
        let row = self.claim_rows(query).await?;
        let (tried, guard) = guard_of_one(row.try_get("guard").map_err(fault)?);
        self.guard = guard;
        Ok(TriedClaims { transaction: transaction_id(&row)?, tries: vec![tried] })
    }

    async fn claim_many(&mut self, namespace: &str, calls: &[Call]) -> Result<TriedClaims, Fault> {
        let operations: Vec<SqlxUuid> = calls.iter().map(|call| call.operation().into()).collect();
        let mut ascending = operations.clone();
        ascending.sort_unstable();
        let row = self.claim_rows(statement(&self.sql.claim).bind(namespace).bind(ascending)).await?;
        self.guard = row.try_get::<Option<String>, _>("guard").map_err(fault)?.unwrap_or_default();
        let column = |name: &str| -> Result<HashSet<SqlxUuid>, Fault> {
            let operations: Option<Vec<SqlxUuid>> = row.try_get(name).map_err(fault)?;
            Ok(operations.unwrap_or_default().into_iter().collect())
        };
        let tries = tries(&operations, &column("busy")?, &column("ended")?);
        Ok(TriedClaims { transaction: transaction_id(&row)?, tries })
    }

    fn finish_fault(&self, error: sqlx::Error) -> Fault {
        let is_of_key = is_of_key(&error, self.sql.schema.name());
        let fault = fault(error);
        if is_of_key { Fault { kind: FaultKind::RowExists, ..fault } } else { fault }
    }

    /// Writes the row of the only operation.
    async fn finish_one(&self, namespace: &str, row: &Finished) -> Result<(), sqlx::Error> {
        let query = statement(&self.sql.finish_one)
            .bind(&*self.guard)
            .bind(namespace)
            .bind(SqlxUuid::from(row.operation))
            .bind(verdict_number(row.verdict))
            .bind(i16::from(row.fingerprint.rule().0))
            .bind(&row.fingerprint.as_bytes()[..])
            .bind(&row.answer[..]);
        self.rows(query).await.map(drop)
    }

    /// Writes the rows of all operations, and their events.
    async fn finish_many(&self, namespace: &str, rows: &[Finished], events: &[OutboxRow]) -> Result<(), sqlx::Error> {
        let rows = ascending(rows);
        let sql = if events.is_empty() { &self.sql.finish } else { &self.sql.finish_emit };
        let query = statement(sql)
            .bind(&*self.guard)
            .bind(namespace)
            .bind(column(&rows, |row| SqlxUuid::from(row.operation)))
            .bind(column(&rows, |row| verdict_number(row.verdict)))
            .bind(column(&rows, |row| i16::from(row.fingerprint.rule().0)))
            .bind(column(&rows, |row| row.fingerprint.as_bytes().to_vec()))
            .bind(column(&rows, |row| &row.answer[..]));
        let query = if events.is_empty() { query } else { bind_events(query, events) };
        self.rows(query).await.map(drop)
    }
}

fn transaction_id(row: &PgRow) -> Result<Option<u64>, Fault> {
    Ok(row.try_get::<Option<i64>, _>("transaction").map_err(fault)?.map(i64::cast_unsigned))
}

impl Transaction for RunnerStatements<'_, '_> {
    async fn claim(&mut self, namespace: &str, calls: &[Call]) -> Result<TriedClaims, Fault> {
        match calls {
            [call] => self.claim_one(namespace, *call).await,
            _ => self.claim_many(namespace, calls).await,
        }
    }

    async fn read(&mut self, namespace: &str, operations: &[OperationId]) -> Result<Vec<FoundRow>, Fault> {
        let operations: Vec<SqlxUuid> = operations.iter().copied().map(SqlxUuid::from).collect();
        let rows = self.rows(statement(&self.sql.read).bind(namespace).bind(operations)).await.map_err(fault)?;
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
            self.rows(statement(&self.sql.order).bind(keys)).await.map_err(fault)?;
        }
        let finished = match rows {
            [row] if events.is_empty() => self.finish_one(namespace, row).await,
            _ => self.finish_many(namespace, rows, events).await,
        };
        finished.map_err(|error| self.finish_fault(error))?;
        Ok(rows.len())
    }

    fn fault_of(error: &(dyn StdError + 'static)) -> Option<FaultKind> {
        Some(kind(error.downcast_ref()?))
    }
}

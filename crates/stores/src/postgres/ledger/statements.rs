use std::collections::HashSet;
use std::error::Error as StdError;
use std::pin::pin;
use std::task::Poll;

use futures_util::future::{join, try_join3};
use futures_util::poll;
use hapax_core::OperationId;
use hapax_core::ledger::{Call, Fault, FaultKind, Finished, FoundRow, OutboxRow, Transaction, Tried, TriedClaims};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::columns::{EventColumns, FinishedColumns};
use super::faults::{commit_fault, fault, is_of_key, is_unclaimed, kind};
use super::prepared::StatementSender;
use crate::chaos::Mutant;
use crate::ledger_row::{FinishedRow, guard_of_one, keys_in_commit_order, own_claim, tries};
use crate::postgres::pool::Parameter;
use crate::postgres::schema::Schema;

/// The texts of the statements, with the tables in their schema. They are sent unnamed, so that no plan outlives the
/// state of the tables it was made for, and so that a pooler need not know them; `prepared.rs` has the exceptions.
#[derive(Debug)]
pub(super) struct Sql {
    schema: Schema,
    pub(super) claim: String,
    pub(super) claim_one: String,
    claim_own: String,
    pub(super) read: String,
    pub(super) order: String,
    pub(super) finish: String,
    pub(super) finish_one: String,
    pub(super) finish_emit: String,
    done: String,
    done_emit: String,
    pub(super) count: String,
    pub(super) sweep: String,
    pub(super) reopen: String,
    pub(super) commit_effects_alone: String,
    emit_alone: String,
    pub(super) facts: String,
}

impl Sql {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            schema: schema.clone(),
            claim: schema.qualify(include_str!("claim.sql")),
            claim_one: schema.qualify(include_str!("claim_one.sql")),
            claim_own: schema.qualify(include_str!("claim_own.sql")),
            read: schema.qualify(include_str!("read.sql")),
            order: schema.qualify(include_str!("order.sql")),
            finish: schema.qualify(include_str!("finish.sql")),
            finish_one: schema.qualify(include_str!("finish_one.sql")),
            finish_emit: schema.qualify(include_str!("finish_emit.sql")),
            done: schema.qualify(include_str!("done.sql")),
            done_emit: schema.qualify(include_str!("done_emit.sql")),
            count: schema.qualify(include_str!("count.sql")),
            sweep: schema.qualify(include_str!("sweep.sql")),
            reopen: schema.qualify(include_str!("reopen.sql")),
            commit_effects_alone: schema.qualify(include_str!("commit_effects_alone.sql")),
            emit_alone: schema.qualify(include_str!("emit_alone.sql")),
            facts: schema.qualify(include_str!("facts.sql")),
        }
    }
}

/// Who opened the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenedBy {
    /// The runner, under READ COMMITTED: BEGIN is sent with the claim. One guard row stands for all of its operations.
    Runner,
    /// The caller, under any level. Each operation has a claim of its own.
    Caller,
}

/// The statements of the ledger in a transaction.
pub(super) struct TransactionStatements<'t> {
    sql: &'t Sql,
    sender: StatementSender<'t>,
    opened_by: OpenedBy,
    /// The place of the guard row.
    guard: String,
    /// Whether COMMIT is sent with the finish.
    does_commit: bool,
    is_over: bool,
    has_emitted: bool,
}

impl<'t> TransactionStatements<'t> {
    pub(super) fn new(sql: &'t Sql, sender: StatementSender<'t>, opened_by: OpenedBy) -> Self {
        let (guard, does_commit) = (String::new(), false);
        Self { sql, sender, opened_by, guard, does_commit, is_over: false, has_emitted: false }
    }

    /// Whether COMMIT was sent with the finish, so that the transaction has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether events were written, which the commit makes visible.
    pub(super) fn has_emitted(&self) -> bool {
        self.has_emitted
    }

    /// Waits for the other transactions that emit in commit order for a key of these rows.
    async fn lock_order(&self, rows: &[OutboxRow]) -> Result<(), Fault> {
        let keys = keys_in_commit_order(rows);
        if keys.is_empty() {
            return Ok(());
        }
        self.query(&self.sql.order, &[(&keys, Type::BYTEA_ARRAY)]).await.map(drop)
    }

    async fn query(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Fault> {
        self.sender.query(sql, parameters).await.map_err(|error| self.sender.fault(error, fault))
    }

    async fn execute(&self, sql: &str) -> Result<(), Fault> {
        self.sender.client.batch_execute(sql).await.map_err(fault)
    }

    /// Sends BEGIN, the claim of a runner and the savepoint of its handler at once. If BEGIN fails, the claim fails,
    /// too: it cannot be committed by itself.
    async fn query_claim(&self, sql: &str, parameters: &[Parameter<'_>]) -> Result<Row, Fault> {
        let (begin, savepoint) = (self.execute(BEGIN), self.execute("savepoint hapax_handler"));
        let ((), rows, ()) = try_join3(begin, self.query(sql, parameters), savepoint).await?;
        rows.into_iter().next().ok_or_else(|| Fault::new(FaultKind::Failed, "the claim returned no row"))
    }

    async fn claim_one(&mut self, namespace: &str, call: Call) -> Result<TriedClaims, Fault> {
        let operation = uuid(call.operation());
        let row = self.query_claim(&self.sql.claim_one, &[(&namespace, Type::TEXT), (&operation, Type::UUID)]).await?;
        let (tried, guard) = guard_of_one(row.try_get("guard").map_err(fault)?);
        self.guard = guard;
        Ok(TriedClaims { transaction: transaction_id(&row)?, tries: vec![tried] })
    }

    async fn claim_many(&mut self, namespace: &str, calls: &[Call]) -> Result<TriedClaims, Fault> {
        let operations: Vec<Uuid> = calls.iter().map(|call| uuid(call.operation())).collect();
        let mut ascending = operations.clone();
        ascending.sort_unstable();
        let parameters: [Parameter<'_>; 2] = [(&namespace, Type::TEXT), (&ascending, Type::UUID_ARRAY)];
        let row = self.query_claim(&self.sql.claim, &parameters).await?;
        self.guard = row.try_get::<_, Option<String>>("guard").map_err(fault)?.unwrap_or_default();
        let column = |name| -> Result<HashSet<Uuid>, Fault> {
            let operations: Option<Vec<Uuid>> = row.try_get(name).map_err(fault)?;
            Ok(operations.unwrap_or_default().into_iter().collect())
        };
        let tries = tries(&operations, &column("busy")?, &column("ended")?);
        Ok(TriedClaims { transaction: transaction_id(&row)?, tries })
    }

    /// Claims one operation in a transaction of the caller's own.
    async fn claim_own(&self, namespace: &str, call: Call) -> Result<Tried, Fault> {
        let (operation, fingerprint) = (uuid(call.operation()), call.newest_fingerprint());
        let rule = i16::from(fingerprint.rule().0);
        let parameters: [Parameter<'_>; 4] = [
            (&namespace, Type::TEXT),
            (&operation, Type::UUID),
            (&rule, Type::INT2),
            (&&fingerprint.as_bytes()[..], Type::BYTEA),
        ];
        let rows = self.query(&self.sql.claim_own, &parameters).await?;
        let found = rows.first().map(|row| row.try_get("found")).transpose().map_err(fault)?;
        own_claim(found.unwrap_or_default())
    }

    /// Sends the last statement and COMMIT at once, if COMMIT follows. The server rolls back if the statement fails.
    async fn query_last(&mut self, sql: &str, parameters: &[Parameter<'_>]) -> Result<(), Fault> {
        if !self.does_commit {
            return self.query(sql, parameters).await.map(drop);
        }
        let sender = self.sender;
        let mut statement = pin!(sender.query(sql, parameters));
        // If it is ready by now, it was not sent, or the server was very fast: COMMIT is not sent with it.
        if let Poll::Ready(rows) = poll!(statement.as_mut()) {
            return rows.map(drop).map_err(|error| self.finish_fault(error, fault));
        }
        let (rows, committed) = join(statement, sender.client.batch_execute("COMMIT")).await;
        self.is_over = true;
        // The reply to COMMIT does not tell whether it was a rollback.
        rows.map_err(|error| self.finish_fault(error, commit_fault))?;
        committed.map_err(commit_fault)
    }

    fn finish_fault(&self, error: tokio_postgres::Error, fault: fn(tokio_postgres::Error) -> Fault) -> Fault {
        let is_of_key = is_of_key(&error, self.sql.schema.name());
        let fault = self.sender.fault(error, fault);
        let is_definite = fault.kind != FaultKind::CommitUnknown;
        if is_of_key && is_definite { Fault { kind: FaultKind::RowExists, ..fault } } else { fault }
    }

    /// Writes events without an end of their operations. Returns the events that are left.
    async fn emit_alone(&self, namespace: &str, events: &[OutboxRow]) -> Result<&'static [OutboxRow], Fault> {
        let columns = EventColumns::of(events);
        let mut parameters: Vec<Parameter<'_>> = vec![(&namespace, Type::TEXT)];
        parameters.extend(columns.parameters());
        self.query(&self.sql.emit_alone, &parameters).await?;
        Ok(&[])
    }

    async fn finish_as_runner(
        &mut self,
        namespace: &str,
        rows: &[Finished],
        events: &[OutboxRow],
    ) -> Result<(), Fault> {
        let (sql, guard) = (self.sql, self.guard.clone());
        let (columns, event_columns) = (FinishedColumns::of(rows), EventColumns::of(events));
        let mut parameters: Vec<Parameter<'_>> = vec![(&guard, Type::TEXT), (&namespace, Type::TEXT)];
        let statement = match columns.one() {
            Some(row) if events.is_empty() => {
                parameters.extend(row);
                &sql.finish_one
            }
            Some(_) | None => {
                parameters.extend(columns.parameters());
                if events.is_empty() {
                    &sql.finish
                } else {
                    parameters.extend(event_columns.parameters());
                    &sql.finish_emit
                }
            }
        };
        self.query_last(statement, &parameters).await
    }

    /// Finishes one operation in a transaction of the caller's own.
    async fn finish_own(&mut self, namespace: &str, row: &Finished, events: &[OutboxRow]) -> Result<(), Fault> {
        let (sql, operation, answer) = (self.sql, uuid(row.operation), &row.answer[..]);
        let event_columns = EventColumns::of(events);
        let mut parameters: Vec<Parameter<'_>> =
            vec![(&namespace, Type::TEXT), (&operation, Type::UUID), (&answer, Type::BYTEA)];
        let statement = if events.is_empty() {
            &sql.done
        } else {
            parameters.extend(event_columns.parameters());
            &sql.done_emit
        };
        self.query_last(statement, &parameters).await
    }
}

/// The role may have another default.
const BEGIN: &str = "begin isolation level read committed";

fn transaction_id(row: &Row) -> Result<Option<u64>, Fault> {
    Ok(row.try_get::<_, Option<i64>>("transaction").map_err(fault)?.map(i64::cast_unsigned))
}

impl Transaction for TransactionStatements<'_> {
    async fn claim(&mut self, namespace: &str, calls: &[Call]) -> Result<TriedClaims, Fault> {
        match (self.opened_by, calls) {
            (OpenedBy::Runner, [call]) => self.claim_one(namespace, *call).await,
            (OpenedBy::Runner, _) => self.claim_many(namespace, calls).await,
            (OpenedBy::Caller, _) => {
                let mut tries = Vec::with_capacity(calls.len());
                for call in calls {
                    tries.push(self.claim_own(namespace, *call).await?);
                }
                Ok(TriedClaims { transaction: None, tries })
            }
        }
    }

    async fn read(&mut self, namespace: &str, operations: &[OperationId]) -> Result<Vec<FoundRow>, Fault> {
        let operations = uuids(operations);
        let rows = self.query(&self.sql.read, &[(&namespace, Type::TEXT), (&operations, Type::UUID_ARRAY)]).await?;
        rows.iter().map(|row| found(row).map_err(fault)).collect()
    }

    async fn savepoint(&mut self) -> Result<(), Fault> {
        match self.opened_by {
            // It was sent with the claim.
            OpenedBy::Runner => Ok(()),
            OpenedBy::Caller => self.execute("savepoint hapax_handler").await,
        }
    }

    async fn roll_back_to_savepoint(&mut self) -> Result<(), Fault> {
        self.execute("rollback to savepoint hapax_handler").await
    }

    async fn finish(&mut self, namespace: &str, rows: &[Finished], events: &[OutboxRow]) -> Result<usize, Fault> {
        self.lock_order(events).await?;
        self.has_emitted = !events.is_empty();
        let events =
            if Mutant::PostgresEventsFirst.is_on() { self.emit_alone(namespace, events).await? } else { events };
        let finished = match (self.opened_by, rows) {
            (OpenedBy::Runner, _) => self.finish_as_runner(namespace, rows, events).await,
            (OpenedBy::Caller, [row]) => self.finish_own(namespace, row, events).await,
            (OpenedBy::Caller, _) => Err(Fault::new(FaultKind::Failed, "a caller finishes one operation at a time")),
        };
        match finished {
            Err(fault) if is_unclaimed(&fault) && Mutant::PostgresFinishUnchecked.is_on() => Ok(rows.len()),
            finished => finished.map(|()| rows.len()),
        }
    }

    fn commit_follows(&mut self) {
        self.does_commit = true;
    }

    fn fault_of(error: &(dyn StdError + 'static)) -> Option<FaultKind> {
        Some(kind(error.downcast_ref()?))
    }
}

/// Reads a row of the result of `read.sql`.
pub(super) fn found(row: &Row) -> Result<FoundRow, tokio_postgres::Error> {
    let (is_found, is_finished_here, is_dead): (bool, bool, bool) =
        (row.try_get("is_found")?, row.try_get("is_finished_here")?, row.try_get("is_dead")?);
    if is_finished_here {
        return Ok(FoundRow::ClaimedHere);
    }
    if !is_found {
        return Ok(if is_dead { FoundRow::Dead } else { FoundRow::Nothing });
    }
    Ok(FoundRow::from(FinishedRow {
        rule: row.try_get("rule")?,
        verdict: row.try_get("verdict")?,
        fingerprint: row.try_get("fingerprint")?,
        answer: row.try_get("answer")?,
        transaction: row.try_get("transaction")?,
    }))
}

pub(super) fn uuids(operations: &[OperationId]) -> Vec<Uuid> {
    operations.iter().copied().map(uuid).collect()
}

pub(super) fn uuid(operation: OperationId) -> Uuid {
    Uuid::from_bytes(*operation.as_bytes())
}

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::pin::pin;

use futures_util::future::{join, try_join3};
use futures_util::poll;
use hapax_core::OperationId;
use hapax_core::ledger::{
    Call, Fault, FaultKind, Finished, FoundRow, LastStatement, OutboxRow, Transaction, Tried, TriedClaims,
};
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::faults::{commit_fault, fault, is_division_by_zero, kind};
use crate::chaos::Mutant;
use crate::ledger_row::{FinishedRow, headers, keys_in_commit_order, verdict_number};
use crate::postgres::schema::Schema;

/// The texts of the statements, with the tables in their schema. They are sent unnamed, so that no plan outlives the
/// state of the tables it was made for, and so that a pooler need not know them.
#[derive(Debug)]
pub(super) struct Sql {
    claim: String,
    claim_one: String,
    read: String,
    emit: String,
    order: String,
    finish: String,
    finish_last: String,
    finish_last_one: String,
    pub(super) count: String,
    pub(super) sweep: String,
    pub(super) reopen: String,
    pub(super) commit_effects_alone: String,
    pub(super) facts: String,
}

impl Sql {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            claim: schema.qualify(include_str!("claim.sql")),
            claim_one: schema.qualify(include_str!("claim_one.sql")),
            read: schema.qualify(include_str!("read.sql")),
            emit: schema.qualify(include_str!("emit.sql")),
            order: schema.qualify(include_str!("order.sql")),
            finish: schema.qualify(include_str!("finish.sql")),
            finish_last: schema.qualify(include_str!("finish_last.sql")),
            finish_last_one: schema.qualify(include_str!("finish_last_one.sql")),
            count: schema.qualify(include_str!("count.sql")),
            sweep: schema.qualify(include_str!("sweep.sql")),
            reopen: schema.qualify(include_str!("reopen.sql")),
            commit_effects_alone: schema.qualify(include_str!("commit_effects_alone.sql")),
            facts: schema.qualify(include_str!("facts.sql")),
        }
    }
}

/// Who opened the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenedBy {
    /// The runner. A claim waits for no lock longer than a second.
    Runner,
    /// The caller, whose settings stay as they are.
    Caller,
}

/// The parameters of a statement with their types.
type TypedParameters<'a> = [(&'a (dyn ToSql + Sync), Type)];

/// The statements of the ledger in a transaction.
pub(super) struct TransactionStatements<'t> {
    sql: &'t Sql,
    transaction: &'t tokio_postgres::Transaction<'t>,
    opened_by: OpenedBy,
    /// The statement that COMMIT is sent with.
    last: Option<LastStatement>,
    is_over: bool,
    has_emitted: bool,
}

impl<'t> TransactionStatements<'t> {
    pub(super) fn new(sql: &'t Sql, transaction: &'t tokio_postgres::Transaction<'t>, opened_by: OpenedBy) -> Self {
        Self { sql, transaction, opened_by, last: None, is_over: false, has_emitted: false }
    }

    /// Whether COMMIT was sent with the last statement, so that the transaction has ended.
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

    async fn query(&self, sql: &str, parameters: &TypedParameters<'_>) -> Result<Vec<tokio_postgres::Row>, Fault> {
        self.transaction.query_typed(sql, parameters).await.map_err(fault)
    }

    async fn execute(&self, sql: &str) -> Result<(), Fault> {
        self.transaction.batch_execute(sql).await.map_err(fault)
    }

    /// Sends a statement that claims, if this is the runner's transaction with the limit of its waits and the savepoint
    /// of the handler: all three are on their way at once. After the claim, the handler may wait for locks as long as
    /// the server lets it.
    async fn query_claim(
        &self,
        sql: &str,
        parameters: &TypedParameters<'_>,
    ) -> Result<Vec<tokio_postgres::Row>, Fault> {
        let claim = self.query(sql, parameters);
        match self.opened_by {
            OpenedBy::Runner => {
                let limit = self.execute("set local lock_timeout = '1s'");
                let savepoint = self.execute("set local lock_timeout to default; savepoint hapax_handler");
                Ok(try_join3(limit, claim, savepoint).await?.1)
            }
            OpenedBy::Caller => claim.await,
        }
    }

    /// Claims one operation by a plain insertion. None: it was not inserted.
    async fn claim_one(&self, namespace: &str, call: Call) -> Result<Option<TriedClaims>, Fault> {
        let (operation, fingerprint) = (uuid(call.operation()), call.newest_fingerprint());
        let rule = i16::from(fingerprint.rule().0);
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&namespace, Type::TEXT),
            (&operation, Type::UUID),
            (&rule, Type::INT2),
            (&&fingerprint.as_bytes()[..], Type::BYTEA),
        ];
        let rows = self.query_claim(&self.sql.claim_one, &parameters).await?;
        let transaction = rows.first().map(|row| row.get::<_, i64>(0).cast_unsigned());
        Ok(transaction.map(|transaction| TriedClaims { transaction: Some(transaction), tries: vec![Tried::Inserted] }))
    }

    /// Sends the last statement and COMMIT at once. The server rolls back if the statement fails.
    async fn query_and_commit(
        &mut self,
        sql: &str,
        parameters: &TypedParameters<'_>,
    ) -> Result<Vec<tokio_postgres::Row>, Fault> {
        let mut statement = pin!(self.transaction.query_typed(sql, parameters));
        // It was not sent if it is ready by now, so that COMMIT must not be sent either.
        if let std::task::Poll::Ready(rows) = poll!(statement.as_mut()) {
            return rows.map_err(fault);
        }
        let (rows, committed) = join(statement, self.transaction.batch_execute("COMMIT")).await;
        self.is_over = true;
        let rows = rows.map_err(commit_fault)?;
        committed.map_err(commit_fault)?;
        Ok(rows)
    }

    /// Finishes the rows and commits. Returns how many there are: none, unless they were all open.
    async fn finish_and_commit(&mut self, namespace: &str, rows: &FinishedColumns<'_>) -> Result<usize, Fault> {
        let (len, sql) = (rows.operations.len(), self.sql);
        let expected = i64::try_from(len).unwrap_or(i64::MAX);
        let finished = match (&rows.operations[..], &rows.verdicts[..], &rows.answers[..]) {
            ([operation], [verdict], [answer]) => {
                let parameters: [(&(dyn ToSql + Sync), Type); 4] =
                    [(&namespace, Type::TEXT), (operation, Type::UUID), (verdict, Type::INT2), (answer, Type::BYTEA)];
                self.query_and_commit(&sql.finish_last_one, &parameters).await
            }
            _ => {
                let [namespace, operations, verdicts, answers] = rows.parameters(&namespace);
                let parameters = [namespace, operations, verdicts, answers, (&expected as _, Type::INT8)];
                self.query_and_commit(&sql.finish_last, &parameters).await
            }
        };
        match finished {
            Ok(_) => Ok(len),
            Err(fault) if is_division_by_zero(&fault) => Ok(0),
            Err(fault) => Err(fault),
        }
    }
}

/// The columns of rows to finish.
struct FinishedColumns<'r> {
    operations: Vec<Uuid>,
    verdicts: Vec<i16>,
    answers: Vec<&'r [u8]>,
}

impl<'r> FinishedColumns<'r> {
    fn of(rows: &'r [Finished]) -> Self {
        Self {
            operations: rows.iter().map(|row| uuid(row.operation)).collect(),
            verdicts: rows.iter().map(|row| verdict_number(row.verdict)).collect(),
            answers: rows.iter().map(|row| &row.answer[..]).collect(),
        }
    }

    fn parameters<'a>(&'a self, namespace: &'a &str) -> [(&'a (dyn ToSql + Sync), Type); 4] {
        [
            (namespace, Type::TEXT),
            (&self.operations, Type::UUID_ARRAY),
            (&self.verdicts, Type::INT2_ARRAY),
            (&self.answers, Type::BYTEA_ARRAY),
        ]
    }
}

impl Transaction for TransactionStatements<'_> {
    async fn claim(&mut self, namespace: &str, calls: &[Call]) -> Result<TriedClaims, Fault> {
        if let [call] = calls
            && let Some(claimed) = self.claim_one(namespace, *call).await?
        {
            return Ok(claimed);
        }
        let operations: Vec<Uuid> = calls.iter().map(|call| uuid(call.operation())).collect();
        let rules: Vec<i16> = calls.iter().map(|call| call.newest_fingerprint().rule().0.into()).collect();
        let fingerprints: Vec<Vec<u8>> =
            calls.iter().map(|call| call.newest_fingerprint().as_bytes().to_vec()).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&namespace, Type::TEXT),
            (&operations, Type::UUID_ARRAY),
            (&rules, Type::INT2_ARRAY),
            (&fingerprints, Type::BYTEA_ARRAY),
        ];
        let rows = self.query_claim(&self.sql.claim, &parameters).await?;
        let tried = |row: &tokio_postgres::Row| {
            let is_inserted: bool = row.get(1);
            (row.get(0), if is_inserted { Tried::Inserted } else { Tried::Locked })
        };
        let tries: BTreeMap<Uuid, Tried> = rows.iter().map(tried).collect();
        let of = |operation| tries.get(operation).copied().unwrap_or(Tried::NotInserted);
        Ok(TriedClaims {
            transaction: rows.iter().find_map(|row| row.get::<_, Option<i64>>(2)).map(i64::cast_unsigned),
            tries: operations.iter().map(of).collect(),
        })
    }

    async fn read(&mut self, namespace: &str, operations: &[OperationId]) -> Result<Vec<FoundRow>, Fault> {
        let operations: Vec<Uuid> = operations.iter().copied().map(uuid).collect();
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

    async fn emit(&mut self, namespace: &str, rows: &[OutboxRow]) -> Result<(), Fault> {
        self.lock_order(rows).await?;
        self.has_emitted = true;
        let events = EventColumns::of(rows);
        let parameters: [(&(dyn ToSql + Sync), Type); 11] = [
            (&namespace, Type::TEXT),
            (&events.ids, Type::UUID_ARRAY),
            (&events.operations, Type::UUID_ARRAY),
            (&events.numbers, Type::INT4_ARRAY),
            (&events.ordering_keys, Type::BYTEA_ARRAY),
            (&events.topics, Type::TEXT_ARRAY),
            (&events.kinds, Type::TEXT_ARRAY),
            (&events.sources, Type::TEXT_ARRAY),
            (&events.content_types, Type::TEXT_ARRAY),
            (&events.headers, Type::TEXT_ARRAY),
            (&events.payloads, Type::BYTEA_ARRAY),
        ];
        match self.last {
            Some(LastStatement::Emit) => self.query_and_commit(&self.sql.emit, &parameters).await.map(drop),
            Some(LastStatement::Finish) | None => self.query(&self.sql.emit, &parameters).await.map(drop),
        }
    }

    async fn finish(&mut self, namespace: &str, rows: &[Finished]) -> Result<usize, Fault> {
        let columns = FinishedColumns::of(rows);
        match self.last {
            Some(LastStatement::Finish) => self.finish_and_commit(namespace, &columns).await,
            Some(LastStatement::Emit) | None => {
                let finished = self.query(&self.sql.finish, &columns.parameters(&namespace)).await?.len();
                Ok(if Mutant::PostgresFinishUnchecked.is_on() { rows.len() } else { finished })
            }
        }
    }

    fn commit_follows(&mut self, last: LastStatement) {
        self.last = Some(last);
    }

    fn fault_of(error: &(dyn StdError + 'static)) -> Option<FaultKind> {
        Some(kind(error.downcast_ref()?))
    }
}

/// The columns of the rows of the outbox.
struct EventColumns<'r> {
    ids: Vec<Uuid>,
    operations: Vec<Uuid>,
    numbers: Vec<i32>,
    ordering_keys: Vec<Option<&'r [u8]>>,
    topics: Vec<&'r str>,
    kinds: Vec<Option<&'r str>>,
    sources: Vec<Option<&'r str>>,
    content_types: Vec<Option<&'r str>>,
    headers: Vec<String>,
    payloads: Vec<&'r [u8]>,
}

impl<'r> EventColumns<'r> {
    fn of(rows: &'r [OutboxRow]) -> Self {
        Self {
            ids: rows.iter().map(|row| Uuid::from_bytes(*row.id.as_bytes())).collect(),
            operations: rows.iter().map(|row| uuid(row.operation)).collect(),
            numbers: rows.iter().map(|row| row.number.cast_signed()).collect(),
            ordering_keys: rows.iter().map(|row| row.ordering_key.as_deref()).collect(),
            topics: rows.iter().map(|row| &*row.topic).collect(),
            kinds: rows.iter().map(|row| row.kind.as_deref()).collect(),
            sources: rows.iter().map(|row| row.source.as_deref()).collect(),
            content_types: rows.iter().map(|row| row.content_type.as_deref()).collect(),
            headers: rows.iter().map(headers).collect(),
            payloads: rows.iter().map(|row| &row.payload[..]).collect(),
        }
    }
}

fn found(row: &tokio_postgres::Row) -> Result<FoundRow, tokio_postgres::Error> {
    let (is_found, is_claimed_here, is_dead): (bool, bool, bool) =
        (row.try_get("is_found")?, row.try_get("is_claimed_here")?, row.try_get("is_dead")?);
    if is_claimed_here {
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

pub(super) fn uuid(operation: OperationId) -> Uuid {
    Uuid::from_bytes(*operation.as_bytes())
}

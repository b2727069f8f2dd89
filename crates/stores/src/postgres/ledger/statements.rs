use std::collections::BTreeMap;
use std::error::Error as StdError;

use bytes::Bytes;
use futures_util::future::try_join3;
use hapax_core::ledger::{
    Call, Fault, FaultKind, Finished, FoundRow, LedgerVerdict, OutboxRow, Row, Transaction, Tried, TriedClaims,
};
use hapax_core::{Fingerprint, OperationId, Rule};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::postgres::call_error::PostgresDriverError;
use crate::postgres::schema::Schema;

/// The texts of the statements, with the tables in their schema. They are sent unnamed, so that no plan outlives the
/// state of the tables it was made for, and so that a pooler need not know them.
#[derive(Debug)]
pub(super) struct Sql {
    claim: String,
    read: String,
    emit: String,
    finish: String,
    pub(super) count: String,
    pub(super) sweep: String,
    pub(super) pages: String,
    pub(super) facts: String,
}

impl Sql {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            claim: schema.qualify(include_str!("claim.sql")),
            read: schema.qualify(include_str!("read.sql")),
            emit: schema.qualify(include_str!("emit.sql")),
            finish: schema.qualify(include_str!("finish.sql")),
            count: schema.qualify(include_str!("count.sql")),
            sweep: schema.qualify(include_str!("sweep.sql")),
            pages: schema.qualify(include_str!("pages.sql")),
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

/// The statements of the ledger in a transaction.
pub(super) struct TransactionStatements<'t> {
    pub(super) sql: &'t Sql,
    pub(super) transaction: &'t tokio_postgres::Transaction<'t>,
    pub(super) opened_by: OpenedBy,
}

impl TransactionStatements<'_> {
    async fn query(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<tokio_postgres::Row>, Fault> {
        self.transaction.query_typed(sql, parameters).await.map_err(fault)
    }

    async fn execute(&self, sql: &str) -> Result<(), Fault> {
        self.transaction.batch_execute(sql).await.map_err(fault)
    }
}

impl Transaction for TransactionStatements<'_> {
    async fn claim(&mut self, namespace: &str, calls: &[Call]) -> Result<TriedClaims, Fault> {
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
        let claim = self.query(&self.sql.claim, &parameters);
        let rows = match self.opened_by {
            // All three are on their way at once. After the claim, the handler may wait for locks as long as the server
            // lets it.
            OpenedBy::Runner => {
                let limit = self.execute("set local lock_timeout = '1s'");
                let savepoint = self.execute("set local lock_timeout to default; savepoint hapax_handler");
                try_join3(limit, claim, savepoint).await?.1
            }
            OpenedBy::Caller => claim.await?,
        };
        let mut tries: BTreeMap<Uuid, Tried> = BTreeMap::new();
        for row in &rows {
            let (operation, is_locked, is_inserted): (Uuid, bool, bool) = (row.get(0), row.get(1), row.get(2));
            let tried = match (is_locked, is_inserted) {
                (_, true) => Tried::Inserted,
                (true, false) => Tried::NotInserted,
                (false, false) => Tried::Locked,
            };
            tries.insert(operation, tried);
        }
        Ok(TriedClaims {
            transaction: rows.first().map(|row| row.get::<_, i64>(3).cast_unsigned()),
            tries: operations.iter().map(|operation| tries.get(operation).copied().unwrap_or(Tried::Locked)).collect(),
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
        self.query(&self.sql.emit, &parameters).await.map(drop)
    }

    async fn finish(&mut self, namespace: &str, rows: &[Finished]) -> Result<usize, Fault> {
        let operations: Vec<Uuid> = rows.iter().map(|row| uuid(row.operation)).collect();
        let verdicts: Vec<i16> = rows.iter().map(|row| number(row.verdict)).collect();
        let answers: Vec<&[u8]> = rows.iter().map(|row| &row.answer[..]).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&namespace, Type::TEXT),
            (&operations, Type::UUID_ARRAY),
            (&verdicts, Type::INT2_ARRAY),
            (&answers, Type::BYTEA_ARRAY),
        ];
        Ok(self.query(&self.sql.finish, &parameters).await?.len())
    }

    /// A handler may name a table that does not exist: its transaction failed, and the ledger can still be used.
    fn fault_of(error: &(dyn StdError + 'static)) -> Option<FaultKind> {
        let kind = kind(error.downcast_ref()?);
        Some(if kind == FaultKind::Unusable { FaultKind::Failed } else { kind })
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
        let headers = |row: &OutboxRow| {
            let headers: BTreeMap<_, _> = row.headers.iter().map(|(name, value)| (name, value)).collect();
            serde_json::to_string(&headers).expect("texts can be written as JSON")
        };
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
    let (is_found, is_open, is_dead): (bool, bool, bool) =
        (row.try_get("is_found")?, row.try_get("is_open")?, row.try_get("is_dead")?);
    if is_open {
        return Ok(FoundRow::Open);
    }
    if !is_found {
        return Ok(if is_dead { FoundRow::Dead } else { FoundRow::Nothing });
    }
    let (rule, verdict): (i16, i16) = (row.try_get("rule")?, row.try_get("verdict")?);
    let fingerprint: &[u8] = row.try_get("fingerprint")?;
    let bytes = fingerprint.try_into().unwrap_or_default();
    Ok(FoundRow::Row(Row {
        fingerprint: Fingerprint::from_parts(Rule(u8::try_from(rule).unwrap_or(u8::MAX)), bytes),
        verdict: if verdict == number(LedgerVerdict::Rejected) {
            LedgerVerdict::Rejected
        } else {
            LedgerVerdict::Applied
        },
        answer: Bytes::copy_from_slice(row.try_get("answer")?),
        transaction: Some(row.try_get::<_, i64>("transaction")?.cast_unsigned()),
    }))
}

fn number(verdict: LedgerVerdict) -> i16 {
    match verdict {
        LedgerVerdict::Applied => 1,
        LedgerVerdict::Rejected => 2,
    }
}

pub(super) fn uuid(operation: OperationId) -> Uuid {
    Uuid::from_bytes(*operation.as_bytes())
}

pub(super) fn fault(error: tokio_postgres::Error) -> Fault {
    Fault::new(kind(&error), PostgresDriverError(error))
}

/// The fault of a failed COMMIT. Only an error that the server sent without ending the session says that nothing was
/// committed.
pub(super) fn commit_fault(error: tokio_postgres::Error) -> Fault {
    use tokio_postgres::error::Severity;
    let is_definite = error.as_db_error().is_some_and(|reply| reply.parsed_severity() == Some(Severity::Error));
    let kind = if is_definite { kind(&error) } else { FaultKind::CommitUnknown };
    Fault::new(kind, PostgresDriverError(error))
}

/// What can be done about an error that came before COMMIT was sent.
fn kind(error: &tokio_postgres::Error) -> FaultKind {
    let Some(code) = error.code() else {
        // Without a reply: the connection broke, unless the driver could not read or write a value.
        return if error.is_closed() || error.source().is_some_and(<dyn StdError>::is::<std::io::Error>) {
            FaultKind::Unavailable
        } else {
            FaultKind::Failed
        };
    };
    match code {
        code if CONFLICTS.contains(code) => FaultKind::Conflict,
        // The table of locks is full, or the server is out of memory: a smaller transaction may fit.
        code if *code == SqlState::OUT_OF_MEMORY => FaultKind::TooLarge,
        code if UNUSABLE.contains(code) => FaultKind::Unusable,
        code if ["08", "53", "57P", "25006"].iter().any(|class| code.code().starts_with(class)) => {
            FaultKind::Unavailable
        }
        _ => FaultKind::Failed,
    }
}

const CONFLICTS: [SqlState; 3] =
    [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED, SqlState::LOCK_NOT_AVAILABLE];

const UNUSABLE: [SqlState; 4] = [
    SqlState::UNDEFINED_TABLE,
    SqlState::UNDEFINED_COLUMN,
    SqlState::INVALID_SCHEMA_NAME,
    SqlState::INSUFFICIENT_PRIVILEGE,
];

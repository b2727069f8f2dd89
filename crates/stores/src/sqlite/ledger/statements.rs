use std::collections::BTreeMap;
use std::error::Error as StdError;

use bytes::Bytes;
use hapax_core::ledger::LedgerVerdict;
use hapax_core::ledger::{Call, Fault, FaultKind, Finished, FoundRow, OutboxRow, Row, Transaction, Tried, TriedClaims};
use hapax_core::{Fingerprint, OperationId, Rule};
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};

use crate::chaos::Mutant;

/// The statements of the ledger on a connection that is inside a transaction. None of their futures waits.
pub(super) struct ConnectionStatements<'c>(pub(super) &'c Connection);

impl ConnectionStatements<'_> {
    fn try_claim(&self, namespace: &str, call: &Call) -> rusqlite::Result<Tried> {
        let Fingerprinted { rule, bytes } = call.newest_fingerprint().into();
        let mut statement = self.0.prepare_cached(include_str!("claim.sql"))?;
        let inserted = statement.execute(params![call.operation().as_bytes(), namespace, rule, bytes])?;
        Ok(if inserted == 1 { Tried::Inserted } else { Tried::NotInserted })
    }

    fn find(&self, namespace: &str, operation: OperationId) -> Result<FoundRow, Fault> {
        let mut statement = self.0.prepare_cached(include_str!("read.sql")).map_err(fault)?;
        let row = statement.query_row(params![operation.as_bytes(), namespace], |row| {
            let open: Option<i64> = row.get(0)?;
            let verdict: Option<u8> = row.get(1)?;
            let (rule, fingerprint, answer) = (row.get(2)?, row.get(3)?, row.get::<_, Option<Vec<u8>>>(4)?);
            Ok((open, verdict, Fingerprinted { rule, bytes: fingerprint }, answer))
        });
        match row.optional().map_err(fault)? {
            Some((Some(_), ..)) => Ok(FoundRow::ClaimedHere),
            Some((None, verdict, fingerprint, answer)) => {
                let answer = Bytes::from(answer.unwrap_or_default());
                let verdict = if verdict == Some(2) { LedgerVerdict::Rejected } else { LedgerVerdict::Applied };
                Ok(FoundRow::Row(Row { fingerprint: fingerprint.into(), verdict, answer, transaction: None }))
            }
            None if self.is_dead(namespace, operation).map_err(fault)? => Ok(FoundRow::Dead),
            None => Ok(FoundRow::Nothing),
        }
    }

    fn is_dead(&self, namespace: &str, operation: OperationId) -> rusqlite::Result<bool> {
        let mut statement = self.0.prepare_cached(include_str!("is_dead.sql"))?;
        statement.query_row(params![operation.as_bytes(), namespace], |row| row.get(0))
    }

    fn insert_event(&self, namespace: &str, row: &OutboxRow) -> rusqlite::Result<()> {
        let headers: BTreeMap<_, _> = row.headers.iter().map(|(name, value)| (name, value)).collect();
        let headers = serde_json::to_string(&headers).expect("texts can be written as JSON");
        let mut statement = self.0.prepare_cached(include_str!("emit.sql"))?;
        statement.execute(params![
            row.id.as_bytes(),
            namespace,
            row.operation.as_bytes(),
            row.number,
            row.ordering_key.as_deref(),
            row.bucket(),
            row.topic,
            row.kind,
            row.source,
            row.content_type,
            headers,
            &row.payload[..],
        ])?;
        Ok(())
    }

    /// Counts a failed attempt. Returns the number of attempts.
    pub(super) fn count(&self, namespace: &str, operation: OperationId, error: &str) -> Result<u32, Fault> {
        let mut statement = self.0.prepare_cached(include_str!("count.sql")).map_err(fault)?;
        statement.query_row(params![operation.as_bytes(), namespace, error], |row| row.get(0)).map_err(fault)
    }

    /// Closes an operation.
    pub(super) fn bury(&self, namespace: &str, operation: OperationId) -> Result<(), Fault> {
        let mut statement = self.0.prepare_cached(include_str!("bury.sql")).map_err(fault)?;
        statement.execute(params![operation.as_bytes(), namespace]).map(|_| ()).map_err(fault)
    }

    /// Without foreign keys an open row could be committed.
    fn check_foreign_keys(&self) -> Result<(), Fault> {
        let are_on: bool = self.0.pragma_query_value(None, "foreign_keys", |row| row.get(0)).map_err(fault)?;
        let message = "`pragma foreign_keys` is off, so an unfinished claim could be committed; turn it on before the \
                       transaction begins";
        if are_on { Ok(()) } else { Err(Fault::new(FaultKind::Unusable, message)) }
    }
}

impl Transaction for ConnectionStatements<'_> {
    async fn claim(&mut self, namespace: &str, calls: &[Call]) -> Result<TriedClaims, Fault> {
        self.check_foreign_keys()?;
        let tries = calls.iter().map(|call| self.try_claim(namespace, call).map_err(fault));
        Ok(TriedClaims { transaction: None, tries: tries.collect::<Result<_, _>>()? })
    }

    async fn read(&mut self, namespace: &str, operations: &[OperationId]) -> Result<Vec<FoundRow>, Fault> {
        operations.iter().map(|operation| self.find(namespace, *operation)).collect()
    }

    async fn savepoint(&mut self) -> Result<(), Fault> {
        self.0.execute_batch("savepoint hapax_handler").map_err(fault)
    }

    async fn roll_back_to_savepoint(&mut self) -> Result<(), Fault> {
        self.0.execute_batch("rollback to savepoint hapax_handler").map_err(fault)
    }

    async fn finish(&mut self, namespace: &str, rows: &[Finished], events: &[OutboxRow]) -> Result<usize, Fault> {
        let mut statement = self.0.prepare_cached(include_str!("finish.sql")).map_err(fault)?;
        let mut finished = 0;
        for Finished { operation, verdict, answer, .. } in rows {
            let verdict = match verdict {
                LedgerVerdict::Applied => 1,
                LedgerVerdict::Rejected => 2,
            };
            let row = params![operation.as_bytes(), namespace, verdict, &answer[..]];
            finished += statement.execute(row).map_err(fault)?;
        }
        if finished == rows.len() {
            let emitted = events.iter().try_for_each(|row| self.insert_event(namespace, row)).map_err(fault);
            if !Mutant::EventOutside.is_on() {
                emitted?;
            }
        }
        Ok(finished)
    }

    fn fault_of(error: &(dyn StdError + 'static)) -> Option<FaultKind> {
        Some(kind(error.downcast_ref()?))
    }
}

/// A fingerprint as its columns.
struct Fingerprinted {
    rule: u8,
    bytes: [u8; Fingerprint::LEN],
}

impl From<Fingerprint> for Fingerprinted {
    fn from(fingerprint: Fingerprint) -> Self {
        Self { rule: fingerprint.rule().0, bytes: *fingerprint.as_bytes() }
    }
}

impl From<Fingerprinted> for Fingerprint {
    fn from(Fingerprinted { rule, bytes }: Fingerprinted) -> Self {
        Self::from_parts(Rule(rule), bytes)
    }
}

pub(super) fn fault(error: rusqlite::Error) -> Fault {
    Fault::new(kind(&error), error)
}

/// What SQLite says about a table or a column that is not there.
const MISSING: [&str; 3] = ["no such table: ", "no such column: ", " has no column named "];

/// What can be done about an error of SQLite.
fn kind(error: &rusqlite::Error) -> FaultKind {
    match error.sqlite_error_code() {
        Some(ErrorCode::ConstraintViolation) if Mutant::AnyViolationIsOurs.is_on() => FaultKind::Conflict,
        Some(ErrorCode::DiskFull) if Mutant::FullDiskIsFailure.is_on() => FaultKind::Failed,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => FaultKind::Conflict,
        Some(ErrorCode::DiskFull | ErrorCode::OutOfMemory | ErrorCode::SystemIoFailure) => FaultKind::Unavailable,
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::ReadOnly) => FaultKind::Unusable,
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => FaultKind::Unusable,
        // Missing names have no code of their own.
        Some(_) | None if MISSING.iter().any(|missing| error.to_string().contains(missing)) => FaultKind::Unusable,
        Some(_) | None => FaultKind::Failed,
    }
}

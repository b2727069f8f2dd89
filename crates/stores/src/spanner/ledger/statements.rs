//! Claim, read and finish in a transaction of Spanner.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::ledger::{
    Call, Fault, FaultKind, Finished, FoundRow, LedgerVerdict, OutboxRow, Row, Transaction, Tried, TriedClaims,
};
use hapax_core::outbox::{OutgoingEvent, bucket_of};
use hapax_core::{Error, ErrorKind, Fingerprint, OperationId, Result, Rule};

use super::faults::SpannerStatementError;
use super::transaction::{SpannerTransaction, TransactionClaim};
use crate::spanner::messages::{DeletedRows, KeySet, Mutation, MutationKind, SqlList, SqlValue, WrittenRows};
use crate::spanner::values::{SqlStatement, columns};

/// The statements of the ledger in a transaction of Spanner.
pub(super) struct SpannerStatements<'t>(pub(super) &'t SpannerTransaction);

impl SpannerStatements<'_> {
    /// The rows of these operations, which nobody else can change before the end.
    async fn find(&self, namespace: &str, operations: &[Bytes]) -> Result<Vec<(OperationId, FoundRow)>, Fault> {
        let statement = SqlStatement::new(include_str!("read.sql"));
        let statement = statement.all_bytes("operations", operations).text("namespace", namespace);
        let rows = self.0.rows_of(&statement).await?;
        let found = rows.iter().map(found_row).collect::<Result<Vec<_>>>().map_err(unreadable)?;
        // An operation that has a row is not dead.
        let (dead, mut found): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, row)| *row == FoundRow::Dead);
        found.extend(dead);
        Ok(found)
    }
}

impl Transaction for SpannerStatements<'_> {
    async fn claim(&mut self, namespace: &str, calls: &[Call]) -> Result<TriedClaims, Fault> {
        let operations: Vec<Bytes> =
            calls.iter().map(|call| Bytes::copy_from_slice(call.operation().as_bytes())).collect();
        let found = self.find(namespace, &operations).await?;
        let mut state = self.0.state.lock().await;
        let tries = calls.iter().map(|call| {
            let same =
                |claim: &TransactionClaim| &*claim.namespace == namespace && claim.call.operation() == call.operation();
            if state.claims.iter().any(same) {
                return Tried::ClaimedHere;
            }
            if found.iter().any(|(operation, _)| *operation == call.operation()) {
                return Tried::NotInserted;
            }
            state.changes.push(claimed(namespace, call, self.0.number));
            state.claims.push(TransactionClaim { namespace: Arc::from(namespace), call: *call, is_open: true });
            Tried::Inserted
        });
        let tries = tries.collect();
        state.found = found;
        Ok(TriedClaims { transaction: Some(self.0.number), tries })
    }

    /// The locks of the claim last, so its rows are still the newest.
    async fn read(&mut self, _namespace: &str, operations: &[OperationId]) -> Result<Vec<FoundRow>, Fault> {
        let state = self.0.state.lock().await;
        let row = |operation| {
            let found = state.found.iter().find(|(found, _)| found == operation);
            found.map_or(FoundRow::Nothing, |(_, row)| row.clone())
        };
        Ok(operations.iter().map(row).collect())
    }

    /// Spanner has no savepoints: a new transaction is one.
    async fn savepoint(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    async fn roll_back_to_savepoint(&mut self) -> Result<(), Fault> {
        let claims = self.0.restart().await?;
        for TransactionClaim { namespace, call, .. } in claims {
            let tried = self.claim(&namespace, &[call]).await?;
            if tried.tries != [Tried::Inserted] {
                return Err(Fault::new(FaultKind::Conflict, "another transaction was faster"));
            }
        }
        Ok(())
    }

    async fn finish(&mut self, namespace: &str, rows: &[Finished], events: &[OutboxRow]) -> Result<usize, Fault> {
        let mut state = self.0.state.lock().await;
        let mut finished = 0;
        for row in rows {
            let own = state.claims.iter_mut().find(|claim| {
                claim.is_open && &*claim.namespace == namespace && claim.call.operation() == row.operation
            });
            let Some(own) = own else { continue };
            own.is_open = false;
            finished += 1;
            state.changes.push(ended(namespace, row));
        }
        if finished == rows.len() {
            for event in events {
                state.add_event(&outgoing(namespace, event));
            }
        }
        Ok(finished)
    }

    fn fault_of(error: &(dyn StdError + 'static)) -> Option<FaultKind> {
        error.downcast_ref::<SpannerStatementError>().map(SpannerStatementError::fault_kind)
    }
}

fn operation(value: &SqlValue) -> Result<OperationId> {
    let bytes = value.as_bytes()?;
    let bytes = <[u8; 16]>::try_from(&bytes[..]);
    bytes.map(OperationId::from_bytes).map_err(|error| damaged().caused_by(error))
}

fn found_row(row: &SqlList) -> Result<(OperationId, FoundRow)> {
    let [id, verdict, rule, fingerprint, run, answer] = columns::<6>(&row.values)?;
    let id = operation(id)?;
    let verdict = match (verdict.as_text()?, answer.as_text()?) {
        (Some("-1"), _) => return Ok((id, FoundRow::Dead)),
        (Some("1"), Some(_)) => LedgerVerdict::Applied,
        (Some("2"), Some(_)) => LedgerVerdict::Rejected,
        (_, _) => return Ok((id, FoundRow::Damaged)),
    };
    let fingerprint = fingerprint.as_bytes()?;
    let (Ok(rule), Ok(bytes)) = (u8::try_from(rule.as_integer()?), fingerprint[..].try_into()) else {
        return Ok((id, FoundRow::Damaged));
    };
    let row = Row {
        fingerprint: Fingerprint::from_parts(Rule(rule), bytes),
        verdict,
        answer: answer.as_bytes()?,
        transaction: Some(run.as_integer()?.cast_unsigned()),
    };
    Ok((id, FoundRow::Row(row)))
}

fn damaged() -> Error {
    Error::new(ErrorKind::Damaged, "a row of the ledger cannot be read")
}

fn unreadable(error: Error) -> Fault {
    Fault::new(FaultKind::Failed, error)
}

fn claimed(namespace: &str, call: &Call, number: u64) -> Mutation {
    let fingerprint = call.newest_fingerprint();
    insert(
        "hapax_ledger",
        vec![
            ("operation", SqlValue::bytes(call.operation().as_bytes())),
            ("namespace", SqlValue::text(namespace.to_owned())),
            ("open", SqlValue::integer(1)),
            ("rule", SqlValue::integer(fingerprint.rule().0.into())),
            ("fingerprint", SqlValue::bytes(fingerprint.as_bytes())),
            ("run", SqlValue::integer(number.cast_signed())),
            ("created_at", SqlValue::commit_time()),
        ],
    )
}

fn ended(namespace: &str, row: &Finished) -> Mutation {
    let verdict = match row.verdict {
        LedgerVerdict::Applied => 1,
        LedgerVerdict::Rejected => 2,
    };
    let columns = vec![
        ("operation", SqlValue::bytes(row.operation.as_bytes())),
        ("namespace", SqlValue::text(namespace.to_owned())),
        ("open", SqlValue::null()),
        ("verdict", SqlValue::integer(verdict)),
        ("answer", SqlValue::bytes(&row.answer)),
    ];
    Mutation { kind: Some(MutationKind::Update(written("hapax_ledger", columns))) }
}

/// The change that inserts an event, which is the `number`-th of its transaction.
pub(super) fn emitted(event: &OutgoingEvent, number: i64) -> Mutation {
    let headers: BTreeMap<_, _> =
        event.headers.iter().map(|(name, value)| (name, String::from_utf8_lossy(value))).collect();
    let headers = serde_json::to_string(&headers).expect("texts can be written as JSON");
    let text = |value: &Option<String>| value.clone().map_or_else(SqlValue::null, SqlValue::text);
    let bytes = |value: Option<&[u8]>| value.map_or_else(SqlValue::null, SqlValue::bytes);
    let operation = event.operation.as_ref().map(|operation| &operation.as_bytes()[..]);
    insert(
        "hapax_outbox",
        vec![
            ("bucket", SqlValue::integer(bucket_of(&event.order()).into())),
            ("created_at", SqlValue::commit_time()),
            ("seq", SqlValue::integer(number)),
            ("event_id", SqlValue::bytes(event.id.as_bytes())),
            ("namespace", SqlValue::text(event.namespace.clone())),
            ("operation", bytes(operation)),
            ("n", event.number.map_or_else(SqlValue::null, |number| SqlValue::integer(number.into()))),
            ("okey", bytes(event.ordering_key.as_deref())),
            ("topic", SqlValue::text(event.topic.clone())),
            ("type", text(&event.kind)),
            ("source", text(&event.source)),
            ("content_type", text(&event.content_type)),
            ("headers", SqlValue::text(headers)),
            ("state", SqlValue::integer(0)),
            ("payload", SqlValue::bytes(&event.payload)),
        ],
    )
}

/// An event of an operation.
fn outgoing(namespace: &str, row: &OutboxRow) -> OutgoingEvent {
    OutgoingEvent {
        namespace: namespace.to_owned(),
        operation: Some(row.operation),
        number: Some(row.number),
        ordering_key: row.ordering_key.clone(),
        kind: row.kind.clone(),
        source: row.source.clone(),
        content_type: row.content_type.clone(),
        headers: row.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        ..OutgoingEvent::new(row.id, row.topic.clone(), row.payload.clone())
    }
}

/// The change of a failed attempt: its number, whether it is the first one, and whether it closes the operation.
pub(super) fn attempt(
    namespace: &str,
    operation: OperationId,
    (attempts, is_first, is_last): (i64, bool, bool),
    error: &str,
) -> Mutation {
    let mut columns = vec![
        ("operation", SqlValue::bytes(operation.as_bytes())),
        ("namespace", SqlValue::text(namespace.to_owned())),
        ("attempts", SqlValue::integer(attempts)),
        ("last_error", SqlValue::text(error.to_owned())),
    ];
    columns.extend(is_first.then(|| ("first_at", SqlValue::commit_time())));
    columns.extend(is_last.then(|| ("dead_at", SqlValue::commit_time())));
    let rows = written("hapax_attempt", columns);
    Mutation { kind: Some(if is_first { MutationKind::Insert(rows) } else { MutationKind::Update(rows) }) }
}

/// Forgets the failed attempts of an operation.
pub(super) fn forget(namespace: &str, operation: OperationId) -> Mutation {
    let values = vec![SqlValue::bytes(operation.as_bytes()), SqlValue::text(namespace.to_owned())];
    let key_set = Some(KeySet { keys: vec![SqlList { values }] });
    Mutation { kind: Some(MutationKind::Delete(DeletedRows { table: "hapax_attempt".to_owned(), key_set })) }
}

fn insert(table: &str, columns: Vec<(&str, SqlValue)>) -> Mutation {
    Mutation { kind: Some(MutationKind::Insert(written(table, columns))) }
}

fn written(table: &str, columns: Vec<(&str, SqlValue)>) -> WrittenRows {
    let (columns, values) = columns.into_iter().map(|(name, value)| (name.to_owned(), value)).unzip();
    WrittenRows { table: table.to_owned(), columns, values: vec![SqlList { values }] }
}

//! The door of every language: `hapax_once`, `hapax_emit` and `hapax_done`, called as `docs/ledger.md` says.

use std::cell::RefCell;

use async_trait::async_trait;
use hapax_core::ledger::{Call, Claimed, Event};
use hapax_core::outbox::OutgoingEvent;
use hapax_core::{BoxError, Error, ErrorKind, EventId, Fingerprint, OperationId, Result};
use hapax_testkit::{Execute, Snapshot};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::driver::OwnTransaction;
use super::session::{DoorOptions, OwnDoor};

pub(super) fn door(options: DoorOptions) -> Box<dyn OwnDoor> {
    let DoorOptions { ledger, url, schema } = options;
    let namespace = ledger.terms().namespace().to_string();
    Box::new(FunctionsDoor { transaction: OwnTransaction::at(url), schema, namespace, events: RefCell::default() })
}

struct FunctionsDoor {
    transaction: OwnTransaction,
    schema: String,
    namespace: String,
    events: RefCell<Vec<FunctionsEvent>>,
}

struct FunctionsEvent {
    operation: OperationId,
    event: OutgoingEvent,
    is_in_commit_order: bool,
}

impl FunctionsDoor {
    async fn call(&self, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<tokio_postgres::Row> {
        let sql = sql.replace("hapax_", &format!("{}.hapax_", self.schema));
        let rows = self.transaction.get().query_typed(&sql, parameters).await.map_err(error)?;
        Ok(rows.into_iter().next().expect("a function returns a row"))
    }

    fn push(&self, operation: OperationId, event: Event, is_in_commit_order: bool) -> Result<EventId> {
        let mut events = self.events.borrow_mut();
        let n = events.iter().filter(|other| other.operation == operation).count();
        let id = operation.event(&self.namespace, u32::try_from(n).expect("an operation emits few events"));
        let event = event.into_outgoing(id)?;
        if is_in_commit_order && event.ordering_key.is_none() {
            return Err(Error::new(ErrorKind::Invalid, "the event has no ordering key"));
        }
        events.push(FunctionsEvent { operation, event, is_in_commit_order });
        Ok(id)
    }

    async fn write_event(&self, n: i32, written: FunctionsEvent) -> Result<()> {
        let (operation, event) = (written.operation.to_string(), written.event);
        let key = event.ordering_key.as_deref();
        let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
            (&self.namespace, Type::TEXT),
            (&operation, Type::TEXT),
            (&n, Type::INT4),
            (&event.topic, Type::TEXT),
            (&&event.payload[..], Type::BYTEA),
            (&key, Type::BYTEA),
            (&written.is_in_commit_order, Type::BOOL),
        ];
        let emit = "select hapax_emit($1, $2::pg_catalog.uuid, $3, $4, $5, $6, in_commit_order => $7)::pg_catalog.text";
        let row = self.call(emit, &parameters).await?;
        assert_eq!(row.get::<_, &str>(0), event.id.to_string(), "the function derives the same id");
        Ok(())
    }
}

fn error(error: tokio_postgres::Error) -> Error {
    Error::new(ErrorKind::NotApplied, "the function failed").caused_by(error)
}

/// At a claim, 55000 says that this transaction has claimed the operation before.
fn claim_error(error: Error) -> Error {
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<tokio_postgres::Error>());
    match source.and_then(tokio_postgres::Error::code) {
        Some(code) if *code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => Error::new(ErrorKind::Invalid, "twice"),
        _ => error,
    }
}

/// The newest fingerprint, and after a comma the older one. Null for none.
fn fingerprints(call: &Call) -> Option<String> {
    let newest = call.newest_fingerprint();
    let older = call.older_fingerprint().map_or(String::new(), |older| format!(", {older}"));
    (newest != Fingerprint::NONE).then(|| format!("{newest}{older}"))
}

#[async_trait(?Send)]
impl Execute for FunctionsDoor {
    async fn execute(&self, sql: &str) -> Result<(), BoxError> {
        self.transaction.execute(sql).await
    }
}

#[async_trait(?Send)]
impl OwnDoor for FunctionsDoor {
    async fn begin(&self, snapshot: Snapshot) -> Result<(), BoxError> {
        self.transaction.begin(snapshot).await
    }

    async fn claim(&self, call: &Call) -> Result<Claimed<String, ()>> {
        let (operation, fingerprint) = (call.operation().to_string(), fingerprints(call));
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&self.namespace, Type::TEXT), (&operation, Type::TEXT), (&fingerprint, Type::TEXT)];
        let once =
            "select outcome, pg_catalog.convert_from(answer, 'UTF8') from hapax_once($1, $2::pg_catalog.uuid, $3)";
        let row = self.call(once, &parameters).await.map_err(claim_error)?;
        Ok(match row.get(0) {
            "fresh" => Claimed::Fresh(()),
            "replay" => Claimed::Replay(row.get(1)),
            "mismatch" => Claimed::Mismatch,
            "busy" => Claimed::Busy,
            "dead" => Claimed::Dead,
            outcome => panic!("hapax_once returned {outcome}"),
        })
    }

    fn emit(&self, operation: OperationId, event: Event) -> Result<EventId> {
        self.push(operation, event, false)
    }

    fn emit_ordered(&self, operation: OperationId, event: Event) -> Result<EventId> {
        self.push(operation, event, true)
    }

    async fn finish(&self, operation: OperationId, answer: &str) -> Result<()> {
        let text = operation.to_string();
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&self.namespace, Type::TEXT), (&text, Type::TEXT), (&answer.as_bytes(), Type::BYTEA)];
        self.call("select hapax_done($1, $2::pg_catalog.uuid, $3)", &parameters).await?;
        let events: Vec<_> = self.events.borrow_mut().extract_if(.., |event| event.operation == operation).collect();
        for (n, event) in (0..).zip(events) {
            self.write_event(n, event).await?;
        }
        Ok(())
    }

    async fn commit(&self) -> Result<(), BoxError> {
        self.transaction.commit().await
    }

    async fn roll_back(&self) {
        self.transaction.roll_back().await;
    }
}

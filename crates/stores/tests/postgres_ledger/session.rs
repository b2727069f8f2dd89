//! A session, whatever the door of its own transactions.

use async_trait::async_trait;
use hapax_core::ledger::{Call, CallResult, Claimed, Entry, Event, HandlerFailure, Work};
use hapax_core::{BoxError, EventId, OperationId, Result};
use hapax_stores::{PostgresLedger, PostgresTransaction, SqlxRunner};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::{Execute, LedgerSession, Script, Snapshot};
use sqlx::PgConnection;

use super::sqlx::WithinSqlx;

/// What a door is made of.
pub(super) struct DoorOptions {
    pub(super) ledger: PostgresLedger,
    /// The URL of the role that uses the ledger.
    pub(super) url: String,
    pub(super) schema: String,
}

pub(super) type MakeDoor = fn(DoorOptions) -> Box<dyn OwnDoor>;

/// The ledger in a transaction of the caller's own. The methods are those of `LedgerSession`.
#[async_trait(?Send)]
pub(super) trait OwnDoor: Execute {
    async fn begin(&self, snapshot: Snapshot) -> Result<(), BoxError>;
    async fn claim(&self, call: &Call) -> Result<Claimed<String, ()>>;
    fn emit(&self, operation: OperationId, event: Event) -> Result<EventId>;
    fn emit_ordered(&self, operation: OperationId, event: Event) -> Result<EventId>;
    async fn finish(&self, operation: OperationId, answer: &str) -> Result<()>;
    async fn commit(&self) -> Result<(), BoxError>;
    async fn roll_back(&self);
}

pub(super) struct PostgresSession {
    pub(super) ledger: PostgresLedger,
    /// Runs calls instead of the ledger.
    pub(super) runner: Option<SqlxRunner>,
    pub(super) door: Box<dyn OwnDoor>,
    pub(super) proxy: Option<Proxy>,
}

/// The transaction of a handler.
struct Within<'t>(&'t PostgresTransaction<'t>);

#[async_trait(?Send)]
impl Execute for Within<'_> {
    async fn execute(&self, sql: &str) -> Result<(), BoxError> {
        Ok(self.0.batch_execute(sql).await?)
    }
}

#[async_trait(?Send)]
impl Execute for PostgresSession {
    async fn execute(&self, sql: &str) -> Result<(), BoxError> {
        self.door.execute(sql).await
    }
}

#[async_trait(?Send)]
impl LedgerSession for PostgresSession {
    async fn run(&self, call: Call, script: &Script) -> CallResult<String> {
        if let Some(runner) = &self.runner {
            let handler = async |transaction: &mut PgConnection, entry: &mut Entry| {
                let handled = script.handle(&WithinSqlx::new(transaction), std::slice::from_mut(entry)).await;
                handled.map(|mut answers| answers.remove(0)).map_err(|failed| failed.failure)
            };
            return runner.run(call, handler).await;
        }
        let handler = async |transaction: &PostgresTransaction<'_>, entry: &mut Entry| {
            let handled = script.handle(&Within(transaction), std::slice::from_mut(entry)).await;
            handled.map(|mut answers| answers.remove(0)).map_err(|failed| failed.failure)
        };
        self.ledger.run(call, handler).await
    }

    async fn run_batch(&self, work: Vec<Work>, script: &Script) -> Vec<CallResult<String>> {
        if let Some(runner) = &self.runner {
            let handler = async |transaction: &mut PgConnection, entries: &mut [Entry]| {
                script.handle(&WithinSqlx::new(transaction), entries).await.map_err(HandlerFailure::from)
            };
            return runner.run_batch(work, handler).await;
        }
        let handler = async |transaction: &PostgresTransaction<'_>, entries: &mut [Entry]| {
            script.handle(&Within(transaction), entries).await.map_err(HandlerFailure::from)
        };
        self.ledger.run_batch(work, handler).await
    }

    async fn reopen(&self, operation: OperationId) -> Result<bool> {
        self.ledger.reopen(operation).await
    }

    async fn begin(&self, snapshot: Snapshot) -> Result<(), BoxError> {
        self.door.begin(snapshot).await
    }

    async fn claim(&self, call: &Call) -> Result<Claimed<String, ()>> {
        self.door.claim(call).await
    }

    fn emit(&self, operation: OperationId, event: Event) -> Result<EventId> {
        self.door.emit(operation, event)
    }

    fn emit_ordered(&self, operation: OperationId, event: Event) -> Result<EventId> {
        self.door.emit_ordered(operation, event)
    }

    async fn finish(&self, operation: OperationId, answer: &str) -> Result<()> {
        self.door.finish(operation, answer).await
    }

    async fn commit(&self) -> Result<(), BoxError> {
        self.door.commit().await
    }

    async fn roll_back(&self) {
        self.door.roll_back().await;
    }

    fn was_cut(&self) -> bool {
        self.proxy.as_ref().is_some_and(|proxy| proxy.counts().cuts > 0)
    }
}

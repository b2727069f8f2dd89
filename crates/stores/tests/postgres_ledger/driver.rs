//! The door of the driver `tokio_postgres`: `PostgresLedger::claim` and `PostgresEntry::finish`.

use std::cell::RefCell;
use std::rc::Rc;

use async_trait::async_trait;
use hapax_core::ledger::{Call, Claimed, Event};
use hapax_core::{BoxError, EventId, OperationId, Result};
use hapax_stores::{PostgresEntry, PostgresLedger};
use hapax_testkit::{Execute, Snapshot};
use tokio_postgres::{Client, IsolationLevel, Transaction};

use super::connect;
use super::session::{DoorOptions, OwnDoor};

pub(super) fn door(options: DoorOptions) -> Box<dyn OwnDoor> {
    let transaction = OwnTransaction::at(options.url);
    Box::new(DriverDoor { ledger: options.ledger, transaction, entries: RefCell::default() })
}

/// A transaction of the caller's own.
pub(super) struct OwnTransaction {
    url: String,
    open: RefCell<Option<Rc<Transaction<'static>>>>,
}

impl OwnTransaction {
    pub(super) fn at(url: String) -> Self {
        Self { url, open: RefCell::default() }
    }

    pub(super) fn get(&self) -> Rc<Transaction<'static>> {
        Rc::clone(self.open.borrow().as_ref().expect("a transaction was begun"))
    }

    fn take(&self) -> Option<Transaction<'static>> {
        Rc::into_inner(self.open.take()?)
    }

    /// Begins on a connection of its own, which ends with the runtime.
    pub(super) async fn begin(&self, snapshot: Snapshot) -> Result<(), BoxError> {
        let client: &'static mut Client = Box::leak(Box::new(connect(&self.url).await?));
        let level = match snapshot {
            Snapshot::PerStatement => IsolationLevel::ReadCommitted,
            Snapshot::PerTransaction => IsolationLevel::RepeatableRead,
        };
        let transaction = client.build_transaction().isolation_level(level).start().await;
        *self.open.borrow_mut() = Some(Rc::new(transaction?));
        Ok(())
    }

    pub(super) async fn execute(&self, sql: &str) -> Result<(), BoxError> {
        Ok(self.get().batch_execute(sql).await?)
    }

    pub(super) async fn commit(&self) -> Result<(), BoxError> {
        let transaction = self.take().expect("a transaction was begun");
        Ok(transaction.commit().await?)
    }

    pub(super) async fn roll_back(&self) {
        if let Some(transaction) = self.take() {
            // If the connection broke, the server rolls back.
            drop(transaction.rollback().await);
        }
    }
}

struct DriverDoor {
    ledger: PostgresLedger,
    transaction: OwnTransaction,
    entries: RefCell<Vec<PostgresEntry>>,
}

impl DriverDoor {
    fn entry(&self, operation: OperationId) -> usize {
        let place = self.entries.borrow().iter().position(|entry| entry.operation() == operation);
        place.expect("the operation was claimed")
    }
}

#[async_trait(?Send)]
impl Execute for DriverDoor {
    async fn execute(&self, sql: &str) -> Result<(), BoxError> {
        self.transaction.execute(sql).await
    }
}

#[async_trait(?Send)]
impl OwnDoor for DriverDoor {
    async fn begin(&self, snapshot: Snapshot) -> Result<(), BoxError> {
        self.transaction.begin(snapshot).await
    }

    async fn claim(&self, call: &Call) -> Result<Claimed<String, ()>> {
        let claimed = self.ledger.claim(&self.transaction.get(), call).await?;
        Ok(claimed.map_entry(|entry| self.entries.borrow_mut().push(entry)))
    }

    fn emit(&self, operation: OperationId, event: Event) -> Result<EventId> {
        let place = self.entry(operation);
        self.entries.borrow_mut()[place].emit(event)
    }

    fn emit_ordered(&self, operation: OperationId, event: Event) -> Result<EventId> {
        let place = self.entry(operation);
        self.entries.borrow_mut()[place].emit_ordered(event)
    }

    async fn finish(&self, operation: OperationId, answer: &str) -> Result<()> {
        let place = self.entry(operation);
        let entry = self.entries.borrow_mut().remove(place);
        entry.finish(&self.transaction.get(), &answer.to_owned()).await
    }

    async fn commit(&self) -> Result<(), BoxError> {
        self.transaction.commit().await
    }

    async fn roll_back(&self) {
        self.transaction.roll_back().await;
    }
}

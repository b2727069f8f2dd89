//! The door of sqlx: `SqlxLedger::claim` and `SqlxEntry::finish`, and its runner.

use std::cell::RefCell;

use async_trait::async_trait;
use hapax_core::ledger::{Call, Claimed, Event};
use hapax_core::{BoxError, EventId, OperationId, Result};
use hapax_stores::{SqlxEntry, SqlxLedger, SqlxRunner};
use hapax_testkit::{Execute, Snapshot};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor, PgConnection, Postgres, Transaction};
use tokio::sync::Mutex;

use super::session::{DoorOptions, OwnDoor};

pub(super) fn door(options: DoorOptions) -> Box<dyn OwnDoor> {
    let (transaction, entries) = (RefCell::default(), RefCell::default());
    Box::new(SqlxDoor { ledger: ledger(&options), url: options.url, transaction, entries })
}

/// A runner, which connects at its first call.
pub(super) fn runner(options: &DoorOptions) -> SqlxRunner {
    ledger(options).runner(PgPoolOptions::new().max_connections(4).connect_lazy_with(at(&options.url)))
}

fn ledger(options: &DoorOptions) -> SqlxLedger {
    let ledger = SqlxLedger::new(options.ledger.terms().clone()).in_schema(&options.schema);
    ledger.expect("the name is plain")
}

/// A pooler refuses parameters of a session that it does not know.
fn at(url: &str) -> PgConnectOptions {
    url.parse::<PgConnectOptions>().expect("the URL is valid").extra_float_digits(None)
}

/// The transaction of a handler.
pub(super) struct WithinSqlx<'c>(Mutex<&'c mut PgConnection>);

impl<'c> WithinSqlx<'c> {
    pub(super) fn new(transaction: &'c mut PgConnection) -> Self {
        Self(Mutex::new(transaction))
    }
}

#[async_trait(?Send)]
impl Execute for WithinSqlx<'_> {
    async fn execute(&self, sql: &str) -> Result<(), BoxError> {
        let mut transaction = self.0.lock().await;
        Ok(transaction.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.map(drop)?)
    }
}

struct SqlxDoor {
    ledger: SqlxLedger,
    url: String,
    /// Taken while it works. A call that is dropped drops it, which rolls it back.
    transaction: RefCell<Option<Transaction<'static, Postgres>>>,
    entries: RefCell<Vec<SqlxEntry>>,
}

impl SqlxDoor {
    fn take(&self) -> Transaction<'static, Postgres> {
        self.transaction.take().expect("a transaction was begun")
    }

    fn put_back(&self, transaction: Transaction<'static, Postgres>) {
        *self.transaction.borrow_mut() = Some(transaction);
    }

    fn entry(&self, operation: OperationId) -> usize {
        let place = self.entries.borrow().iter().position(|entry| entry.operation() == operation);
        place.expect("the operation was claimed")
    }
}

#[async_trait(?Send)]
impl Execute for SqlxDoor {
    async fn execute(&self, sql: &str) -> Result<(), BoxError> {
        let mut transaction = self.take();
        let executed = transaction.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await;
        self.put_back(transaction);
        Ok(executed.map(drop)?)
    }
}

#[async_trait(?Send)]
impl OwnDoor for SqlxDoor {
    /// Begins on a connection of its own, which ends with the transaction.
    async fn begin(&self, snapshot: Snapshot) -> Result<(), BoxError> {
        let begin = match snapshot {
            Snapshot::PerStatement => "begin isolation level read committed",
            Snapshot::PerTransaction => "begin isolation level repeatable read",
        };
        let pool = PgPoolOptions::new().max_connections(1).connect_with(at(&self.url)).await?;
        self.put_back(pool.begin_with(begin).await?);
        Ok(())
    }

    async fn claim(&self, call: &Call) -> Result<Claimed<String, ()>> {
        let mut transaction = self.take();
        let claimed = self.ledger.claim(&mut transaction, call).await;
        self.put_back(transaction);
        Ok(claimed?.map_entry(|entry| self.entries.borrow_mut().push(entry)))
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
        let mut transaction = self.take();
        let finished = entry.finish(&mut transaction, &answer.to_owned()).await;
        self.put_back(transaction);
        finished
    }

    async fn commit(&self) -> Result<(), BoxError> {
        Ok(self.take().commit().await?)
    }

    async fn roll_back(&self) {
        if let Some(transaction) = self.transaction.take() {
            // If the connection broke, the server rolls back.
            drop(transaction.rollback().await);
        }
    }
}

//! The runner of the ledger over a pool of sqlx: it opens the transactions itself.

mod connection;
mod handlers;
mod process;
mod statements;

use std::fmt;
use std::sync::Arc;

use hapax_core::OperationId;
use hapax_core::gate::{Answer, Failure, Refused, RunResult};
use hapax_core::ledger::{
    self, Attempted, Batch, Call, CallResult, Entry, FailedCall, Fault, FaultKind, FoundRow, HandlerFailure,
    RecentCopies, Slice, Work,
};
use hapax_core::runtime::Runtime;
use sqlx::postgres::{PgArguments, PgRow, Postgres};
use sqlx::query::Query;
use sqlx::{PgConnection, PgPool, Row};
use tokio::sync::Mutex;

use super::SqlxLedger;
use super::faults::{commit_fault, connect_fault, fault};
use super::statements::{found, statement};
use super::uuid::SqlxUuid;
use crate::ledger_runner::{self, RunTransactions};
use connection::HeldConnection;
use handlers::{SqlxBatchHandler, SqlxHandler, SqlxMany, SqlxOne};
pub use process::{HandleSqlxJobs, SqlxProcess};
use statements::RunnerStatements;

/// Runs operations of a [`SqlxLedger`] in transactions that it opens on connections of a pool. Cheap to clone.
/// `hapax migrate` creates the tables.
///
/// ```no_run
/// # async fn transfer(pool: sqlx::PgPool, call: hapax::ledger::Call) -> Result<String, hapax::BoxError> {
/// use hapax::ledger::{Entry, Event, Terms};
/// use hapax::stores::SqlxLedger;
/// use sqlx::PgConnection;
///
/// let runner = SqlxLedger::new(Terms::new("transfers")?).runner(pool);
/// let transfer = async |transaction: &mut PgConnection, entry: &mut Entry| {
///     sqlx::query("insert into transfer values (5)").execute(&mut *transaction).await?;
///     entry.emit(Event::new("transferred", "5"))?;
///     Ok(String::from("transferred"))
/// };
/// Ok(runner.run(call, transfer).await?.answer)
/// # }
/// ```
///
/// A handler that begins a transaction on its connection gets a savepoint. It never ends the transaction of the runner.
/// The statements are sent unnamed, so the pool may be behind a pooler. If the future of the runner is dropped, the
/// connection is closed, and the server rolls back. The runner notifies no relay: a relay finds the events when it
/// looks the next time.
#[derive(Clone)]
pub struct SqlxRunner {
    ledger: SqlxLedger,
    pool: PgPool,
    runtime: Arc<dyn Runtime>,
    copies: Arc<RecentCopies>,
}

impl fmt::Debug for SqlxRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlxRunner").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

/// The role may have another default.
const BEGIN: &str = "begin isolation level read committed";

impl SqlxLedger {
    /// A runner of this ledger over a pool, on the current tokio runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn runner(&self, pool: PgPool) -> SqlxRunner {
        self.runner_on(pool, Arc::new(hapax_core::runtime::Tokio::current()))
    }

    /// A runner of this ledger over a pool, on this runtime.
    pub fn runner_on(&self, pool: PgPool, runtime: Arc<dyn Runtime>) -> SqlxRunner {
        SqlxRunner { ledger: self.clone(), pool, runtime, copies: Arc::default() }
    }
}

impl SqlxRunner {
    /// The ledger.
    pub fn ledger(&self) -> &SqlxLedger {
        &self.ledger
    }

    /// Runs the handler once for this call, in a transaction with its row. A later copy gets the same answer.
    ///
    /// `Ok` commits. [`Failure::Final`] undoes what the handler wrote and commits the answer. Every other failure and a
    /// panic undo everything. The handler may run several times; only one run commits.
    ///
    /// # Errors
    /// [`Refused`]; its reason says what the caller can do.
    ///
    /// # Cancel safety
    /// If dropped, the transaction commits as a whole or not at all. A later copy of the call finds out.
    pub async fn run<A, H>(&self, call: Call, handler: H) -> Result<RunResult<A>, Refused<A>>
    where
        A: Answer,
        H: AsyncFn(&mut PgConnection, &mut Entry) -> Result<A, Failure<A>>,
    {
        let work = vec![Work { call, ordering_key: None, is_redelivered: false }];
        self.run_to_end(work, SqlxOne(handler)).await.into_results().remove(0)
    }

    /// Runs the handler once for the calls of a batch that are new, in one transaction with their rows. If the handler
    /// fails, parts of the batch run in transactions of their own, until each call has its result. Returns one result
    /// for each call.
    ///
    /// # Cancel safety
    /// If dropped, each transaction commits as a whole or not at all. A later copy of the calls finds out.
    pub async fn run_batch<A, H>(&self, work: Vec<Work>, handler: H) -> Vec<CallResult<A>>
    where
        A: Answer,
        H: AsyncFn(&mut PgConnection, &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>>,
    {
        self.run_to_end(work, SqlxMany(handler)).await.into_results()
    }

    /// Runs the transactions of a batch until each call has its result.
    async fn run_to_end<A, H>(&self, work: Vec<Work>, handler: H) -> Batch<A>
    where
        A: Answer,
        H: SqlxBatchHandler<A>,
    {
        let batch = Batch::new(self.ledger.terms.clone(), work).with_copies(&self.copies);
        ledger_runner::run_to_end(self, &*self.runtime, batch, &handler).await
    }

    /// Runs a statement in a transaction of its own. The driver sends it in two parts, and a pooler gives both to the
    /// same session of the server only inside of a transaction.
    async fn query_alone(&self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, Fault> {
        let mut connection = HeldConnection::acquire(&self.pool).await.map_err(connect_fault)?;
        let mut transaction = connection.begin(BEGIN).await.map_err(fault)?;
        let rows = query.fetch_all(&mut *transaction).await.map_err(fault)?;
        transaction.commit().await.map_err(fault)?;
        connection.end();
        Ok(rows)
    }
}

impl<A: Answer, H: SqlxBatchHandler<A>> RunTransactions<A, H> for SqlxRunner {
    async fn run_slice(&self, batch: &Batch<A>, slice: &Slice, handler: &H) -> (Attempted<A>, Result<(), Fault>) {
        let mut connection = match HeldConnection::acquire(&self.pool).await {
            Ok(connection) => connection,
            Err(error) => return (Attempted::not_begun(connect_fault(error)), Ok(())),
        };
        let transaction = match connection.begin(BEGIN).await {
            Ok(transaction) => Mutex::new(transaction),
            Err(error) => return (Attempted::not_begun(fault(error)), Ok(())),
        };
        let mut statements = RunnerStatements::new(&self.ledger.sql, &transaction);
        let handler = SqlxHandler { handler, transaction: &transaction };
        let attempted = ledger::attempt(batch, slice, &mut statements, handler).await;
        let transaction = transaction.into_inner();
        let is_ready = attempted.is_ready();
        let ended = if is_ready { transaction.commit().await } else { transaction.rollback().await };
        let is_ended = ended.is_ok() && !connection.is_in_transaction();
        let commit = match ended.map_err(commit_fault) {
            // The reply does not matter: without one, the server rolls back all the same.
            _ if !is_ready => Ok(()),
            // It only released a savepoint. The connection is closed, so the server rolls back.
            Ok(()) if !is_ended => Err(Fault::new(FaultKind::Failed, SAVEPOINT_LEFT)),
            commit => commit,
        };
        // A server that takes no writes answers, too.
        if is_ended && !attempted.is_unavailable() {
            connection.end();
        }
        (attempted, commit)
    }

    async fn read_rows(&self, operations: &[OperationId]) -> Result<Vec<FoundRow>, Fault> {
        let operations: Vec<SqlxUuid> = operations.iter().copied().map(SqlxUuid::from).collect();
        let query = statement(&self.ledger.sql.read).bind(&**self.ledger.terms.namespace()).bind(operations);
        let rows = self.query_alone(query).await?;
        rows.iter().map(|row| found(row).map_err(fault)).collect()
    }

    async fn count(&self, failed: &FailedCall<A>) -> Result<u32, Fault> {
        let terms = &self.ledger.terms;
        let query = statement(&self.ledger.sql.count)
            .bind(&**terms.namespace())
            .bind(SqlxUuid::from(failed.operation))
            .bind(&*failed.error)
            .bind(ledger_runner::last_attempt(terms));
        let rows = self.query_alone(query).await?;
        let attempts = rows.first().map(|row| row.try_get::<i32, _>(0)).transpose().map_err(fault)?;
        Ok(attempts.unwrap_or(0).cast_unsigned())
    }
}

const SAVEPOINT_LEFT: &str = "the handler has begun a transaction on its connection and neither committed nor dropped \
    it";

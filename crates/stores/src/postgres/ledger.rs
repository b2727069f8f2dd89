//! The ledger in PostgreSQL: in the service's own database, so that its rows commit with the service's writes.

mod columns;
mod faults;
pub(super) mod guard;
mod handler_transaction;
mod handlers;
mod notifier;
mod prepared;
mod process;
mod statements;
mod upkeep;

use std::fmt;
use std::sync::Arc;

use hapax_core::gate::{Answer, Failure, Refused, RunResult};
use hapax_core::ledger::{
    self, Attempted, Batch, Call, CallResult, Claimed, Entry, Event, FailedCall, Fault, FoundRow, HandlerFailure,
    RecentCopies, Slice, Terms, Work,
};
use hapax_core::runtime::Runtime;
use hapax_core::{EventId, OperationId, Result, telemetry};
use tokio::sync::OnceCell;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Transaction};

use super::PostgresUrl;
use super::migrations;
use super::pool::ConnectionPool;
use crate::chaos::Mutant;
use crate::ledger_runner::{self, RunTransactions};
use faults::{call_fault, commit_fault, connect_fault, fault, tables_fault};
pub use handler_transaction::PostgresTransaction;
use handlers::{BatchHandler, Many, One, PostgresHandler};
use notifier::RelayNotifier;
use prepared::{Preparation, StatementSender};
pub use process::{HandleJobs, PostgresProcess};
use statements::{OpenedBy, Sql, TransactionStatements, found, uuid, uuids};

/// A ledger in PostgreSQL. Cheap to clone; all clones share one pool of connections.
///
/// In a transaction of the caller's own, on a connection of the caller's own:
///
/// ```no_run
/// # async fn transfer(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use hapax::ledger::{Call, Claimed, Event, Terms};
/// use hapax::stores::PostgresLedger;
/// use hapax::{Identity, Key, Scope};
///
/// let ledger = PostgresLedger::connect(&"postgres://app@localhost/shop".parse()?, Terms::new("transfers")?)?;
/// ledger.create_tables().await?; // or `hapax migrate`, by a role that may
/// let call = Call::from(Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?));
///
/// let transaction = client.transaction().await?;
/// match ledger.claim::<String>(&transaction, &call).await? {
///     Claimed::Fresh(mut entry) => {
///         transaction.execute("insert into transfer values (5)", &[]).await?;
///         entry.emit(Event::new("transferred", "5"))?;
///         entry.finish(&transaction, &String::from("transferred")).await?;
///         transaction.commit().await?;
///     }
///     Claimed::Replay(answer) => println!("before: {answer}"),
///     Claimed::Mismatch | Claimed::Busy | Claimed::Dead => println!("not now, or never"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresLedger {
    pool: ConnectionPool,
    runtime: Arc<dyn Runtime>,
    sql: Arc<Sql>,
    url: Arc<PostgresUrl>,
    /// Set once the tables are there.
    has_tables: Arc<OnceCell<()>>,
    notifier: Option<Arc<RelayNotifier>>,
    copies: Arc<RecentCopies>,
    preparation: Arc<Preparation>,
    terms: Terms,
}

impl fmt::Debug for PostgresLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLedger").field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl PostgresLedger {
    /// A ledger in the database of this URL, on the current tokio runtime. It connects at its first call.
    ///
    /// # Errors
    /// `Unusable` if a file in the URL cannot be read.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn connect(url: &PostgresUrl, terms: Terms) -> Result<Self> {
        Self::with(url, Arc::new(hapax_core::runtime::Tokio::current()), terms)
    }

    /// A ledger in the database of this URL, on this runtime. It connects at its first call, and logs its terms now.
    ///
    /// # Errors
    /// `Unusable` if a file in the URL cannot be read.
    pub fn with(url: &PostgresUrl, runtime: Arc<dyn Runtime>, terms: Terms) -> Result<Self> {
        let sql = Arc::new(Sql::new(&url.schema));
        let (url, connections) = (Arc::new(url.clone()), url.connections);
        let pool = ConnectionPool::for_handlers(Arc::clone(&url), Arc::clone(&runtime), connections)?;
        let own_connection = ConnectionPool::new(Arc::clone(&url), Arc::clone(&runtime), 1)?;
        let notifier = Some(Arc::new(RelayNotifier::new(own_connection, Arc::clone(&runtime))));
        telemetry::ledger_opened(&terms);
        let (has_tables, copies, preparation) = (Arc::default(), Arc::default(), Arc::default());
        Ok(Self { pool, runtime, sql, url, has_tables, notifier, copies, preparation, terms })
    }

    /// Notifies no relay. By default, the runner notifies them after a commit with events: on a connection of its own,
    /// at most every 20 ms. Behind a pooler that gives a session to several clients no relay can listen.
    #[must_use]
    pub fn without_notifications(mut self) -> Self {
        self.notifier = None;
        self
    }

    /// The terms.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Creates the tables that are missing. `run` and `run_batch` do so by themselves; `claim` does not, because its
    /// transaction is the caller's.
    ///
    /// # Errors
    /// - `NotApplied` if the server cannot be reached.
    /// - `Unusable` if tables are missing and the role may not create them, or the schema has a newer version.
    ///
    /// # Cancel safety
    /// If dropped, the tables are created as a whole or not at all.
    pub async fn create_tables(&self) -> Result<()> {
        let create = async || migrations::prepare(&self.pool, &self.url).await;
        self.has_tables.get_or_try_init(create).await?;
        Ok(())
    }

    /// Claims an operation in a transaction of the caller's own, or in a savepoint of one, on any connection to the
    /// same database. A handler of a runner claims with [`PostgresTransaction::claim`].
    ///
    /// # Errors
    /// - `NotApplied`: roll the transaction back and run it again: a conflict (40001, 40P01), a lost connection, or a
    ///   failed statement.
    /// - `Invalid`: the transaction has claimed this operation before.
    /// - `Unusable`: the tables are missing, or the role lacks a permission.
    /// - `Damaged`: the recorded answer cannot be decoded.
    ///
    /// # Cancel safety
    /// Roll the transaction back if the future is dropped.
    pub async fn claim<A: Answer>(
        &self,
        transaction: &Transaction<'_>,
        call: &Call,
    ) -> Result<Claimed<A, PostgresEntry>> {
        self.claim_on(transaction.client(), call).await
    }

    async fn claim_on<A: Answer>(&self, client: &Client, call: &Call) -> Result<Claimed<A, PostgresEntry>> {
        let mut statements = TransactionStatements::new(&self.sql, StatementSender::unnamed(client), OpenedBy::Caller);
        let claimed = ledger::claim_one(&mut statements, self.terms.namespace(), call).await?;
        Ok(claimed.map_entry(|entry| PostgresEntry { entry, sql: Arc::clone(&self.sql) }))
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
        H: AsyncFn(&PostgresTransaction<'_>, &mut Entry) -> Result<A, Failure<A>>,
    {
        self.run_all(vec![Work { call, ordering_key: None, is_redelivered: false }], One(handler)).await.remove(0)
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
        H: AsyncFn(&PostgresTransaction<'_>, &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>>,
    {
        self.run_all(work, Many(handler)).await
    }

    async fn run_all<A, H>(&self, work: Vec<Work>, handler: H) -> Vec<CallResult<A>>
    where
        A: Answer,
        H: BatchHandler<A>,
    {
        self.run_to_end(work, handler).await.into_results()
    }

    /// Runs the transactions of a batch until each call has its result.
    async fn run_to_end<A, H>(&self, work: Vec<Work>, handler: H) -> Batch<A>
    where
        A: Answer,
        H: BatchHandler<A>,
    {
        let batch = Batch::new(self.terms.clone(), work).with_copies(&self.copies);
        ledger_runner::run_to_end(self, &*self.runtime, batch, &handler).await
    }
}

impl<A: Answer, H: BatchHandler<A>> RunTransactions<A, H> for PostgresLedger {
    async fn read_rows(&self, operations: &[OperationId]) -> Result<Vec<FoundRow>, Fault> {
        self.create_tables().await.map_err(tables_fault)?;
        let (namespace, operations) = (&**self.terms.namespace(), uuids(operations));
        let parameters = [(&namespace as _, Type::TEXT), (&operations as _, Type::UUID_ARRAY)];
        let rows = self.pool.query(&self.sql.read, &parameters).await.map_err(call_fault)?;
        rows.iter().map(|row| found(row).map_err(fault)).collect()
    }

    async fn run_slice(&self, batch: &Batch<A>, slice: &Slice, handler: &H) -> (Attempted<A>, Result<(), Fault>) {
        if let Err(error) = self.create_tables().await {
            return (Attempted::not_begun(tables_fault(error)), Ok(()));
        }
        let mut call = match self.pool.begin_call().await {
            Ok(call) => call,
            Err(error) => return (Attempted::not_begun(connect_fault(error)), Ok(())),
        };
        if let Err(error) = self.preparation.prepare(&mut call, &self.sql).await {
            call.end_after(&error);
            return (Attempted::not_begun(call_fault(error)), Ok(()));
        }
        let client = call.client();
        let sender = StatementSender::of_runner(&call, &self.preparation);
        let mut statements = TransactionStatements::new(&self.sql, sender, OpenedBy::Runner);
        let transaction = PostgresTransaction::new(client);
        let handler = PostgresHandler { handler, transaction: &transaction };
        let attempted = ledger::attempt(batch, slice, &mut statements, handler).await;
        if Mutant::PostgresHandlerOutside.is_on() && !attempted.is_ready() && !statements.is_over() {
            drop(client.batch_execute(&self.sql.commit_effects_alone).await);
        }
        let (has_emitted, is_over) = (statements.has_emitted(), statements.is_over());
        let (commit, is_answered) = if is_over {
            (Ok(()), !attempted.is_commit_unknown())
        } else if attempted.is_ready() {
            let commit = client.batch_execute("commit").await.map_err(commit_fault);
            let is_answered = commit.is_ok();
            (commit, is_answered)
        } else {
            // If the ROLLBACK fails, the connection broke, and the server rolls back.
            (Ok(()), client.batch_execute("rollback").await.is_ok())
        };
        // A server that takes no writes answers, too.
        if is_answered && !attempted.is_unavailable() {
            call.end();
        }
        // Also if the reply is lost: a notification too many does no harm.
        if let Some(notifier) = self.notifier.as_ref().filter(|_| has_emitted && (is_over || attempted.is_ready())) {
            notifier.note_commit();
        }
        (attempted, commit)
    }

    async fn count(&self, failed: &FailedCall<A>) -> Result<u32, Fault> {
        let (namespace, operation) = (&**self.terms.namespace(), uuid(failed.operation));
        let last = ledger_runner::last_attempt(&self.terms);
        let parameters = [
            (&namespace as _, Type::TEXT),
            (&operation as _, Type::UUID),
            (&failed.error as _, Type::TEXT),
            (&last as _, Type::INT4),
        ];
        let rows = self.pool.query(&self.sql.count, &parameters).await.map_err(call_fault)?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i32>(0).cast_unsigned()))
    }
}

impl AsRef<Terms> for PostgresLedger {
    fn as_ref(&self) -> &Terms {
        &self.terms
    }
}

/// An entry of a [`PostgresLedger`], claimed in a transaction of the caller's own.
#[derive(Debug)]
#[must_use = "a transaction with an entry that is not finished cannot commit"]
pub struct PostgresEntry {
    entry: Entry,
    sql: Arc<Sql>,
}

impl PostgresEntry {
    /// The id of the operation: use it as the transaction id of the effect.
    pub fn operation(&self) -> OperationId {
        self.entry.operation()
    }

    /// Adds an event, which leaves after the commit. Returns its id.
    ///
    /// # Errors
    /// `Invalid` if the topic, the ordering key or the size is out of its limits. Nothing was added.
    pub fn emit(&mut self, event: Event) -> Result<EventId> {
        self.entry.emit(event)
    }

    /// As [`emit`](Self::emit), and the events of a key that are emitted so are published in the order in which their
    /// transactions commit; see [`Entry::emit_ordered`].
    ///
    /// # Errors
    /// As [`emit`](Self::emit), and `Invalid` if the event has no ordering key.
    pub fn emit_ordered(&mut self, event: Event) -> Result<EventId> {
        self.entry.emit_ordered(event)
    }

    /// Gives the entry up because the operation is refused, and logs nothing; see [`Entry::abandon`]. Roll the
    /// transaction back then.
    pub fn abandon(self) {
        self.entry.abandon();
    }

    /// Finishes the entry with this answer, and writes its events. Do it last, then commit.
    ///
    /// # Errors
    /// `NotApplied` if the transaction must be rolled back: a conflict, a failed statement, or a claim that was rolled
    /// back before.
    ///
    /// # Cancel safety
    /// Roll the transaction back if the future is dropped.
    pub async fn finish<A: Answer>(self, transaction: &Transaction<'_>, answer: &A) -> Result<()> {
        self.finish_on(transaction.client(), answer).await
    }

    async fn finish_on<A: Answer>(self, client: &Client, answer: &A) -> Result<()> {
        let mut statements = TransactionStatements::new(&self.sql, StatementSender::unnamed(client), OpenedBy::Caller);
        ledger::finish_one(&mut statements, self.entry, answer).await
    }
}

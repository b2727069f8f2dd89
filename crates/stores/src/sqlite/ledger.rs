//! The ledger in an SQLite file: the service's own file, so that its rows commit with the service's writes.

mod process;
mod statements;
mod upkeep;

use futures_util::FutureExt;
use hapax_core::gate::{Answer, Failure, Refused, RunResult};
use hapax_core::ledger::{
    self, Attempted, Batch, Call, CallResult, Claimed, Entry, Event, FailedCall, Fault, FaultKind, Handler,
    HandlerFailure, Slice, Step, Terms, Work,
};
use hapax_core::{Error, ErrorKind, EventId, OperationId, Result, telemetry};
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::connection;
use super::turn::Turn;
use crate::chaos::Mutant;
use crate::spread;
use statements::{ConnectionStatements, fault};

pub use process::SqliteProcess;

/// A ledger in an SQLite file.
///
/// In a transaction of the caller's own:
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use hapax::ledger::{Call, Claimed, Event, Terms};
/// use hapax::stores::SqliteLedger;
/// use hapax::{Identity, Key, Scope};
///
/// # let mut connection = rusqlite::Connection::open_in_memory()?;
/// # connection.execute_batch("create table transfer (amount integer)")?;
/// SqliteLedger::migrate(&mut connection)?;
/// let ledger = SqliteLedger::new(Terms::new("transfers")?);
/// let call = Call::from(Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?));
///
/// let transaction = connection.transaction()?;
/// match ledger.claim::<String>(&transaction, &call)? {
///     Claimed::Fresh(mut entry) => {
///         transaction.execute("insert into transfer values (5)", [])?;
///         entry.emit(Event::new("transferred", "5"))?;
///         entry.finish(&transaction, &String::from("transferred"))?;
///         transaction.commit()?;
///     }
///     Claimed::Replay(answer) => println!("before: {answer}"),
///     Claimed::Mismatch | Claimed::Busy | Claimed::Dead => println!("not now, or never"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteLedger {
    terms: Terms,
}

impl SqliteLedger {
    /// A ledger with these terms, which it logs. Its tables must exist: see [`SqliteLedger::migrate`].
    pub fn new(terms: Terms) -> Self {
        telemetry::ledger_opened(&terms);
        Self { terms }
    }

    /// The terms.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Creates the tables that are missing, and turns on the foreign keys of this connection, which the ledger needs.
    /// Call it for every connection.
    ///
    /// If another connection writes, it waits as long as the busy timeout of this connection says, but only where a
    /// table is missing.
    ///
    /// # Errors
    /// `Unusable` if the tables cannot be created.
    pub fn migrate(connection: &mut Connection) -> Result<()> {
        let unusable = |error| {
            Error::new(ErrorKind::Unusable, "the tables of the ledger cannot be created").caused_by(fault(error).source)
        };
        connection.pragma_update(None, "foreign_keys", true).map_err(unusable)?;
        connection::create(connection, include_str!("ledger/tables.sql")).map_err(unusable)
    }

    /// The statements of the ledger on a connection that is inside a transaction, for tests that disturb them. None of
    /// their futures waits.
    #[doc(hidden)]
    pub fn statements(transaction: &Connection) -> impl ledger::Transaction {
        ConnectionStatements(transaction)
    }

    /// Claims an operation in a transaction of the caller's own, or in a savepoint of one.
    ///
    /// # Errors
    /// - `NotApplied`: roll the transaction back and run it again: another connection writes, or a statement failed.
    /// - `Invalid`: the connection is not in a transaction, or the transaction has claimed this operation before and
    ///   has not finished it. Transactions of SQLite have no ids: after the finish it is a replay.
    /// - `Unusable`: the tables are missing, or foreign keys are off.
    /// - `Damaged`: the recorded answer cannot be decoded.
    pub fn claim<A: Answer>(&self, transaction: &Connection, call: &Call) -> Result<Claimed<A, SqliteEntry>> {
        if transaction.is_autocommit() {
            return Err(Error::new(ErrorKind::Invalid, "a claim needs a transaction; begin one first"));
        }
        let claimed = ready(ledger::claim_one(&mut ConnectionStatements(transaction), self.terms.namespace(), call))?;
        Ok(claimed.map_entry(SqliteEntry))
    }

    /// Runs the handler once for this call, in a transaction with its row. A later copy gets the same answer.
    ///
    /// `Ok` commits. [`Failure::Final`] undoes what the handler wrote and commits the answer. Every other failure and a
    /// panic undo everything. The handler may run several times; only one run commits.
    ///
    /// # Errors
    /// [`Refused`]; its reason says what the caller can do.
    pub fn run<A, H>(&self, connection: &mut Connection, call: Call, mut handler: H) -> Result<RunResult<A>, Refused<A>>
    where
        A: Answer,
        H: FnMut(&Transaction<'_>, &mut Entry) -> Result<A, Failure<A>>,
    {
        let one = |transaction: &Transaction<'_>, entries: &mut [Entry]| {
            let answer = handler(transaction, &mut entries[0]);
            answer.map(|answer| vec![answer]).map_err(|failure| HandlerFailure::of(0, failure))
        };
        let mut results =
            self.run_batch(connection, vec![Work { call, ordering_key: None, is_redelivered: false }], one);
        results.remove(0)
    }

    /// Runs the handler once for the calls of a batch that are new, in one transaction with their rows. If the handler
    /// fails, parts of the batch run in transactions of their own, until each call has its result. Returns one result
    /// for each call.
    pub fn run_batch<A, H>(&self, connection: &mut Connection, work: Vec<Work>, handler: H) -> Vec<CallResult<A>>
    where
        A: Answer,
        H: FnMut(&Transaction<'_>, &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>>,
    {
        self.run_to_end(connection, work, handler).into_results()
    }

    /// Runs the transactions of a batch until each call has its result.
    fn run_to_end<A, H>(&self, connection: &mut Connection, work: Vec<Work>, mut handler: H) -> Batch<A>
    where
        A: Answer,
        H: FnMut(&Transaction<'_>, &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>>,
    {
        let mut batch = Batch::new(self.terms.clone(), work);
        loop {
            match batch.step() {
                #[expect(clippy::disallowed_methods, reason = "`run_batch` blocks its caller, as SQLite does")]
                Step::Pause(pause) => std::thread::sleep(pause),
                Step::Transaction(slice) => run_slice(connection, &mut batch, slice, &mut handler),
                Step::Count(failed) => {
                    let attempts = self.count(connection, &failed);
                    batch.counted(failed, attempts);
                }
                Step::Done => return batch,
            }
        }
    }

    /// Counts a failed attempt in a transaction of its own, and closes the operation after the last one.
    fn count<A>(&self, connection: &mut Connection, failed: &FailedCall<A>) -> Result<u32, Fault> {
        let _turn = Turn::take(connection);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fault)?;
        let statements = ConnectionStatements(&transaction);
        let attempts = statements.count(self.terms.namespace(), failed.operation, &failed.error)?;
        if self.terms.is_last_attempt(attempts) {
            statements.bury(self.terms.namespace(), failed.operation)?;
        }
        transaction.commit().map_err(fault)?;
        Ok(attempts)
    }
}

impl AsRef<Terms> for SqliteLedger {
    fn as_ref(&self) -> &Terms {
        &self.terms
    }
}

/// An entry of an [`SqliteLedger`], claimed in a transaction of the caller's own.
#[derive(Debug)]
#[must_use = "a transaction with an entry that is not finished cannot commit"]
pub struct SqliteEntry(Entry);

impl SqliteEntry {
    /// The id of the operation: use it as the transaction id of the effect.
    pub fn operation(&self) -> OperationId {
        self.0.operation()
    }

    /// Adds an event, which leaves after the commit. Returns its id.
    ///
    /// # Errors
    /// `Invalid` if the topic, the ordering key or the size is out of its limits. Nothing was added.
    pub fn emit(&mut self, event: Event) -> Result<EventId> {
        self.0.emit(event)
    }

    /// As [`emit`](Self::emit), and the events of a key that are emitted so are published in the order in which their
    /// transactions commit; see [`Entry::emit_ordered`].
    ///
    /// # Errors
    /// As [`emit`](Self::emit), and `Invalid` if the event has no ordering key.
    pub fn emit_ordered(&mut self, event: Event) -> Result<EventId> {
        self.0.emit_ordered(event)
    }

    /// Gives the entry up because the operation is refused, and logs nothing; see [`Entry::abandon`]. Roll the
    /// transaction back then.
    pub fn abandon(self) {
        self.0.abandon();
    }

    /// Finishes the entry with this answer, and writes its events. Do it last, then commit.
    ///
    /// # Errors
    /// `NotApplied` if the transaction must be rolled back: a statement failed, or the claim was rolled back before.
    pub fn finish<A: Answer>(self, transaction: &Connection, answer: &A) -> Result<()> {
        ready(ledger::finish_one(&mut ConnectionStatements(transaction), self.0, answer))
    }
}

/// A handler with its transaction.
struct SqliteHandler<'t, H> {
    handler: &'t mut H,
    transaction: &'t Transaction<'t>,
}

impl<A, H> Handler<A> for SqliteHandler<'_, H>
where
    H: FnMut(&Transaction<'_>, &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>>,
{
    async fn handle(self, entries: &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>> {
        (self.handler)(self.transaction, entries)
    }
}

fn run_slice<A, H>(connection: &mut Connection, batch: &mut Batch<A>, slice: Slice, handler: &mut H)
where
    A: Answer,
    H: FnMut(&Transaction<'_>, &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>>,
{
    // Until the function ends: after COMMIT or ROLLBACK.
    let _turn = Turn::take(connection);
    let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let (attempted, commit) = match begun {
        Err(error) => (Attempted::not_begun(fault(error)), Ok(())),
        Ok(transaction) => {
            let handler = SqliteHandler { handler, transaction: &transaction };
            let attempted = ready(ledger::attempt(batch, &slice, &mut ConnectionStatements(&transaction), handler));
            if Mutant::HandlerOutside.is_on() && !attempted.is_ready() {
                drop(transaction.execute_batch(include_str!("ledger/commit_effects_alone.sql")));
            }
            let commit = if attempted.is_ready() { commit(transaction) } else { Ok(()) };
            (attempted, commit)
        }
    };
    batch.ended(slice, attempted, commit, spread::random());
}

/// Commits. A transaction that is still open after a failed COMMIT is rolled back, so it has no effect.
fn commit(transaction: Transaction<'_>) -> Result<(), Fault> {
    let Err(error) = transaction.execute_batch("commit") else {
        return Ok(());
    };
    let fault = fault(error);
    let has_ended = transaction.is_autocommit();
    // SQLite ended the transaction, and the error does not say how.
    Err(if has_ended { Fault { kind: FaultKind::CommitUnknown, ..fault } } else { fault })
}

/// The output of a future that does not wait.
fn ready<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("the statements of SQLite block, and do not wait")
}

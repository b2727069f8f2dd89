//! The ledger in a database of Spanner: the service's own, so that its rows commit with the service's writes.
//!
//! ```text
//! transaction.rs  a read-write transaction: statements, changes, commit
//! sql.rs          statements of the service, their parameters and rows
//! statements.rs   claim, read and finish in it
//! entry.rs        a claimed operation in a transaction of the caller's own
//! handlers.rs     handlers of one call or of many; process.rs hands them the messages of a worker
//! faults.rs       what can be done about a failure
//! ```

mod entry;
mod faults;
mod handlers;
mod process;
mod sql;
mod statements;
mod transaction;

use std::fmt;
use std::sync::Arc;

use hapax_core::gate::{Answer, Failure, Refused, RunResult};
use hapax_core::ledger::{
    self, Attempted, Batch, Call, CallResult, Claimed, Entry, FailedCall, Fault, HandlerFailure, RecentCopies,
    Retention, Slice, Step, Terms, Work,
};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_core::{Error, ErrorKind, OperationId, Result, telemetry};

pub use self::entry::SpannerEntry;
pub use self::faults::SpannerStatementError;
use self::faults::{before_commit, message};
use self::handlers::{ManySpannerCalls, OneSpannerCall, SpannerBatch, SpannerHandler};
pub use self::process::{HandleSpannerJobs, SpannerProcess};
pub use self::sql::{SpannerRow, SpannerStatement, SpannerValue};
use self::statements::SpannerStatements;
pub use self::transaction::SpannerTransaction;
use super::SpannerUrl;
use super::api::SpannerApi;
use super::transactions::TransactionEnd;
use super::values::{SqlStatement, columns};
use crate::spread;

/// A ledger in Google Cloud Spanner. Cheap to clone; all clones share one connection.
///
/// Its tables must exist: `hapax migrate --database spanner://…` makes them. A transaction of Spanner may be aborted at
/// any time. The runner then runs it again, and counts no failed attempt, so a handler may run several times, and only
/// one of its runs commits. It must do nothing outside of its transaction.
///
/// ```no_run
/// # async fn transfer() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use hapax::gate::Failure;
/// use hapax::ledger::{Call, Entry, Event, Terms};
/// use hapax::stores::{SpannerLedger, SpannerStatement, SpannerTransaction};
/// use hapax::{Identity, Key, Scope};
///
/// let ledger = SpannerLedger::connect(&"spanner://shop-4711/main/payments".parse()?, Terms::new("transfers")?)?;
/// let call = Call::from(Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?));
/// let transfer = async |transaction: &SpannerTransaction, entry: &mut Entry| {
///     let update = SpannerStatement::new("UPDATE account SET cents = cents - @cents WHERE id = @id");
///     transaction.execute(update.bind("cents", 5).bind("id", "acme")).await?;
///     entry.emit(Event::new("transferred", "5"))?;
///     Ok::<_, Failure<String>>("transferred".to_owned())
/// };
/// println!("{}", ledger.run(call, transfer).await?.answer);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SpannerLedger {
    api: SpannerApi,
    copies: Arc<RecentCopies>,
    terms: Terms,
}

impl SpannerLedger {
    /// A ledger in the database of this URL, on the current tokio runtime. It connects at its first call.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn connect(url: &SpannerUrl, terms: Terms) -> Result<Self> {
        Self::with(url, Arc::new(Tokio::current()), terms)
    }

    /// A ledger in the database of this URL, on this runtime. It connects at its first call, and logs its terms now.
    ///
    /// # Errors
    /// `Unusable` if the system has no authorities for TLS, and `Invalid` if the terms keep rows for longer than 90
    /// days, after which Spanner removes them.
    pub fn with(url: &SpannerUrl, runtime: Arc<dyn Runtime>, terms: Terms) -> Result<Self> {
        let is_kept = match (terms.kept_for(), Terms::RETENTION) {
            (Retention::For(asked), Retention::For(kept)) => asked <= kept,
            (Retention::Forever, _) => false,
            (_, Retention::Forever) => true,
        };
        if !is_kept {
            let message =
                "Spanner removes rows of the ledger 90 days after their commit; terms cannot keep them longer";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let api = SpannerApi::new(url, runtime)?;
        telemetry::ledger_opened(&terms);
        Ok(Self { api, copies: Arc::default(), terms })
    }

    /// The terms. Spanner removes rows by the policy of the table, which keeps them for 90 days.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// A read-write transaction of the caller's own. It begins with its first statement.
    ///
    /// # Errors
    /// `NotApplied` if Spanner gives no session, or too many transactions run.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn transaction(&self) -> Result<SpannerTransaction> {
        SpannerTransaction::new(&self.api).await.map_err(|failure| {
            Error::new(ErrorKind::NotApplied, "a transaction of Spanner cannot begin").caused_by(message(failure))
        })
    }

    /// Claims an operation in a transaction of the caller's own. No other transaction can end the operation before this
    /// one ends: Spanner aborts one of the two.
    ///
    /// # Errors
    /// - `NotApplied`: roll the transaction back and run it again.
    /// - `Invalid`: the transaction has claimed this operation before.
    /// - `Unusable`: the tables are missing.
    /// - `Damaged`: the recorded answer cannot be decoded.
    ///
    /// # Cancel safety
    /// Roll the transaction back if the future is dropped.
    pub async fn claim<A: Answer>(
        &self,
        transaction: &SpannerTransaction,
        call: &Call,
    ) -> Result<Claimed<A, SpannerEntry>> {
        let claimed = ledger::claim_one(&mut SpannerStatements(transaction), self.terms.namespace(), call).await?;
        Ok(claimed.map_entry(SpannerEntry::new))
    }

    /// Runs the handler once for this call, in a transaction with its row. A later copy gets the same answer.
    ///
    /// Spanner has no savepoints: after a final failure the transaction is rolled back, and the answer is recorded in
    /// another one.
    ///
    /// # Errors
    /// [`Refused`]; its reason says what the caller can do.
    ///
    /// # Cancel safety
    /// If dropped, the transaction is rolled back, or it commits as a whole.
    pub async fn run<A, H>(&self, call: Call, handler: H) -> Result<RunResult<A>, Refused<A>>
    where
        A: Answer,
        H: AsyncFn(&SpannerTransaction, &mut Entry) -> Result<A, Failure<A>>,
    {
        let work = vec![Work { call, ordering_key: None, is_redelivered: false }];
        self.run_to_end(work, OneSpannerCall(handler)).await.into_results().remove(0)
    }

    /// Runs the handler once for the calls of a batch that are new, in one transaction with their rows. Returns one
    /// result for each call.
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub async fn run_batch<A, H>(&self, work: Vec<Work>, handler: H) -> Vec<CallResult<A>>
    where
        A: Answer,
        H: AsyncFn(&SpannerTransaction, &mut [Entry]) -> Result<Vec<A>, HandlerFailure<A>>,
    {
        self.run_to_end(work, ManySpannerCalls(handler)).await.into_results()
    }

    /// Lets an operation run again that was closed after too many attempts. Returns whether it was closed.
    ///
    /// # Errors
    /// `NotApplied` or `Unknown`; it may be repeated.
    ///
    /// # Cancel safety
    /// If dropped, it may be done. It may be repeated.
    pub async fn reopen(&self, operation: OperationId) -> Result<bool> {
        let namespace = self.terms.namespace();
        let statement = SqlStatement::new(include_str!("ledger/dead_one.sql"));
        let statement = statement.bytes("operation", operation.as_bytes()).text("namespace", namespace);
        let reopened = self.api.transact(&statement, |rows| {
            Ok(match rows.is_empty() {
                true => TransactionEnd::Keep(false),
                false => TransactionEnd::Write(vec![statements::forget(namespace, operation)], true),
            })
        });
        reopened.await
    }

    /// Runs the transactions of a batch until each call has its result.
    async fn run_to_end<A, H>(&self, work: Vec<Work>, handler: H) -> Batch<A>
    where
        A: Answer,
        H: SpannerBatch<A>,
    {
        let mut batch = Batch::new(self.terms.clone(), work).with_copies(&self.copies);
        loop {
            match batch.step() {
                Step::Pause(pause) => self.api.runtime().sleep(pause).await,
                // The claim reads the rows of copies in the same trip.
                Step::Transaction(slice) => {
                    let (attempted, commit) = self.run_slice(&batch, &slice, &handler).await;
                    batch.ended(slice, attempted, commit, spread::random());
                }
                Step::Count(failed) => {
                    let attempts = self.count(&failed).await;
                    batch.counted(failed, attempts);
                }
                Step::Done => return batch,
            }
        }
    }

    /// Runs the calls of a slice in one transaction. Returns what it did, and the result of the commit.
    async fn run_slice<A, H>(&self, batch: &Batch<A>, slice: &Slice, handler: &H) -> (Attempted<A>, Result<(), Fault>)
    where
        A: Answer,
        H: SpannerBatch<A>,
    {
        let transaction = match SpannerTransaction::new(&self.api).await {
            Ok(transaction) => transaction,
            Err(failure) => return (Attempted::not_begun(before_commit(failure)), Ok(())),
        };
        let handler = SpannerHandler { handler, transaction: &transaction };
        let attempted = ledger::attempt(batch, slice, &mut SpannerStatements(&transaction), handler).await;
        if attempted.is_ready() {
            let commit = transaction.try_commit().await;
            return (attempted, commit);
        }
        transaction.roll_back().await;
        (attempted, Ok(()))
    }

    /// Counts a failed attempt in a transaction of its own, and closes the operation after the last one.
    async fn count<A>(&self, failed: &FailedCall<A>) -> Result<u32, Fault> {
        let (namespace, operation, error) = (self.terms.namespace(), failed.operation, &*failed.error);
        let statement = SqlStatement::new(include_str!("ledger/attempts.sql"));
        let statement = statement.bytes("operation", operation.as_bytes()).text("namespace", namespace);
        let counted = self.api.transact(&statement, |rows| {
            let before = rows.first().map(|row| columns::<1>(&row.values)?[0].as_integer()).transpose()?;
            let attempts = before.unwrap_or(0) + 1;
            let count = u32::try_from(attempts).unwrap_or(u32::MAX);
            let is_last = self.terms.is_last_attempt(count);
            let change = statements::attempt(namespace, operation, (attempts, before.is_none(), is_last), error);
            Ok(TransactionEnd::Write(vec![change], count))
        });
        counted.await.map_err(|error| Fault::new(faults::kind_of(error.kind()), error))
    }
}

impl AsRef<Terms> for SpannerLedger {
    fn as_ref(&self) -> &Terms {
        &self.terms
    }
}

impl fmt::Debug for SpannerLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpannerLedger").field("terms", &self.terms).finish_non_exhaustive()
    }
}

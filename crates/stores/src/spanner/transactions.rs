//! Transactions: each reads once, decides, and commits its changes. They run again after an abort.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::{Error, Result};

use super::answers::{SpannerFailure, SpannerResult};
use super::api::{LentSession, SpannerApi, SqlAnswer};
use super::messages::{
    CommitTransaction, Mutation, NoFields, ReadOnlyOptions, Selected, SqlList, TransactionMode, TransactionOptions,
    TransactionSelector,
};
use super::values::SqlStatement;
use crate::errors::not_applied;

/// How long a transaction runs again and again.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a call of a handle of its own waits behind calls of others, whose executor may be blocked. A call takes
/// less unless it is aborted again and again, or gets late answers.
pub(super) const LONGEST: Duration = Duration::from_secs(15);

/// The pause before a transaction runs again. It doubles each time.
pub(super) const PAUSE: Duration = Duration::from_millis(2);

/// How often the pause doubles.
const DOUBLINGS: u32 = 6;

/// How often a commit is sent that gets no answer.
pub(super) const COMMITS: usize = 3;

/// The end of a transaction that has read.
pub(super) enum TransactionEnd<R> {
    /// It changes nothing.
    Keep(R),
    /// It commits these changes.
    Write(Vec<Mutation>, R),
}

/// How the tries of a transaction went so far.
#[derive(Default)]
struct TransactionTries {
    count: u32,
    /// Whether a commit may have happened.
    is_unclear: bool,
}

impl SpannerApi {
    /// Reads, outside of any transaction, what was committed before this call.
    pub(super) async fn read(&self, statement: &SqlStatement) -> Result<Vec<SqlList>> {
        let mut tries = TransactionTries::default();
        let begun = self.runtime().boottime_now();
        loop {
            match self.read_once(statement).await {
                Ok(rows) => return Ok(rows),
                Err(failure) => self.pause_after(failure, begun, &mut tries).await?,
            }
        }
    }

    /// Runs a transaction to its end. `decide` gets the rows of the statement, and may be called several times.
    ///
    /// # Errors
    /// `NotApplied` if nothing was written, `Unknown` if a commit is not confirmed; or the error of `decide`.
    ///
    /// # Cancel safety
    /// If dropped, it may be committed, and if it is not, its locks last for seconds.
    pub(super) async fn transact<R>(
        &self,
        statement: &SqlStatement,
        decide: impl Fn(Vec<SqlList>) -> Result<TransactionEnd<R>> + Send + Sync,
    ) -> Result<R>
    where
        R: Send,
    {
        let mut tries = TransactionTries::default();
        let begun = self.runtime().boottime_now();
        loop {
            match self.transact_once(statement, &decide, &mut tries).await {
                Ok(result) => return Ok(result),
                Err(failure) => self.pause_after(failure, begun, &mut tries).await?,
            }
        }
    }

    /// Commits changes without reading. Returns false if a row to insert exists.
    ///
    /// # Errors
    /// As [`transact`](Self::transact).
    pub(super) async fn insert(&self, mutation: Mutation) -> Result<bool> {
        let mut tries = TransactionTries::default();
        let begun = self.runtime().boottime_now();
        loop {
            match self.insert_once(&mutation).await {
                Ok(()) => return Ok(true),
                Err(SpannerFailure::RowExists(_)) => return Ok(false),
                Err(failure) => {
                    // It is no transaction that could be asked for its end.
                    tries.is_unclear |= matches!(failure, SpannerFailure::Unclear(_));
                    self.pause_after(failure, begun, &mut tries).await?;
                }
            }
        }
    }

    /// A transaction that sees what was committed before its first statement, and nothing that comes later.
    pub(super) fn snapshot() -> TransactionSelector {
        begin(TransactionMode::ReadOnly(ReadOnlyOptions { strong: true, returns_time: true }))
    }

    async fn read_once(&self, statement: &SqlStatement) -> SpannerResult<Vec<SqlList>> {
        let mut session = self.session().await?;
        match session.run(statement, None).await {
            Ok(answer) => {
                session.give_back();
                Ok(answer.rows)
            }
            Err(failure) => {
                // A read alone leaves nothing in its session.
                match matches!(failure, SpannerFailure::LostSession(_)) {
                    true => session.forget(),
                    false => session.give_back(),
                }
                Err(failure)
            }
        }
    }

    async fn insert_once(&self, mutation: &Mutation) -> SpannerResult<()> {
        let session = self.session().await?;
        let transaction = CommitTransaction::SingleUse(options(TransactionMode::ReadWrite(NoFields {})));
        let committed = session.commit(transaction, vec![mutation.clone()]).await;
        match &committed {
            Ok(()) | Err(SpannerFailure::RowExists(_)) => session.give_back(),
            Err(failure) => session.end_after(failure),
        }
        committed
    }

    async fn transact_once<R>(
        &self,
        statement: &SqlStatement,
        decide: &(impl Fn(Vec<SqlList>) -> Result<TransactionEnd<R>> + Send + Sync),
        tries: &mut TransactionTries,
    ) -> SpannerResult<R> {
        let (session, SqlAnswer { rows, transaction, .. }) = self.session().await?.begin(statement).await?;
        let Some(transaction) = transaction else {
            return Err(SpannerFailure::Failed(not_applied("Spanner has not begun a transaction")));
        };
        match decide(rows) {
            Ok(TransactionEnd::Keep(result)) => {
                session.roll_back(transaction).await;
                Ok(result)
            }
            Ok(TransactionEnd::Write(mutations, result)) => {
                self.commit(session, (transaction, mutations), tries).await.map(|()| result)
            }
            Err(error) => {
                session.roll_back(transaction).await;
                Err(SpannerFailure::Failed(error))
            }
        }
    }

    /// Commits a transaction, and asks again if there is no answer.
    async fn commit(
        &self,
        session: LentSession,
        (transaction, mutations): (Bytes, Vec<Mutation>),
        tries: &mut TransactionTries,
    ) -> SpannerResult<()> {
        let mut sent = 0;
        loop {
            sent += 1;
            let failure = match session.commit(CommitTransaction::Id(transaction.clone()), mutations.clone()).await {
                Ok(()) => {
                    session.give_back();
                    return Ok(());
                }
                Err(failure) => failure,
            };
            tries.is_unclear |= matches!(failure, SpannerFailure::Unclear(_));
            if sent == COMMITS || !matches!(failure, SpannerFailure::Unclear(_)) {
                return Err(ended(session, failure));
            }
            self.runtime().sleep(PAUSE).await;
        }
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// The error of the whole, if there is no further try.
    async fn pause_after(&self, failure: SpannerFailure, begun: Duration, tries: &mut TransactionTries) -> Result<()> {
        let is_late = self.runtime().boottime_now().saturating_sub(begun) > PATIENCE;
        // The commit without an answer may be what has ended the transaction.
        let is_doubtful = tries.is_unclear && matches!(failure, SpannerFailure::LostSession(_));
        if is_late || is_doubtful || !failure.may_repeat() {
            return Err(error_of(failure, tries));
        }
        self.note(&failure);
        let longest = PAUSE * 2_u32.pow(tries.count.min(DOUBLINGS));
        tries.count += 1;
        let mut random = [0];
        self.runtime().fill_random(&mut random);
        // Two that have aborted each other must not meet again.
        self.runtime().sleep(longest * u32::from(random[0]) / 255).await;
        Ok(())
    }
}

fn error_of(failure: SpannerFailure, tries: &TransactionTries) -> Error {
    if tries.is_unclear { failure.into_error_after_commit() } else { failure.into_error() }
}

fn ended(session: LentSession, failure: SpannerFailure) -> SpannerFailure {
    session.end_after(&failure);
    failure
}

fn begin(mode: TransactionMode) -> TransactionSelector {
    TransactionSelector { selected: Some(Selected::Begin(options(mode))) }
}

fn options(mode: TransactionMode) -> TransactionOptions {
    TransactionOptions { mode: Some(mode) }
}

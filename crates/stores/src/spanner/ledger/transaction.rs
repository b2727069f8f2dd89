//! A read-write transaction of a user.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::ledger::{Call, Fault, FaultKind, FoundRow};
use hapax_core::outbox::OutgoingEvent;
use hapax_core::{Error, OperationId, Result};
use tokio::sync::{Mutex, OwnedSemaphorePermit};

use super::faults::{SpannerStatementError, at_commit, before_commit};
use super::sql::{SpannerRow, SpannerStatement};
use super::statements;
use crate::spanner::answers::{SpannerFailure, SpannerResult};
use crate::spanner::api::{LentSession, SpannerApi, SqlAnswer};
use crate::spanner::messages::{CommitTransaction, Mutation, Selected, SqlList, TransactionSelector};
use crate::spanner::transactions::{COMMITS, PAUSE};
use crate::spanner::values::SqlStatement;

const OVER: &str = "the transaction has ended";

/// A read-write transaction of Spanner. Statements run at once, and changes of the ledger are sent with the commit.
///
/// Spanner ends a transaction that rests for ten seconds.
///
/// # Cancel safety
/// If it is dropped, or a future of it, it is rolled back in the background. A commit that is dropped may happen.
pub struct SpannerTransaction {
    pub(super) state: Mutex<TransactionState>,
    api: SpannerApi,
    /// Stands in the rows of the transaction, so that they are known after a commit without an answer.
    pub(super) number: u64,
    _permit: OwnedSemaphorePermit,
}

/// The state of an open transaction.
pub(super) struct TransactionState {
    /// None after the end. Dropped, it ends the transaction.
    session: Option<LentSession>,
    /// None before the first statement.
    id: Option<Bytes>,
    pub(super) changes: Vec<Mutation>,
    pub(super) claims: Vec<TransactionClaim>,
    /// The rows that a claim has found.
    pub(super) found: Vec<(OperationId, FoundRow)>,
    /// How many events were added.
    pub(super) events: i64,
    /// Why it cannot commit: a statement has failed, or may or may not have run.
    broken: Option<FaultKind>,
}

/// A claim of a transaction.
pub(super) struct TransactionClaim {
    pub(super) namespace: Arc<str>,
    pub(super) call: Call,
    pub(super) is_open: bool,
}

impl SpannerTransaction {
    pub(super) async fn new(api: &SpannerApi) -> SpannerResult<Self> {
        let permit = api.admit().await.map_err(SpannerFailure::Failed)?;
        let mut random = [0; 8];
        api.runtime().fill_random(&mut random);
        let number = u64::from_be_bytes(random) >> 1;
        let session = Some(api.session().await?.patient());
        let state = TransactionState {
            session,
            id: None,
            changes: Vec::new(),
            claims: Vec::new(),
            found: Vec::new(),
            events: 0,
            broken: None,
        };
        Ok(Self { state: Mutex::new(state), api: api.clone(), number, _permit: permit })
    }

    /// Runs a statement, a text or one with parameters. Returns how many rows it has changed.
    ///
    /// # Errors
    /// Roll the transaction back. A handler of a ledger passes the error on, and the ledger runs it again if it can.
    pub async fn execute(&self, statement: impl Into<SpannerStatement>) -> Result<u64, SpannerStatementError> {
        let SpannerStatement(statement) = statement.into();
        Ok(self.run(&statement).await?.changed)
    }

    /// Runs a query, a text or one with parameters. Returns its rows. What it has read stays as it is until the end of
    /// the transaction.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub async fn query(
        &self,
        statement: impl Into<SpannerStatement>,
    ) -> Result<Vec<SpannerRow>, SpannerStatementError> {
        let SpannerStatement(statement) = statement.into();
        let SqlAnswer { rows, fields, .. } = self.run(&statement).await?;
        let rows = rows.iter().map(|row| SpannerRow::read(&fields, row)).collect::<Result<_>>();
        rows.map_err(|error| Fault::new(FaultKind::Failed, error).into())
    }

    /// Commits, with the changes of the ledger.
    ///
    /// # Errors
    /// `NotApplied` if nothing was written, `Unknown` if the commit got no answer.
    pub async fn commit(self) -> Result<()> {
        self.try_commit().await.map_err(Error::from)
    }

    /// Ends the transaction without any effect.
    pub async fn roll_back(self) {
        self.state.lock().await.end().await;
    }

    /// Random bytes for the id of an event.
    pub(in crate::spanner) fn random(&self) -> [u8; 16] {
        let mut random = [0; 16];
        self.api.runtime().fill_random(&mut random);
        random
    }

    /// Adds an event to the changes.
    pub(in crate::spanner) async fn add_event(&self, event: &OutgoingEvent) {
        self.state.lock().await.add_event(event);
    }

    /// The rows of a statement.
    pub(in crate::spanner) async fn rows_of(&self, statement: &SqlStatement) -> Result<Vec<SqlList>, Fault> {
        Ok(self.run(statement).await?.rows)
    }

    async fn run(&self, statement: &SqlStatement) -> Result<SqlAnswer, Fault> {
        self.state.lock().await.run(&self.api, statement).await
    }

    /// Begins again without what was done. The claims of before are given back.
    pub(super) async fn restart(&self) -> Result<Vec<TransactionClaim>, Fault> {
        let mut state = self.state.lock().await;
        state.end().await;
        state.session = Some(self.api.session().await.map_err(before_commit)?.patient());
        (state.events, state.broken) = (0, None);
        state.found.clear();
        state.changes.clear();
        Ok(std::mem::take(&mut state.claims))
    }

    pub(super) async fn try_commit(&self) -> Result<(), Fault> {
        let mut state = self.state.lock().await;
        if state.claims.iter().any(|claim| claim.is_open) {
            state.end().await;
            return Err(Fault::new(FaultKind::Failed, "a claim was not finished before the commit"));
        }
        state.refuse_if_broken().await?;
        match (state.session.take(), state.id.take()) {
            (Some(session), Some(id)) => self.send_commit(session, id, std::mem::take(&mut state.changes)).await,
            (Some(_), None) if !state.changes.is_empty() => {
                Err(Fault::new(FaultKind::Failed, "no transaction has begun"))
            }
            (Some(session), None) => {
                // Nothing has run.
                session.give_back();
                Ok(())
            }
            (None, _) => Err(Fault::new(FaultKind::Failed, OVER)),
        }
    }

    /// Sends the commit, and again if it gets no answer.
    async fn send_commit(&self, session: LentSession, id: Bytes, changes: Vec<Mutation>) -> Result<(), Fault> {
        let (mut sent, mut is_unclear) = (0, false);
        loop {
            sent += 1;
            let failure = match session.commit(CommitTransaction::Id(id.clone()), changes.clone()).await {
                Ok(()) => {
                    session.give_back();
                    return Ok(());
                }
                Err(failure) => failure,
            };
            // The service answers a commit that is sent again as it has answered the first one.
            let has_no_answer = matches!(failure, SpannerFailure::Unclear(_));
            is_unclear |= has_no_answer;
            if sent == COMMITS || !has_no_answer {
                session.end_after(&failure);
                self.api.note(&failure);
                return Err(at_commit(failure, is_unclear));
            }
            self.api.runtime().sleep(PAUSE).await;
        }
    }
}

impl TransactionState {
    /// Adds an event to the changes.
    pub(super) fn add_event(&mut self, event: &OutgoingEvent) {
        self.changes.push(statements::emitted(event, self.events));
        self.events += 1;
    }

    async fn run(&mut self, api: &SpannerApi, statement: &SqlStatement) -> Result<SqlAnswer, Fault> {
        self.refuse_if_broken().await?;
        let mut session = self.session.take().ok_or_else(|| Fault::new(FaultKind::Failed, OVER))?;
        // Also if this future is dropped.
        self.broken = Some(FaultKind::Unavailable);
        let answer = match &self.id {
            Some(id) => {
                let selector = TransactionSelector { selected: Some(Selected::Id(id.clone())) };
                let answer = session.run(statement, Some(selector)).await;
                self.session = Some(session);
                answer
            }
            None => session.begin(statement).await.map(|(session, answer)| {
                self.session = Some(session);
                answer
            }),
        };
        let mut answer = answer.map_err(|failure| {
            api.note(&failure);
            let fault = before_commit(failure);
            self.broken = Some(fault.kind);
            fault
        })?;
        self.id = self.id.take().or(answer.transaction.take());
        if self.id.is_none() {
            return Err(Fault::new(FaultKind::Unavailable, "Spanner has not begun a transaction"));
        }
        self.broken = None;
        Ok(answer)
    }

    /// Ends a transaction one of whose statements has failed, or may or may not have run.
    async fn refuse_if_broken(&mut self) -> Result<(), Fault> {
        let Some(kind) = self.broken else { return Ok(()) };
        self.end().await;
        Err(Fault::new(kind, "a statement of the transaction has failed, or got no answer"))
    }

    async fn end(&mut self) {
        match (self.session.take(), self.id.take()) {
            (Some(session), Some(id)) => session.roll_back(id).await,
            // Whether a transaction has begun may be unknown.
            (session, _) => drop(session),
        }
    }
}

impl fmt::Debug for SpannerTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpannerTransaction").field("number", &self.number).finish_non_exhaustive()
    }
}

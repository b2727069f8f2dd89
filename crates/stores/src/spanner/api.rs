//! The calls of Spanner, and the sessions in which they run.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::{Result, Timestamp};
use hapax_net::google::{GoogleCall, GoogleClient, GoogleCredentials, GoogleEndpoint};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::SpannerUrl;
use super::answers::{SpannerFailure, SpannerResult};
use super::messages::{
    AdminOperation, CommitRequest, CommitResponse, CommitTransaction, CreateSessionRequest, ExecuteSqlRequest,
    Mutation, NoFields, ResultSet, RollbackRequest, RowField, Selected, SessionName, SnapshotTime, SqlList,
    TransactionMode, TransactionOptions, TransactionSelector,
};
use super::values::SqlStatement;
use crate::errors::not_applied;

/// How long an answer may take.
const ANSWERED_WITHIN: Duration = Duration::from_secs(3);

/// How long an answer to a statement or to a commit of a service may take.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// How long an answer about tables may take.
const ADMINISTERED_WITHIN: Duration = Duration::from_secs(60);

/// How long a connection may take. Less than an answer, so that it is known that nothing was sent.
const CONNECTED_WITHIN: Duration = Duration::from_secs(2);

/// How long a call waits for others to end.
const ADMITTED_WITHIN: Duration = Duration::from_secs(5);

/// How many calls may be in flight: as many as one connection of the service takes.
const MOST_CALLS: usize = 100;

/// How many calls of an emulator may be in flight. It aborts a transaction that begins while another one runs.
const MOST_CALLS_OF_EMULATOR: usize = 1;

/// How long a call of an emulator waits for others to end, since they run one after the other.
const ADMITTED_BY_EMULATOR_WITHIN: Duration = Duration::from_secs(60);

/// The options of a transaction that writes.
const READ_WRITE: TransactionOptions = TransactionOptions { mode: Some(TransactionMode::ReadWrite(NoFields {})) };

/// A database. Clones share the connection and the sessions.
#[derive(Clone)]
pub(super) struct SpannerApi(Arc<SpannerApiParts>);

struct SpannerApiParts {
    url: SpannerUrl,
    client: GoogleClient,
    credentials: GoogleCredentials,
    runtime: Arc<dyn Runtime>,
    /// The sessions in which no transaction runs. A session has one at a time.
    idle: Mutex<Vec<String>>,
    calls: Arc<Semaphore>,
    /// How long a call waits for others to end.
    admitted_within: Duration,
    /// How far a test has moved the clock, in microseconds.
    clock_shift: Arc<AtomicI64>,
}

/// A session that one transaction has for itself. If it is dropped, it ends in the background, after the transaction in
/// it was rolled back.
pub(super) struct LentSession {
    api: SpannerApi,
    /// Empty once it was given back or forgotten.
    name: String,
    /// The transaction that runs in it, and has locks.
    open: Option<Bytes>,
    statements: i64,
    /// How long each answer may take.
    answered_within: Duration,
}

/// The result of a statement.
pub(super) struct SqlAnswer {
    pub(super) rows: Vec<SqlList>,
    /// The columns of the rows.
    pub(super) fields: Vec<RowField>,
    /// How many rows the statement has changed.
    pub(super) changed: u64,
    /// The transaction that the statement has begun.
    pub(super) transaction: Option<Bytes>,
    /// The time of its snapshot, if it only reads: everything that was committed until then, and nothing else.
    pub(super) snapshot: Option<Timestamp>,
}

impl SpannerApi {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// `Unusable` if the system has no authorities for TLS.
    pub(super) fn new(url: &SpannerUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let credentials = match url.is_google() {
            true => GoogleCredentials::from_usual_places(Arc::clone(&runtime))?,
            false => GoogleCredentials::of_a_stand_in(),
        };
        Self::with(url.clone(), credentials, (runtime, Arc::default()))
    }

    fn with(
        url: SpannerUrl,
        credentials: GoogleCredentials,
        (runtime, clock_shift): (Arc<dyn Runtime>, Arc<AtomicI64>),
    ) -> Result<Self> {
        let uri = url.endpoint().to_owned();
        let endpoint = GoogleEndpoint { uri, credentials: credentials.clone(), connect_within: CONNECTED_WITHIN };
        let client = GoogleClient::new(endpoint, Arc::clone(&runtime))?;
        let (most_calls, admitted_within) = match url.is_google() {
            true => (MOST_CALLS, ADMITTED_WITHIN),
            false => (MOST_CALLS_OF_EMULATOR, ADMITTED_BY_EMULATOR_WITHIN),
        };
        let calls = Arc::new(Semaphore::new(most_calls));
        Ok(Self(Arc::new(SpannerApiParts {
            url,
            client,
            credentials,
            runtime,
            idle: Mutex::default(),
            calls,
            admitted_within,
            clock_shift,
        })))
    }

    /// The same database over a connection of its own, with sessions of its own, whose tasks run on this runtime.
    pub(super) fn dedicated(&self, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let (url, credentials) = (self.0.url.clone(), self.0.credentials.clone());
        Self::with(url, credentials, (runtime, Arc::clone(&self.0.clock_shift)))
    }

    pub(super) fn url(&self) -> &SpannerUrl {
        &self.0.url
    }

    pub(super) fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.0.runtime
    }

    /// The clock that a statement has read.
    pub(super) fn clock(&self, Timestamp(read): Timestamp) -> Timestamp {
        Timestamp(read.saturating_add_signed(self.0.clock_shift.load(Ordering::Acquire)))
    }

    /// Moves the clock of this store by so many microseconds.
    pub(super) fn shift_clock(&self, micros: i64) {
        self.0.clock_shift.fetch_add(micros, Ordering::AcqRel);
    }

    /// Waits for its turn among the calls in flight.
    ///
    /// # Errors
    /// `NotApplied` if others take too long.
    pub(super) async fn admit(&self) -> Result<OwnedSemaphorePermit> {
        let turn = Arc::clone(&self.0.calls).acquire_owned();
        let permit = timeout(&**self.runtime(), self.0.admitted_within, turn).await;
        permit.and_then(Result::ok).ok_or_else(|| not_applied("too many calls of Spanner are in flight"))
    }

    /// A session in which no transaction runs.
    pub(super) async fn session(&self) -> SpannerResult<LentSession> {
        let idle = self.0.idle.lock().pop();
        let name = match idle {
            Some(name) => name,
            None => {
                let database = self.0.url.database_name();
                let request = CreateSessionRequest { database: database.clone() };
                let path = "/google.spanner.v1.Spanner/CreateSession";
                self.call::<_, SessionName>(path, ("database", database), request).await?.name
            }
        };
        Ok(LentSession { api: self.clone(), name, open: None, statements: 0, answered_within: ANSWERED_WITHIN })
    }

    /// Forgets the idle sessions. Those that were idle for equally long have ended together.
    pub(super) fn forget_sessions(&self) {
        self.0.idle.lock().clear();
    }

    /// Draws the conclusion of a failure for the calls that come.
    pub(super) fn note(&self, failure: &SpannerFailure) {
        if matches!(failure, SpannerFailure::LostSession(_)) {
            self.forget_sessions();
        }
    }

    /// Makes a call.
    ///
    /// # Cancel safety
    /// If dropped, the service may have done it.
    pub(super) async fn call<Q, R>(
        &self,
        path: &'static str,
        route: (&'static str, String),
        request: Q,
    ) -> SpannerResult<R>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        self.call_within(ANSWERED_WITHIN, (path, route), request).await
    }

    async fn call_within<Q, R>(
        &self,
        limit: Duration,
        (path, route): (&'static str, (&'static str, String)),
        request: Q,
    ) -> SpannerResult<R>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let call = GoogleCall { path, route, request, limit };
        self.0.client.call(call).await.map_err(SpannerFailure::of)
    }

    /// Makes a call about tables, a database or an instance.
    ///
    /// # Cancel safety
    /// If dropped, the service may have done it.
    pub(super) async fn administer<Q>(
        &self,
        path: &'static str,
        route: (&'static str, String),
        request: Q,
    ) -> SpannerResult<AdminOperation>
    where
        Q: Message + Clone + 'static,
    {
        let call = GoogleCall { path, route, request, limit: ADMINISTERED_WITHIN };
        self.0.client.call(call).await.map_err(SpannerFailure::of)
    }
}

impl LentSession {
    /// Runs a statement. Without a transaction it only reads.
    pub(super) async fn run(
        &mut self,
        statement: &SqlStatement,
        transaction: Option<TransactionSelector>,
    ) -> SpannerResult<SqlAnswer> {
        self.statements += 1;
        let request = ExecuteSqlRequest {
            session: self.name.clone(),
            transaction,
            sql: statement.sql.clone().into_owned(),
            params: Some(statement.params.clone()),
            param_types: statement.types.clone(),
            seqno: self.statements,
        };
        let answer: ResultSet = self.call("/google.spanner.v1.Spanner/ExecuteSql", request).await?;
        let (row_type, begun) = match answer.metadata {
            Some(metadata) => (metadata.row_type, metadata.transaction),
            None => (None, None),
        };
        let fields = row_type.map_or_else(Vec::new, |row_type| row_type.fields);
        let changed = answer.stats.map_or(0, |stats| stats.changed.unsigned_abs());
        let snapshot = begun.as_ref().and_then(|begun| begun.snapshot).map(micros);
        let transaction = begun.map(|begun| begun.id).filter(|id| !id.is_empty());
        Ok(SqlAnswer { rows: answer.rows, fields, changed, transaction, snapshot })
    }

    /// Begins a transaction that writes, with its first statement. If it fails, the session is gone.
    ///
    /// # Cancel safety
    /// If dropped, the statement runs to its end, and the transaction is rolled back then: nobody else learns which one
    /// it is, and an emulator would keep it.
    pub(super) async fn begin(mut self, statement: &SqlStatement) -> SpannerResult<(Self, SqlAnswer)> {
        let (statement, runtime) = (statement.clone(), Arc::clone(self.api.runtime()));
        let (sender, begun) = oneshot::channel();
        runtime.spawn(Box::pin(async move {
            let begins = TransactionSelector { selected: Some(Selected::Begin(READ_WRITE)) };
            let begun = match self.run(&statement, Some(begins)).await {
                Ok(answer) => {
                    self.open.clone_from(&answer.transaction);
                    Ok((self, answer))
                }
                Err(failure) => {
                    self.end_after(&failure);
                    Err(failure)
                }
            };
            // The session comes back if the caller has gone, and is dropped.
            drop(sender.send(begun));
        }));
        let ended = |_| Err(SpannerFailure::Unclear("the runtime ended during a call of Spanner".into()));
        begun.await.unwrap_or_else(ended)
    }

    /// The same session for statements of a service, which may take long.
    pub(super) fn patient(mut self) -> Self {
        self.answered_within = SERVED_WITHIN;
        self
    }

    /// Commits a transaction, with these changes.
    pub(super) async fn commit(&self, transaction: CommitTransaction, mutations: Vec<Mutation>) -> SpannerResult<()> {
        let request = CommitRequest { session: self.name.clone(), transaction: Some(transaction), mutations };
        self.call::<_, CommitResponse>("/google.spanner.v1.Spanner/Commit", request).await.map(drop)
    }

    /// Ends a transaction without changes, and gives the session back.
    pub(super) async fn roll_back(self, transaction_id: Bytes) {
        let request = RollbackRequest { session: self.name.clone(), transaction_id };
        match self.call::<_, NoFields>("/google.spanner.v1.Spanner/Rollback", request).await {
            Ok(NoFields {}) | Err(SpannerFailure::Aborted(_)) => self.give_back(),
            Err(failure) => self.end_after(&failure),
        }
    }

    /// Gives back a session in which no transaction runs.
    pub(super) fn give_back(mut self) {
        let name = std::mem::take(&mut self.name);
        self.api.0.idle.lock().push(name);
    }

    /// Gives up a session that has ended.
    pub(super) fn forget(mut self) {
        self.name.clear();
    }

    /// Gives back the session of a call that has failed, if it has ended with that, and ends it otherwise.
    pub(super) fn end_after(self, failure: &SpannerFailure) {
        match failure {
            SpannerFailure::Aborted(_) => self.give_back(),
            SpannerFailure::LostSession(_) => self.forget(),
            SpannerFailure::RowExists(_)
            | SpannerFailure::Unclear(_)
            | SpannerFailure::Refused(_)
            | SpannerFailure::Failed(_) => drop(self),
        }
    }

    async fn call<Q, R>(&self, path: &'static str, request: Q) -> SpannerResult<R>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        self.api.call_within(self.answered_within, (path, ("session", self.name.clone())), request).await
    }
}

fn micros(SnapshotTime { seconds, nanos }: SnapshotTime) -> Timestamp {
    let (seconds, nanos) = (u64::try_from(seconds).unwrap_or_default(), u64::try_from(nanos).unwrap_or_default());
    Timestamp(seconds.saturating_mul(1_000_000).saturating_add(nanos / 1_000))
}

impl Drop for LentSession {
    fn drop(&mut self) {
        let (api, name, open) = (self.api.clone(), std::mem::take(&mut self.name), self.open.take());
        if name.is_empty() {
            return;
        }
        let runtime = Arc::clone(api.runtime());
        runtime.spawn(Box::pin(async move {
            // An emulator keeps the locks of a transaction whose session has ended.
            if let Some(transaction_id) = open {
                let (path, route) = ("/google.spanner.v1.Spanner/Rollback", ("session", name.clone()));
                let request = RollbackRequest { session: name.clone(), transaction_id };
                let _ = api.call::<_, NoFields>(path, route, request).await;
            }
            let (path, route) = ("/google.spanner.v1.Spanner/DeleteSession", ("name", name.clone()));
            // The service ends it in an hour otherwise, and its transaction much earlier.
            let _ = api.call::<_, NoFields>(path, route, SessionName { name }).await;
        }));
    }
}

impl fmt::Debug for SpannerApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpannerApi").field("url", &self.0.url).finish_non_exhaustive()
    }
}

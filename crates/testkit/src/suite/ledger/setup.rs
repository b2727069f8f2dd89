use async_trait::async_trait;
use hapax_core::ledger::{Call, CallResult, Claimed, Event, Terms, Work};
use hapax_core::{BoxError, EventId, OperationId, Result};

use super::script::Script;

/// An empty database with the tables of the ledger, and two tables of a service:
///
/// ```sql
/// create table effect (namespace text not null, operation text not null); -- nothing in it is unique
/// create table taken (id integer primary key);                            -- holds the row 1
/// ```
///
/// Each database implements it by its own means, and reads its tables without the code under test. Its methods are
/// called on one thread.
#[async_trait(?Send)]
pub trait LedgerSetup {
    /// Opens a session, with the ledger of these terms.
    async fn session(&self, terms: Terms) -> Box<dyn LedgerSession>;

    /// Everything that is committed.
    async fn contents(&self) -> LedgerContents;

    /// Makes every insert into the outbox fail.
    async fn refuse_events(&self);

    /// Statements that set the session back to its defaults, or turn its checks off.
    fn resets(&self) -> &'static [&'static str];

    /// A session whose connection is cut once. Called only if the database has `LedgerCapability::LostReply`.
    async fn session_with_cut(&self, _terms: Terms, _cut: ConnectionCut) -> Box<dyn LedgerSession> {
        unreachable!("the database lacks `LostReply`")
    }

    /// A session in which an open row could be committed. Called only if the database has
    /// `LedgerCapability::ForeignKeysOff`.
    async fn session_without_foreign_keys(&self, _terms: Terms) -> Box<dyn LedgerSession> {
        unreachable!("the database lacks `ForeignKeysOff`")
    }
}

/// Where a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionCut {
    /// The request.
    pub request: CutRequest,
    /// Whether the server has carried it out. Otherwise it never arrives.
    pub is_carried_out: bool,
}

/// The request at which a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutRequest {
    /// The next COMMIT.
    Commit,
    /// The request after this many others.
    After(usize),
}

/// A property of a database that a case of the ledger suite needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerCapability {
    /// The connection can be cut, so that the reply to COMMIT is lost.
    LostReply,
    /// The foreign keys of a session can be off.
    ForeignKeysOff,
    /// Transactions have savepoints.
    Savepoints,
    /// Transactions can have a snapshot.
    RepeatableRead,
    /// A transaction has an id, which its rows keep.
    TransactionIds,
    /// `set transaction read only` makes the database refuse writes, as after a failover.
    ReadOnly,
}

/// Carries out statements inside a transaction.
#[async_trait(?Send)]
pub trait Execute {
    /// Carries out one statement without parameters.
    async fn execute(&self, sql: &str) -> Result<(), BoxError>;
}

/// A connection to the database, with a ledger. Carries out statements in the transaction of the caller's own. A
/// session that is dropped rolls its transaction back.
#[async_trait(?Send)]
pub trait LedgerSession: Execute {
    /// Runs a call with the runner of the ledger.
    async fn run(&self, call: Call, script: &Script) -> CallResult<String>;

    /// Runs a batch with the runner of the ledger.
    async fn run_batch(&self, work: Vec<Work>, script: &Script) -> Vec<CallResult<String>>;

    /// Lets an operation run again that is closed. Returns whether it was closed.
    async fn reopen(&self, operation: OperationId) -> Result<bool>;

    /// Begins a transaction of the caller's own.
    async fn begin(&self, snapshot: Snapshot) -> Result<(), BoxError>;

    /// Claims in that transaction. The session keeps a fresh entry.
    async fn claim(&self, call: &Call) -> Result<Claimed<String, ()>>;

    /// Adds an event to the entry of this operation.
    fn emit(&self, operation: OperationId, event: Event) -> Result<EventId>;

    /// Adds an event in the order of commits.
    fn emit_ordered(&self, operation: OperationId, event: Event) -> Result<EventId>;

    /// Finishes the entry of this operation.
    async fn finish(&self, operation: OperationId, answer: &str) -> Result<()>;

    /// Commits the transaction. If that fails, rolls it back.
    async fn commit(&self) -> Result<(), BoxError>;

    /// Rolls the transaction back.
    async fn roll_back(&self);

    /// Whether the connection of `session_with_cut` was cut.
    fn was_cut(&self) -> bool {
        false
    }
}

/// What a transaction of the caller's own sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// Each statement sees what is committed when it begins, or what the database does by default.
    PerStatement,
    /// All statements see what was committed when the first one began. Used only with
    /// `LedgerCapability::RepeatableRead`.
    PerTransaction,
}

/// What a database holds.
#[derive(Clone, Debug, Default)]
pub struct LedgerContents {
    /// The rows of `effect`: namespace and operation.
    pub effects: Vec<(String, String)>,
    /// The rows of the ledger.
    pub rows: Vec<StoredEntry>,
    /// The rows of the outbox.
    pub events: Vec<StoredEvent>,
    /// The counted attempts.
    pub attempts: Vec<StoredAttempts>,
}

/// A row of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// The namespace.
    pub namespace: String,
    /// The operation.
    pub operation: OperationId,
    /// Whether the row is open.
    pub is_open: bool,
    /// 1: applied, 2: rejected.
    pub verdict: Option<u8>,
    /// The answer.
    pub answer: String,
}

/// A row of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// The namespace.
    pub namespace: String,
    /// The operation.
    pub operation: OperationId,
    /// The id.
    pub id: [u8; 16],
    /// The number of the event within its operation.
    pub number: u32,
    /// The length of the payload, in bytes.
    pub payload_len: u32,
}

/// The counted attempts of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAttempts {
    /// The namespace.
    pub namespace: String,
    /// The operation.
    pub operation: OperationId,
    /// How many failed.
    pub attempts: u32,
    /// Whether the operation is closed.
    pub is_dead: bool,
}

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;

use bytes::Bytes;

use crate::error::{BoxError, Error, ErrorKind};
use crate::key::{Fingerprint, OperationId};
use crate::ledger::{Call, LedgerVerdict, OutboxRow};

/// The statements of the ledger within one open transaction of a database. An adapter implements it; the ledger decides
/// what to do with what the statements return.
///
/// Each method affects only rows of the given namespace. An adapter of a blocking database
/// returns futures that are ready at once.
///
/// # Cancel safety
/// Whoever drops a future of these methods must roll the transaction back.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no transaction of a ledger",
    label = "does not implement `Transaction`",
    note = "adapters implement this trait; call the `claim` of a ledger of `hapax::stores`"
)]
pub trait Transaction {
    /// Claims operations, no operation twice, and once in a transaction of the runner: takes a lock for each without
    /// waiting, then claims those that were locked, are not dead and have no row. A transaction with a claim cannot
    /// commit before its end. Returns what happened, in the order of the calls.
    fn claim(&mut self, namespace: &str, calls: &[Call]) -> impl Future<Output = Result<TriedClaims, Fault>>;

    /// Reads the rows of operations in a new statement, so that a row is seen that another transaction has committed
    /// since the claim. Returns them in the order of the operations.
    fn read(
        &mut self,
        namespace: &str,
        operations: &[OperationId],
    ) -> impl Future<Output = Result<Vec<FoundRow>, Fault>>;

    /// Sets the savepoint of the handler.
    fn savepoint(&mut self) -> impl Future<Output = Result<(), Fault>>;

    /// Undoes what was written since the savepoint.
    fn roll_back_to_savepoint(&mut self) -> impl Future<Output = Result<(), Fault>>;

    /// Ends claims of this transaction with these rows, and inserts the events into the outbox. Returns how many rows
    /// there were a claim for. If one lacks its claim, no event is written: the transaction may have ended meanwhile,
    /// so that the event would be committed by itself.
    fn finish(
        &mut self,
        namespace: &str,
        rows: &[Finished],
        events: &[OutboxRow],
    ) -> impl Future<Output = Result<usize, Fault>>;

    /// Says that COMMIT follows `finish`, if `finish` succeeds. An adapter may then send both at once. `finish` then
    /// returns the error of COMMIT too, and `CommitUnknown` if the reply was lost.
    fn commit_follows(&mut self) {}

    /// The kind of fault, if this error is one of the database.
    fn fault_of(error: &(dyn StdError + 'static)) -> Option<FaultKind>;
}

/// What a claim did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriedClaims {
    /// The id of the transaction, in databases that can look it up after a commit without a reply.
    pub transaction: Option<u64>,
    /// One for each call.
    pub tries: Vec<Tried>,
}

/// What the claim of one operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// Another transaction holds the lock of the operation.
    Locked,
    /// The same, and this transaction must not look for a row: the search alone can be a conflict with the transaction
    /// that writes the row.
    LockedUnread,
    /// The operation is claimed.
    Inserted,
    /// It was not claimed: it has a row, or is dead.
    NotInserted,
    /// This transaction has claimed the operation before, and has not finished it.
    ClaimedHere,
}

/// What a read found for one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundRow {
    /// A finished row.
    Row(Row),
    /// A row of this very transaction: it has claimed the operation before. A database without ids of transactions
    /// recognizes it while it is open.
    ClaimedHere,
    /// A row without an answer or a verdict that this release knows.
    Damaged,
    /// No row, and the operation is closed after too many attempts.
    Dead,
    /// No row.
    Nothing,
}

/// A finished row of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The fingerprint of the payload that ran.
    pub fingerprint: Fingerprint,
    /// How the operation ended.
    pub verdict: LedgerVerdict,
    /// The encoded answer.
    pub answer: Bytes,
    /// The id of the transaction that wrote the row.
    pub transaction: Option<u64>,
}

/// A row to finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The operation.
    pub operation: OperationId,
    /// The fingerprint of the payload that ran. In a transaction of the caller's own, the claim has it.
    pub fingerprint: Fingerprint,
    /// How it ended.
    pub verdict: LedgerVerdict,
    /// The encoded answer.
    pub answer: Bytes,
}

/// A statement or a COMMIT that failed.
#[derive(Debug)]
pub struct Fault {
    /// What can be done.
    pub kind: FaultKind,
    /// The error of the driver.
    pub source: BoxError,
}

impl Fault {
    /// A fault of this kind with this cause.
    pub fn new(kind: FaultKind, source: impl Into<BoxError>) -> Self {
        Self { kind, source: source.into() }
    }
}

/// What can be done about a fault. An adapter derives it from the error code of its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The transaction lost against another one: a serialization failure, a deadlock, a lock that was not free in time.
    /// It has no effect; run it again.
    Conflict,
    /// At the end of the transaction, one of its operations had a row, which the claim did not find. It has no effect;
    /// run it once more: the handler may be what writes the row.
    RowExists,
    /// The database stops, is out of a resource, or the connection broke before COMMIT was sent. The transaction has no
    /// effect; run it again when the database answers.
    Unavailable,
    /// The transaction is too large for the database, for instance for its table of locks. It has no effect; run less
    /// at once.
    TooLarge,
    /// The statement is wrong or breaks a constraint. The transaction has no effect.
    Failed,
    /// A table or a column is missing, or a right to use it. Nothing was written. Correct the set-up.
    Unusable,
    /// COMMIT was sent and its reply was lost. The effect and the row are both there, or neither is. Run the same
    /// operations again.
    CommitUnknown,
}

impl FaultKind {
    /// The kind of error that callers with a transaction of their own get.
    const fn error_kind(self) -> ErrorKind {
        match self {
            Self::Conflict | Self::RowExists | Self::Unavailable | Self::TooLarge | Self::Failed => {
                ErrorKind::NotApplied
            }
            Self::Unusable => ErrorKind::Unusable,
            Self::CommitUnknown => ErrorKind::Unknown,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Conflict => "the transaction conflicts with another one; roll it back and run it again",
            Self::RowExists => "an operation was ended by somebody else; roll the transaction back and run it again",
            Self::Unavailable => "the database of the ledger is not available; nothing was written",
            Self::TooLarge => "the transaction is too large for the database; run less at once",
            Self::Failed => "a statement of the ledger failed; roll the transaction back",
            Self::Unusable => "the tables cannot be used; nothing was written",
            Self::CommitUnknown => "the reply to COMMIT was lost; run the same operation again",
        })
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::new(fault.kind.error_kind(), fault.kind.to_string()).caused_by(fault.source)
    }
}

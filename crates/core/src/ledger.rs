//! Layer 2: the effect of an operation happens once, because a row of the ledger commits in the same transaction.
//!
//! ```text
//! claim ─┬─ fresh ── savepoint ── handler ─┬─ applied ── finish with its events ────────────► COMMIT
//!        │                                 ├─ final ──── back to the savepoint ── finish ───► COMMIT
//!        │                                 └─ failed ───────────────────────────────────────► ROLLBACK
//!        ├─ busy: another transaction runs the operation ───────────────────────────────────► try later
//!        └─ replay, mismatch, dead ─────────────────────────────────────────────────────────► no handler
//! ```
//!
//! A transaction with a claim that is not finished cannot commit: every row that another transaction can see has its
//! answer and its effect. Rows need no lease and no clock. The operation's id is derived, so a store of layer 1 that
//! forgot everything changes nothing here.
//!
//! ```text
//! rules.rs        every decision, pure, with numbered rows
//! transaction.rs  the statements that an adapter implements
//! claims.rs       claim and finish, in a transaction of the caller's own
//! attempt.rs      one transaction of a runner: claim, savepoint, handler, finish
//! batch.rs        which calls run in which transaction, until each has its result
//! slices.rs       the calls of one transaction
//! copies.rs       whether copies are likely, so that rows are read before they are claimed
//! results.rs      what a call gets for its claim, and what of a failure its caller gets to know
//! rows.rs         trait LedgerRows: what operators see of the rows of all namespaces
//! verdicts.rs     what a result means for the message behind a call, with numbered rows
//! ```

mod attempt;
mod batch;
mod call;
mod claims;
mod copies;
mod entry;
mod event;
mod results;
mod rows;
pub mod rules;
mod slices;
mod transaction;
pub mod verdicts;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::chaos::Mutant;
use crate::error::{Error, ErrorKind, Result};

pub use attempt::{Attempted, Handler, HandlerFailure, attempt};
pub use batch::{Batch, CallResult, FailedCall, Step, Work};
pub use call::Call;
pub use claims::{Claimed, claim_one, finish_one};
pub use copies::RecentCopies;
pub use entry::Entry;
pub use event::{Event, OutboxRow};
pub use rows::{CommittedRow, LedgerRows};
pub use slices::Slice;
pub use transaction::{Fault, FaultKind, Finished, FoundRow, Row, Transaction, Tried, TriedClaims};

/// How an operation of the ledger ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LedgerVerdict {
    /// Its effect is in the database.
    Applied,
    /// It had no effect and never will. Its answer is final.
    Rejected,
}

/// The terms of a ledger.
///
/// ```
/// use hapax::ledger::Terms;
///
/// let terms = Terms::new("transfers")?.max_attempts(8);
/// assert!(Terms::new("").is_err() && Terms::new("hapax/own").is_err());
/// # let _ = terms;
/// # Ok::<(), hapax::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Terms {
    pub(crate) namespace: Arc<str>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) max_tries: u32,
    retention: Retention,
}

/// How long rows are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// This long after the operation has ended.
    For(Duration),
    /// Until somebody removes them.
    Forever,
}

impl Terms {
    /// How often a transaction is run again that the database does not let end.
    const MAX_TRIES: u32 = 8;

    /// How long rows are kept unless the terms say otherwise: 90 days.
    pub const RETENTION: Retention = Retention::For(Duration::from_hours(90 * 24));

    /// How late a copy of an operation may arrive unless the terms say otherwise: 14 days.
    pub const HORIZON: Duration = Duration::from_hours(14 * 24);

    /// The terms of the ledger of this namespace: one for each service or consumer group. Failed attempts are not
    /// counted.
    ///
    /// # Errors
    /// `Invalid` if the namespace is empty, longer than 255 bytes, or begins with `hapax/`, which is reserved.
    pub fn new(namespace: &str) -> Result<Self> {
        let invalid = |message| Err(Error::new(ErrorKind::Invalid, message));
        match namespace {
            "" => invalid("the namespace of a ledger is empty; name the service or the consumer group"),
            _ if namespace.starts_with("hapax/") => invalid("namespaces that begin with `hapax/` are reserved"),
            _ if namespace.len() > 255 => invalid("the namespace of a ledger is longer than 255 bytes"),
            _ => Ok(Self {
                namespace: if Mutant::LedgerNamespaceIgnored.is_on() { "all" } else { namespace }.into(),
                max_attempts: None,
                max_tries: Self::MAX_TRIES,
                retention: Self::RETENTION,
            }),
        }
    }

    /// Closes an operation after this many failed attempts. 0 counts as 1.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts.max(1));
        self
    }

    /// The same terms, for a worker: failed attempts are counted, 8 unless the terms say otherwise.
    #[must_use]
    pub fn counting(self) -> Self {
        Self { max_attempts: Some(self.max_attempts.unwrap_or(8)), ..self }
    }

    /// The number of failed attempts that closes an operation. None if failures are not counted.
    pub fn last_attempt(&self) -> Option<u32> {
        self.max_attempts
    }

    /// Whether an operation with this many failed attempts is closed.
    pub fn is_last_attempt(&self, attempts: u32) -> bool {
        self.max_attempts.is_some_and(|max| rules::counted(attempts, max) == rules::Counted::Dead)
    }

    /// Keeps rows this long. Copies of an operation may arrive up to `horizon` after it: from a broker that keeps
    /// messages, a queue of dead letters or a backup.
    ///
    /// # Errors
    /// `Invalid` if rows would be removed before the last copy has arrived: it would run again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use hapax::ledger::{Retention, Terms};
    ///
    /// let week = Retention::For(Duration::from_hours(7 * 24));
    /// let terms = Terms::new("transfers")?;
    /// assert!(terms.clone().retention(week, Terms::HORIZON).is_err());
    /// let terms = terms.retention(Retention::Forever, Terms::HORIZON)?;
    /// # let _ = terms;
    /// # Ok::<(), hapax::Error>(())
    /// ```
    pub fn retention(mut self, retention: Retention, horizon: Duration) -> Result<Self> {
        if let Retention::For(kept) = retention
            && kept < horizon
        {
            let message = "rows of the ledger are removed before the last copy of an operation may arrive; keep them \
                           longer than the horizon, or forever";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        self.retention = retention;
        Ok(self)
    }

    /// How long rows are kept.
    pub fn kept_for(&self) -> Retention {
        self.retention
    }

    /// The namespace.
    pub fn namespace(&self) -> &Arc<str> {
        &self.namespace
    }
}

/// Whole days, or seconds, or `forever`.
impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: u64 = 24 * 60 * 60;
        match self {
            Self::For(kept) if kept.as_secs() >= DAY && kept.as_secs().is_multiple_of(DAY) => {
                write!(f, "{} d", kept.as_secs() / DAY)
            }
            Self::For(kept) => write!(f, "{} s", kept.as_secs()),
            Self::Forever => f.write_str("forever"),
        }
    }
}

impl AsRef<Self> for Terms {
    fn as_ref(&self) -> &Self {
        self
    }
}

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::broker::{DeadCause, DeadReason, Message};
use crate::key::{Key, RecordKey};
use crate::ledger::Call;

/// Processes messages: the runner of a ledger with a handler, or a service that gets them by HTTP.
///
/// It counts failed attempts durably, because a worker forgets with its process.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not process messages",
    label = "does not implement `Process`",
    note = "pass `ledger.process(handler)`, or implement `Process`"
)]
#[async_trait]
pub trait Process: fmt::Debug + Send + Sync + 'static {
    /// Processes a batch, and returns one verdict for each job, in their order. Several batches run at once; no two of
    /// them have jobs with the same ordering key. Within a batch, a job is not run while an earlier one of its ordering
    /// key has no end.
    ///
    /// If it panics, the outcome of every job is unknown.
    ///
    /// # Cancel safety
    /// If dropped, the outcome of every job is unknown. The jobs may run again.
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict>;
}

/// A message to process.
#[derive(Clone, Debug)]
pub struct Job {
    /// The operation, and the fingerprint of the payload.
    pub call: Call,
    /// The key of the message; of a message with a received operation, the text of its id.
    pub key: Key,
    /// The record key of the key, for what keeps a record of layer 1.
    pub record_key: RecordKey,
    /// The message.
    pub message: Arc<Message>,
    /// How often the broker has delivered it, this time included, if it counts.
    pub attempt: Option<u32>,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its effect is there.
    Done {
        /// Whether an earlier delivery had caused the effect, and this one was a copy.
        caught: bool,
    },
    /// Another worker processes it now.
    Busy {
        /// How long to wait at least.
        after: Duration,
    },
    /// It had no effect. Try again.
    Retry {
        /// How long to wait at least.
        after: Duration,
    },
    /// It will never have an effect by itself.
    DeadLetter {
        /// Why.
        reason: DeadReason,
        /// How many attempts failed; 0 if none was made.
        attempts: u32,
        /// The last error, for operators. None if nothing more is known than the reason.
        cause: Option<DeadCause>,
    },
    /// It cannot be processed now, and neither can any other job: a database is down. Nothing is counted.
    Pause {
        /// How long to wait at least.
        after: Duration,
    },
}

impl Verdict {
    /// A dead letter of which nothing more is known than the reason.
    pub const fn dead(reason: DeadReason, attempts: u32) -> Self {
        Self::DeadLetter { reason, attempts, cause: None }
    }

    /// The same verdict. A dead letter has this cause; the others have none.
    #[must_use]
    pub fn because(self, cause: Option<DeadCause>) -> Self {
        match self {
            Self::DeadLetter { reason, attempts, .. } => Self::DeadLetter { reason, attempts, cause },
            Self::Done { .. } | Self::Busy { .. } | Self::Retry { .. } | Self::Pause { .. } => self,
        }
    }
}

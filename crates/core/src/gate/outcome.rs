use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::error::{BoxError, Error, ErrorKind};
use crate::record::{Completion, Timestamp};

/// An answer that can be recorded and given again.
///
/// ```
/// use bytes::Bytes;
/// use hapax_core::BoxError;
/// use hapax_core::gate::Answer;
///
/// /// A number of a receipt, stored in its eight bytes.
/// #[derive(Debug, PartialEq)]
/// struct Receipt(u64);
///
/// impl Answer for Receipt {
///     fn encode(&self) -> Bytes {
///         Bytes::copy_from_slice(&self.0.to_be_bytes())
///     }
///
///     fn decode(stored: Bytes) -> Result<Self, BoxError> {
///         Ok(Self(u64::from_be_bytes(stored[..].try_into()?)))
///     }
/// }
///
/// assert_eq!(Receipt::decode(Receipt(7).encode()).unwrap(), Receipt(7));
/// ```
pub trait Answer: Sized + Send + 'static {
    /// The answer as it is stored.
    fn encode(&self) -> Bytes;

    /// Reads a stored answer.
    ///
    /// # Errors
    /// Whatever makes the bytes no answer of this type.
    fn decode(stored: Bytes) -> Result<Self, BoxError>;
}

impl Answer for Bytes {
    fn encode(&self) -> Bytes {
        self.clone()
    }

    fn decode(stored: Bytes) -> Result<Self, BoxError> {
        Ok(stored)
    }
}

impl Answer for String {
    fn encode(&self) -> Bytes {
        Bytes::copy_from_slice(self.as_bytes())
    }

    fn decode(stored: Bytes) -> Result<Self, BoxError> {
        Ok(Self::from_utf8(stored.into())?)
    }
}

/// What a handler says when it has no applied answer. `Ok` means applied.
///
/// ```
/// use hapax_core::gate::Failure;
/// use std::io::{Error, ErrorKind};
///
/// fn judge(error: Error) -> Failure<String> {
///     match error.kind() {
///         ErrorKind::InvalidInput => Failure::finally("there is no such card".into()),
///         ErrorKind::PermissionDenied => Failure::denied(error),
///         // Never sent: it cannot have happened.
///         ErrorKind::ConnectionRefused => Failure::not_applied(error),
///         // Perhaps after it was sent. `?` says the same.
///         _ => Failure::unknown(error),
///     }
/// }
/// ```
#[derive(Debug)]
pub enum Failure<A> {
    /// The answer is final though nothing was applied: recorded, and given to every copy.
    Final(A),
    /// Known not applied: the key is free again.
    NotApplied(Detail<A>),
    /// Known not applied, because the caller had no right to it: as `NotApplied`, but the record is forgotten after a lease, or
    /// after 10 s if that is longer.
    Denied(Detail<A>),
    /// Nobody knows whether it was applied. Any error by a plain `?` means this.
    Unknown(Detail<A>),
}

impl<A> Failure<A> {
    /// Final: recorded, and given to every copy.
    pub fn finally(answer: A) -> Self {
        Self::Final(answer)
    }

    /// Known not applied.
    pub fn not_applied(detail: impl Into<Detail<A>>) -> Self {
        Self::NotApplied(detail.into())
    }

    /// Known not applied, because the caller had no right to it.
    pub fn denied(detail: impl Into<Detail<A>>) -> Self {
        Self::Denied(detail.into())
    }

    /// Nobody knows.
    pub fn unknown(detail: impl Into<Detail<A>>) -> Self {
        Self::Unknown(detail.into())
    }
}

impl<A, E: StdError + Send + Sync + 'static> From<E> for Failure<A> {
    fn from(error: E) -> Self {
        Self::Unknown(Detail::Error(error.into()))
    }
}

/// What the handler said beside its verdict; travels to the caller unchanged.
///
/// ```
/// use hapax_core::gate::{Failure, Detail};
///
/// // For the caller alone: a copy begins for itself.
/// let full = Failure::NotApplied(Detail::Answer(String::from("sold out; come back at noon")));
///
/// // What a `?` in a handler makes of an error.
/// let lost: Failure<String> = std::io::Error::other("the connection broke").into();
/// assert!(matches!(lost, Failure::Unknown(Detail::Error(_))));
/// # drop(full);
/// ```
#[derive(Debug)]
pub enum Detail<A> {
    /// An answer, which is not recorded.
    Answer(A),
    /// An error.
    Error(BoxError),
}

impl<A, E: StdError + Send + Sync + 'static> From<E> for Detail<A> {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// An operation that ran, now or before.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # use std::sync::Arc;
/// # use hapax_core::runtime::Tokio;
/// # use hapax_core::store::{Memory, MemorySettings};
/// # use hapax_core::{Gate, Identity, Key, Scope, Settings};
/// # let store = Arc::new(Memory::new(Arc::new(Tokio::current()), MemorySettings::default()));
/// # let gate = Gate::builder(store, Settings::default()).build()?;
/// # let call = Identity::plain().call(&Scope::tenant("shop", "acme")?, &Key::new("order-7")?);
/// use hapax_core::gate::{Provenance, Recorded};
///
/// let ran = gate.run(call, |_| async { Ok(String::from("charged")) }).await?;
/// assert_eq!((ran.provenance, ran.recorded), (Provenance::Fresh, Recorded::Yes));
/// let copy = gate.run(call, |_| async { Ok(String::from("charged again")) }).await?;
/// assert_eq!((copy.answer, copy.provenance, copy.expiry), (ran.answer, Provenance::Replayed, ran.expiry));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunResult<A> {
    /// The answer, the same for every copy.
    pub answer: A,
    /// Where it comes from.
    pub provenance: Provenance,
    /// Whether the store has it.
    pub recorded: Recorded,
    /// When it stops being given, in unix seconds by the clock of whoever recorded it; none if nobody did.
    pub expiry: Option<u32>,
}

/// Where an answer comes from.
///
/// ```
/// use hapax_core::gate::{Provenance, RunResult};
///
/// /// 201 for the call that made it, 200 for its copies.
/// fn status(ran: &RunResult<String>) -> u16 {
///     match ran.provenance {
///         Provenance::Fresh => 201,
///         Provenance::Replayed | Provenance::Canonical => 200,
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// The handler gave it just now.
    Fresh,
    /// It was recorded before, or given to a copy at the same time.
    Replayed,
    /// The handler ran, but another attempt had recorded an answer first: this one.
    Canonical,
}

/// Whether a store has an answer.
///
/// ```
/// use hapax_core::gate::Recorded;
///
/// fn note(recorded: Recorded) -> &'static str {
///     match recorded {
///         Recorded::Yes => "every copy gets this answer",
///         Recorded::Pending => "every copy will, as soon as the store takes it",
///         Recorded::No => "a copy may run again",
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It has.
    Yes,
    /// It is in the journal of this process, which tries until the store has it.
    Pending,
    /// The handler ran without a record while the store was down, as the policy allows.
    No,
}

impl<A: Answer> RunResult<A> {
    /// An answer as it is recorded.
    pub(super) fn recorded(completion: Completion, provenance: Provenance) -> Result<Self, Refused<A>> {
        Self::decoded(completion.answer, |answer| Self {
            answer,
            provenance,
            recorded: Recorded::Yes,
            expiry: Some(completion.expiry),
        })
    }

    pub(super) fn decoded(answer: Bytes, ran: impl FnOnce(A) -> Self) -> Result<Self, Refused<A>> {
        match A::decode(answer) {
            Ok(answer) => Ok(ran(answer)),
            Err(source) => {
                let error = Error::new(ErrorKind::Damaged, "a recorded answer cannot be read").caused_by(source);
                Err(Refused::Store(error))
            }
        }
    }
}

/// Why there is no answer.
///
/// ```
/// use std::time::Duration;
/// use hapax_core::gate::Refused;
///
/// /// How soon the same call may be worth another try, if at all.
/// fn retry_after<A>(refused: &Refused<A>) -> Option<Duration> {
///     match refused {
///         Refused::Busy { retry_after } => Some(*retry_after),
///         Refused::NotApplied { .. } | Refused::Overloaded | Refused::Store(_) => Some(Duration::from_secs(1)),
///         // Whatever a copy did, it would not be told: first somebody has to find out.
///         Refused::Unknown { .. } | Refused::Indeterminate { .. } | Refused::Unrecorded(_) | Refused::Dead => None,
///         // It needs a key of its own.
///         Refused::Mismatch => None,
///     }
/// }
/// ```
#[derive(Debug)]
pub enum Refused<A> {
    /// Another attempt runs; ask again after this, or when the lease has ended.
    Busy {
        /// What is left of that attempt's lease.
        retry_after: Duration,
    },
    /// The key was used for another payload.
    Mismatch,
    /// Nobody knows whether it happened; the handler was not run.
    Indeterminate {
        /// Since when, by the store's clock.
        since: Timestamp,
    },
    /// Closed after too many attempts.
    Dead,
    /// Too many attempts run in this process, or too many of this tenant; nothing was done.
    Overloaded,
    /// The handler ran and said that nothing was applied.
    NotApplied {
        /// What it said.
        detail: Detail<A>,
        /// Whether it ran without a record, since the store was down and the policy says so.
        unrecorded: bool,
    },
    /// The handler ran and nobody knows whether it was applied.
    Unknown {
        /// What it said.
        detail: Detail<A>,
        /// Whether it ran without a record, since the store was down and the policy says so: nothing holds a copy back.
        unrecorded: bool,
    },
    /// It was applied, but the answer could not be recorded: copies of the call will learn that the outcome is unknown.
    Unrecorded(Error),
    /// The store could not be asked, or what it holds cannot be read.
    Store(Error),
}

impl<A> fmt::Display for Refused<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy { .. } => "another attempt is running",
            Self::Mismatch => "the key was used for another payload",
            Self::Indeterminate { .. } => "the outcome of an earlier attempt is unknown",
            Self::Dead => "closed after too many attempts",
            Self::Overloaded => "too many attempts are running",
            Self::NotApplied { .. } => "not applied",
            Self::Unknown { .. } => "the outcome is unknown",
            Self::Unrecorded(_) => "applied, but the answer could not be recorded",
            Self::Store(_) => "the store cannot be used",
        })
    }
}

impl<A: fmt::Debug> StdError for Refused<A> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::NotApplied { detail, .. } | Self::Unknown { detail, .. } => match detail {
                Detail::Error(error) => Some(error.as_ref()),
                Detail::Answer(_) => None,
            },
            Self::Unrecorded(error) | Self::Store(error) => Some(error),
            Self::Busy { .. } | Self::Mismatch | Self::Indeterminate { .. } | Self::Dead | Self::Overloaded => None,
        }
    }
}

/// How a call ended, as the metrics name it, and whether a copy was caught: it asked for what ran, or had run, before.
pub(super) fn label<A>(ran: &Result<RunResult<A>, Refused<A>>) -> (&'static str, bool) {
    match ran {
        Ok(RunResult { provenance: Provenance::Fresh, .. }) => ("fresh", false),
        Ok(RunResult { provenance: Provenance::Replayed, .. }) => ("replayed", true),
        Ok(RunResult { provenance: Provenance::Canonical, .. }) => ("canonical", false),
        Err(Refused::Busy { .. }) => ("busy", true),
        Err(Refused::Mismatch) => ("mismatch", false),
        Err(Refused::Indeterminate { .. }) => ("indeterminate", true),
        Err(Refused::Dead) => ("dead", true),
        Err(Refused::Overloaded) => ("overloaded", false),
        Err(Refused::NotApplied { .. }) => ("not_applied", false),
        Err(Refused::Unknown { .. }) => ("unknown", false),
        Err(Refused::Unrecorded(_)) => ("unrecorded", false),
        Err(Refused::Store(_)) => ("store_error", false),
    }
}

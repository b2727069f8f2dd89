use std::error::Error as StdError;
use std::fmt;

use bytes::Bytes;

use crate::error::{BoxError, Error, ErrorKind};
use crate::gate::reason::Reason;
use crate::record::{Completion, Timestamp};

/// An answer that can be recorded and replayed.
///
/// ```
/// use bytes::Bytes;
/// use hapax::BoxError;
/// use hapax::gate::Answer;
///
/// /// The number of a receipt, stored as eight bytes.
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
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no answer that can be stored and replayed",
    label = "does not implement `Answer`",
    note = "return `String`, `bytes::Bytes` or `hapax::gate::Json<T>` (feature `json`), or implement `Answer`"
)]
pub trait Answer: Sized + Send + 'static {
    /// Returns the bytes to store.
    fn encode(&self) -> Bytes;

    /// Reads a stored answer.
    ///
    /// # Errors
    /// Any error; the gate reports it as a damaged record.
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

/// The return value of a handler that has no applied answer. `Ok` means applied.
///
/// ```
/// use hapax::gate::Failure;
/// use std::io::{Error, ErrorKind};
///
/// fn classify(error: Error) -> Failure<String> {
///     match error.kind() {
///         ErrorKind::InvalidInput => Failure::finally("there is no such card".into()),
///         ErrorKind::PermissionDenied => Failure::denied("this account may not pay"),
///         // The request was never sent, so it has no effect.
///         ErrorKind::ConnectionRefused => Failure::not_applied(error),
///         // The request may have been sent. A plain `?` does the same.
///         _ => Failure::unknown(error),
///     }
/// }
/// ```
#[derive(Debug)]
pub enum Failure<A> {
    /// Nothing was applied, and the answer is final: it is recorded and replayed to every copy.
    Final(A),
    /// Known not applied: the key is free again.
    NotApplied(Detail<A>),
    /// Known not applied, because the caller is not allowed to do this. As `NotApplied`, but the record expires after
    /// one lease, or after 10 s if that is longer.
    Denied(Detail<A>),
    /// Known not applied, and this was the last attempt: the key is closed, and every copy gets `Dead` until an
    /// operator reopens it. A ledger counts it as any failed attempt, and closes the operation after its own limit.
    GivenUp(Detail<A>),
    /// The effect may or may not have been applied. Any error by a plain `?` means this.
    Unknown(Detail<A>),
}

impl<A> Failure<A> {
    /// Returns [`Failure::Final`].
    pub fn finally(answer: A) -> Self {
        Self::Final(answer)
    }

    /// Returns [`Failure::NotApplied`].
    pub fn not_applied(detail: impl Into<Detail<A>>) -> Self {
        Self::NotApplied(detail.into())
    }

    /// Returns [`Failure::Denied`].
    pub fn denied(detail: impl Into<Detail<A>>) -> Self {
        Self::Denied(detail.into())
    }

    /// Returns [`Failure::GivenUp`].
    pub fn given_up(detail: impl Into<Detail<A>>) -> Self {
        Self::GivenUp(detail.into())
    }

    /// Returns [`Failure::Unknown`].
    pub fn unknown(detail: impl Into<Detail<A>>) -> Self {
        Self::Unknown(detail.into())
    }
}

impl<A> Failure<A> {
    /// The error that the handler returned with it, if any.
    pub(crate) fn error(&self) -> Option<&BoxError> {
        match self {
            Self::NotApplied(detail) | Self::Denied(detail) | Self::GivenUp(detail) | Self::Unknown(detail) => {
                match detail {
                    Detail::Error(error) => Some(error),
                    Detail::Answer(_) => None,
                }
            }
            Self::Final(_) => None,
        }
    }
}

/// An error, a text, a boxed error or an error of the crate `anyhow`.
impl<A, E: Into<BoxError>> From<E> for Failure<A> {
    fn from(error: E) -> Self {
        Self::Unknown(Detail::Error(error.into()))
    }
}

/// What the handler returned with its [`Failure`]. Its caller gets it unchanged. It is not recorded, so followers and
/// later copies do not get it.
#[derive(Debug)]
pub enum Detail<A> {
    /// An answer.
    Answer(A),
    /// An error.
    Error(BoxError),
}

/// An error, a text, a boxed error or an error of the crate `anyhow`.
impl<A, E: Into<BoxError>> From<E> for Detail<A> {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// The answer to a call, from this run of the handler or an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunResult<A> {
    /// The answer, the same for every copy.
    pub answer: A,
    /// Which run gave the answer.
    pub provenance: Provenance,
    /// Whether the store has the answer.
    pub recorded: Recorded,
    /// Until when the answer is replayed at least, in unix seconds by the clock of the process that ran the handler.
    /// None without a record, and after that time: an answer that was recorded late is replayed for longer.
    pub expiry: Option<u32>,
}

/// Which run of the handler gave an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// The handler ran for this call.
    Fresh,
    /// The handler ran for an earlier copy of the call, or for one at the same time.
    Replayed,
    /// The handler ran for this call, but another attempt recorded its answer first. The result has the recorded
    /// answer.
    Canonical,
}

impl Provenance {
    /// The value of the metric label `outcome`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Replayed => "replayed",
            Self::Canonical => "canonical",
        }
    }
}

/// Whether the store has an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The store has it.
    Yes,
    /// The journal of this process has it. The gate retries until the store has it, too.
    Pending,
    /// The handler ran without a record, because the store was down and the policy allows it. A copy may run again.
    No,
}

impl<A> RunResult<A> {
    /// A caller that is shown a time in the past would take the answer for expired.
    pub(super) fn hide_past_expiry(&mut self, now: Timestamp) {
        self.expiry = self.expiry.filter(|expiry| *expiry > now.seconds());
    }
}

impl<A: Answer> RunResult<A> {
    /// Decodes a recorded answer.
    pub(super) fn from_record(completion: Completion, provenance: Provenance) -> Result<Self, Refused<A>> {
        Self::decoded(completion.answer, |answer| Self {
            answer,
            provenance,
            recorded: Recorded::Yes,
            expiry: Some(completion.expiry),
        })
    }

    pub(super) fn decoded(answer: Bytes, to_result: impl FnOnce(A) -> Self) -> Result<Self, Refused<A>> {
        match A::decode(answer) {
            Ok(answer) => Ok(to_result(answer)),
            Err(source) => {
                let error = Error::new(ErrorKind::Damaged, "a recorded answer cannot be decoded").caused_by(source);
                Err(Refused::store(error))
            }
        }
    }
}

/// The result of a call that has no answer.
///
/// ```
/// use std::time::Duration;
/// use hapax::gate::{Reason, Refused};
///
/// /// When the same call may succeed, if at all.
/// fn retry_after<A>(refused: &Refused<A>) -> Option<Duration> {
///     match refused.reason {
///         Reason::Busy { retry_after } => Some(retry_after),
///         Reason::NotApplied { .. } | Reason::Overloaded | Reason::Store(_) => Some(Duration::from_secs(1)),
///         // A copy gets the same refusal until an operator or a probe resolves the record.
///         Reason::Unknown { .. } | Reason::Indeterminate { .. } | Reason::Unrecorded | Reason::Dead => None,
///         // This payload needs a key of its own.
///         Reason::Mismatch => None,
///     }
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Refused<A> {
    /// Why there is no answer.
    pub reason: Reason,
    /// What the handler returned, or the error behind the reason. None for followers: the caller of the leader has it.
    pub detail: Option<Detail<A>>,
}

impl<A> Refused<A> {
    pub(super) fn with_detail(reason: Reason, detail: Detail<A>) -> Self {
        Self { reason, detail: Some(detail) }
    }

    pub(crate) fn store(error: Error) -> Self {
        Self::with_detail(Reason::Store(error.kind()), error.into())
    }

    /// What the handler of a gate returns if its ledger refused the call. The outcome is unknown only if the ledger
    /// does not know whether the effect happened, or cannot read the answer of an operation that has ended. The chapter
    /// `your_transaction` of the guide has an example.
    pub fn into_failure(self) -> Failure<A> {
        let detail = match self.detail {
            Some(Detail::Error(cause)) => {
                Error::new(ErrorKind::NotApplied, self.reason.to_string()).caused_by(cause).into()
            }
            Some(answer @ Detail::Answer(_)) => answer,
            None => self.reason.to_string().into(),
        };
        match self.reason {
            Reason::Busy { .. } | Reason::Mismatch | Reason::Dead | Reason::Overloaded | Reason::NotApplied { .. } => {
                Failure::NotApplied(detail)
            }
            Reason::Store(ErrorKind::Damaged | ErrorKind::Unknown) => Failure::Unknown(detail),
            Reason::Store(_) => Failure::NotApplied(detail),
            Reason::Indeterminate { .. } | Reason::Unknown { .. } | Reason::Unrecorded => Failure::Unknown(detail),
        }
    }
}

impl<A> From<Reason> for Refused<A> {
    fn from(reason: Reason) -> Self {
        Self { reason, detail: None }
    }
}

impl<A> fmt::Display for Refused<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<A: fmt::Debug> StdError for Refused<A> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.detail {
            Some(Detail::Error(error)) => Some(error.as_ref()),
            Some(Detail::Answer(_)) | None => None,
        }
    }
}

/// The result of a call, and what the handler returned beside its answer: see
/// [`Gate::run_with_local`](crate::Gate::run_with_local).
pub type ResultAndLocal<A, L> = (Result<RunResult<A>, Refused<A>>, Option<L>);

/// The metric label of a result, and whether the call is a copy that did not run a second time.
pub(super) fn metric_label<A>(result: &Result<RunResult<A>, Refused<A>>) -> (&'static str, bool) {
    match result {
        Ok(result) => (result.provenance.as_str(), result.provenance == Provenance::Replayed),
        Err(refused) => (refused.reason.as_str(), refused.reason.is_caught()),
    }
}

//! The one error of this crate: few kinds, each a different thing for the caller to do.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

/// What the caller should do about an [`Error`].
///
/// ```
/// use hapax_core::ErrorKind;
///
/// /// What to do after an operation of a store has failed.
/// fn advice(kind: ErrorKind) -> &'static str {
///     match kind {
///         ErrorKind::NotApplied => "ask again, in this way or another",
///         ErrorKind::Unknown => "ask for the very same thing again",
///         ErrorKind::Full => "make room",
///         ErrorKind::Damaged | ErrorKind::Unusable => "call an operator",
///         _ => "mend what was asked",
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input or a setting is wrong: mend it. Nothing happened.
    Invalid,
    /// Nothing happened: the same call, or a new one, may be made again.
    NotApplied,
    /// Nothing happened, because the store takes nothing new, most often for want of room: what it holds can still be read. Make
    /// room, or see why it does not write.
    Full,
    /// It may have happened: only the very same call may be repeated.
    Unknown,
    /// A stored record cannot be read, or is not ours: an operator must look. It is never taken for absent.
    Damaged,
    /// The store cannot be used as it stands (not a database, a newer schema, no right to write): mend the set-up and start again.
    Unusable,
}

/// An error with its kind, a message and, where there is one, the cause.
///
/// ```
/// use hapax_core::{Error, ErrorKind};
///
/// fn may_be_repeated(error: &Error) -> bool {
///     error.kind() == ErrorKind::NotApplied
/// }
///
/// let lost = std::io::Error::other("the connection broke");
/// assert!(!may_be_repeated(&Error::new(ErrorKind::Unknown, "the store did not answer").caused_by(lost)));
/// ```
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<BoxError>,
}

/// Any error that can cross threads.
///
/// ```
/// let error: hapax_core::BoxError = "the connection broke".into();
/// assert_eq!(error.to_string(), "the connection broke");
/// ```
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A result with this crate's [`Error`].
///
/// ```
/// use hapax_core::{Key, Scope};
///
/// fn named(tenant: &str, order: &str) -> hapax_core::Result<(Scope, Key)> {
///     Ok((Scope::tenant("shop", tenant)?, Key::new(order)?))
/// }
/// # named("acme", "order-7").unwrap();
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error without a deeper cause.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Keeps the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// The message alone; the cause is reached by `source()`.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)?;
        let mut cause = self.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

//! The one error of this crate. Each kind asks the caller for a different action.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

/// The kind of an [`Error`]: each kind asks the caller for a different reaction.
///
/// ```
/// use hapax::ErrorKind;
///
/// fn advice(kind: ErrorKind) -> &'static str {
///     match kind {
///         ErrorKind::NotApplied => "make this call or another one",
///         ErrorKind::Unknown => "repeat exactly this call",
///         ErrorKind::Full => "free space in the store",
///         ErrorKind::Damaged | ErrorKind::Unusable => "call an operator",
///         _ => "correct the input or the setting",
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing was written: the input or a setting is wrong. Correct it.
    Invalid,
    /// Nothing was written. The same call or another one may be made.
    NotApplied,
    /// Nothing was written: the store accepts no new record, most often because it is full. Reads still work. Free
    /// space, or find out why the store does not write.
    Full,
    /// The call may have been carried out. Only exactly the same call may be repeated.
    Unknown,
    /// A stored record cannot be read, or belongs to another key. It never counts as absent; an operator has to look at
    /// it.
    Damaged,
    /// The store cannot be used (not a database, a newer schema, no right to write). Correct the set-up and start
    /// again.
    Unusable,
}

/// An error with its kind, a message and, where known, its cause.
///
/// ```
/// use hapax::{Error, ErrorKind};
///
/// let cause = std::io::Error::other("the connection broke");
/// let error = Error::new(ErrorKind::Unknown, "the store did not answer").caused_by(cause);
/// assert_eq!(error.kind(), ErrorKind::Unknown);
/// ```
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<BoxError>,
    is_beside_store: bool,
}

/// Any error that can cross threads.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error without a cause.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None, is_beside_store: false }
    }

    /// The same error with this cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same error, of a place beside the store, such as a bucket for large answers. It says nothing of the store.
    #[must_use]
    pub fn beside_store(mut self) -> Self {
        self.is_beside_store = true;
        self
    }

    /// Whether the error is one of a place beside the store.
    pub fn is_beside_store(&self) -> bool {
        self.is_beside_store
    }

    /// The kind, which says what to do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// Prints the message alone. `source()` returns the cause.
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

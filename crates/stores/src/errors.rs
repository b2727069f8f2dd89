//! Errors of the kinds for a URL and its files.

use std::borrow::Cow;

use hapax_core::{Error, ErrorKind};

pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(any(feature = "dynamodb", feature = "redis", feature = "spanner"))]
pub(crate) fn unusable(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unusable, message)
}

#[cfg(any(feature = "dynamodb", feature = "spanner"))]
pub(crate) fn not_applied(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::NotApplied, message)
}

#[cfg(any(feature = "dynamodb", feature = "spanner"))]
pub(crate) fn unknown(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unknown, message)
}

//! Errors of each kind.

use std::borrow::Cow;
#[cfg(any(feature = "pubsub", feature = "sqs"))]
use std::error::Error as StdError;

use hapax_core::{Error, ErrorKind};

pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

pub(crate) fn unusable(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unusable, message)
}

pub(crate) fn not_applied(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::NotApplied, message)
}

pub(crate) fn unknown(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unknown, message)
}

/// An error and its causes in one line.
#[cfg(any(feature = "pubsub", feature = "sqs"))]
pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

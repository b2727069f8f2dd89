//! Errors of each kind.

use std::borrow::Cow;

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

//! Errors of the kinds for a URL and its files.

use std::borrow::Cow;

use hapax_core::{Error, ErrorKind};

pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(feature = "redis")]
pub(crate) fn unusable(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unusable, message)
}

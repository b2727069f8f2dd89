//! The admin listener.

pub(crate) mod admin;

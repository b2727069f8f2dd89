//! The store that the configuration names: how it is opened, checked before use, and checked again while it is in use.

pub(crate) mod answers;
pub(crate) mod checks;
pub(crate) mod files;
pub(crate) mod findings;
pub(crate) mod foreign;
pub(crate) mod gate;
pub(crate) mod health;
pub(crate) mod opening;
pub(crate) mod sweep;
pub(crate) mod unverified;
pub(crate) mod waiting;

//! What operators see and do: the admin listener, its API and its dashboard.

pub(crate) mod access;
pub(crate) mod api;
mod dashboard;
pub(crate) mod listener;

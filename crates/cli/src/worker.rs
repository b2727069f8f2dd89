//! The worker's side of HTTP: the service that processes messages.

pub(crate) mod dead;
pub(crate) mod request;
pub(crate) mod target;

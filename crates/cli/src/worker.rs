//! The worker: its course (`run`), and the service behind HTTP that processes messages.

pub(crate) mod dead;
pub(crate) mod request;
pub(crate) mod run;
pub(crate) mod target;

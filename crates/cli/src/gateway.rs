//! The gateway's three parts: the listener for clients, the forwarder to the API, and the admin listener.

pub(crate) mod admin;
mod forward;
pub(crate) mod serve;

pub(crate) use forward::Forward;

//! The gateway's parts: the listener for clients, the page on which it publishes its contract, the forwarder to the API, and the admin listener.

pub(crate) mod admin;
mod forward;
mod published;
pub(crate) mod serve;

pub(crate) use forward::Forward;
pub(crate) use published::Published;

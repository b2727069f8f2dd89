//! The gateway's parts: the listener for clients, the page on which it publishes its contract, the routes, the forwarder to the API, and the admin listener.

pub(crate) mod admin;
mod forward;
mod pattern;
mod published;
mod routes;
pub(crate) mod serve;

pub(crate) use forward::Forward;
pub(crate) use pattern::Pattern;
pub(crate) use published::Published;
pub(crate) use routes::{Routes, Way};

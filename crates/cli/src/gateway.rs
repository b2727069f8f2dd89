//! The gateway's parts: the listener for clients, the rules and limits of every route, the page on which it publishes its contract,
//! the routes with policies of their own, the forwarder to the API, and the admin listener.

mod access;
mod activity;
pub(crate) mod admin;
mod arriving;
mod connection;
mod cores;
pub(crate) mod descriptors;
mod edge;
mod forward;
mod guard;
mod headers;
mod http1;
mod http2;
mod limits;
pub(crate) mod metrics;
mod pattern;
mod published;
mod received;
mod refusal;
mod routes;
mod serve;
mod sips;
mod startup;
pub(crate) mod tls;
mod turns;
mod watch;

pub(crate) use cores::{Cores, OnCores};
pub(crate) use forward::{Forward, Upstream};
pub(crate) use guard::Guarded;
pub(crate) use headers::Kept;
pub(crate) use limits::{HELP as LIMITS, Limits};
pub(crate) use pattern::Pattern;
pub(crate) use published::Published;
pub(crate) use routes::{Routes, Way};
pub(crate) use serve::{Server, stop_signal};
pub(crate) use startup::{Hindrance, StartUp};
pub(crate) use watch::{Pace, Watch};

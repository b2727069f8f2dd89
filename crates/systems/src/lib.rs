//! The systems that URLs name: stores, databases, sources of messages, sinks of events.
//!
//! A system is a file here and a row of the table. The row exists in every build, so an error can name the feature of a
//! system that is not built in.

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

mod memory;
mod sink;
mod source;
mod table;
mod watch;
mod webhook;

pub use sink::SinkUrl;
pub use source::SourceUrl;
pub use table::{features, not_built_in};
pub use watch::WatchedFile;
pub use webhook::{DEFAULT_ENDPOINT, EndpointSettings};

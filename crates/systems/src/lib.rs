//! The systems that URLs name: stores, databases, sources of messages, sinks of events.
//!
//! A system is a row of the table. The row exists in every build, so an error can name the feature of a system that is
//! not built in.

mod table;

pub use table::{SystemRow, features, not_built_in};

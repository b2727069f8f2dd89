//! Torture of the relay: writers emit events in PostgreSQL, and three relay processes publish them. Meanwhile the
//! relays are killed, stopped beyond their leases and cut off, and the servers are killed. Then an audit compares what
//! the broker has with what was committed.
//!
//! ```text
//! sale.rs     the transactions, drawn from a seed
//! writers.rs  carries them out: slow ones, and some that roll back
//! relays.rs   processes of `hapax relay`, each behind proxies of its own
//! faults.rs   what happens to them and to the servers
//! broker.rs   the broker, and what it has, read without the relay: nats.rs, rabbitmq.rs
//! audit.rs    the inbox, and whether the broker agrees with the database
//! run.rs      one run, from the start of the servers to the audit
//! ```

mod audit;
mod broker;
mod faults;
mod nats;
mod rabbitmq;
mod relays;
mod run;
mod sale;
mod writers;

pub use broker::SinkBroker;
pub use faults::RelayFault;
pub use run::{RelayTortureOptions, RelayTortureResult, run};

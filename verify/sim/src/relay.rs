//! A random world of relays from a seed: writers, up to three relays on one outbox, a broker, operators and faults. At
//! the end every event that was committed has arrived, and the first arrivals of each key are in its order.
//!
//! ```text
//! plan.rs      the shape of a world, and the faults that are possible in it
//! world.rs     one run, and the rules
//! database.rs  the outbox behind a network that fails
//! broker.rs    what has arrived, and the sink of one relay
//! writers.rs   the transactions that write events
//! actors.rs    faults of processes, and operators
//! ```
//!
//! Relays, outbox and claims are the real ones, in memory and under virtual time.

mod actors;
mod broker;
mod database;
mod plan;
mod world;
mod writers;

pub use plan::OutboxFault;
pub use world::{RelayRun, run_relays};

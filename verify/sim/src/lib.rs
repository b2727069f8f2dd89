//! A deterministic simulation of the gate: whole worlds that follow from a seed, and an oracle that holds each of their steps to rules.
//!
//! The gate is the real one, and so is the store behind it; what is simulated is what lies between: processes and their crashes,
//! clocks, the network, callers, handlers. Time is virtual, and of the tasks that can go on one is chosen at random, so one seed is one
//! run, the same each time: [`run`] it again with a trace to read what happened.
//!
//! ```text
//! plan.rs     what a seed decides: the shape of a world, its routes, what may go wrong
//! world.rs    one run, from the first client to the last task
//! scene.rs    what all actors share;  site.rs a process with its gates;  client.rs, handler.rs, operator.rs, mishaps.rs the actors
//! store.rs    the store behind a network that fails
//! oracle.rs   what must never be, and what relaxes each rule
//! trace.rs    what happened, and its hash
//! ```
//!
//! A seed means the same world only as long as none of this changes: what a seed found is kept as a case of the sweeps of the core
//! where it can be pinned down.

mod client;
mod dice;
mod handler;
mod mishaps;
mod operator;
mod oracle;
pub mod outcome;
mod plan;
pub mod rules;
mod scene;
mod seeds;
mod site;
mod store;
mod tally;
mod trace;
mod world;

pub use plan::Class;
pub use seeds::{Failure, run_all};
pub use tally::Tally;
pub use trace::Counts;
pub use world::{Run, run};

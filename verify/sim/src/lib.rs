//! A deterministic simulation of the gate. A seed determines a whole world; an oracle checks each step of the world
//! against rules.
//!
//! The gate and the memory store are the real ones. The simulation replaces everything between them and around them:
//! processes and their crashes, clocks, the network, callers and handlers. Time is virtual. One thread runs all tasks
//! and picks the next runnable task at random, so one seed always gives the same run. [`run`] a seed again with a trace
//! to read what happened.
//!
//! ```text
//! plan.rs      the shape of a world, its routes, and the faults that are possible in it
//! world.rs     one run, from the first client to the last task
//! scene.rs     the state that all actors share
//! process.rs   a process with its gates; startup.rs starts it
//! client.rs, handler.rs, operator.rs, worker.rs, faults.rs    the actors
//! store.rs     the store behind a network that fails
//! oracle.rs    the rules, and which fault relaxes which rule
//! trace.rs     the events of a run, and their hash
//! relay.rs     worlds of relays on an outbox, with rules of their own
//! outcome.rs, rules.rs    the vocabulary that the sweeps use too
//! ```
//!
//! A seed means the same world only until the simulation or the gate draws random numbers in another order. A bug that
//! a seed found is therefore also kept as a test of the core.

mod client;
mod dice;
mod faults;
mod handler;
mod operator;
mod oracle;
pub mod outcome;
mod plan;
mod process;
mod relay;
pub mod rules;
mod scene;
mod seeds;
mod startup;
mod store;
mod totals;
mod trace;
mod worker;
mod world;

pub use plan::FaultClass;
pub use relay::{OutboxFault, RelayRun, run_relays};
pub use seeds::{FailedSeed, run_all};
pub use totals::RunTotals;
pub use trace::Counts;
pub use world::{WorldRun, run};

//! Exhaustive fault injection for the gate and the HTTP layer, in virtual time.
//!
//! A sweep takes a small run and repeats it once for each point at which something can go wrong: each fault at each
//! store call, each future dropped at each step, a panic at each poll of a handler. After each run an oracle checks the
//! outcome: the key is completed once, released with nothing applied, or indeterminate for a reason. It is never free
//! after an effect.
//!
//! ```text
//! src/sweep.rs    counts points and runs, and collects violations
//! tests/gate/     the gate: store faults, drops, panics, outages with a journal, and each protocol operation by itself
//! tests/http/     the HTTP layer around a service
//! ```
//!
//! The sweeps share their vocabulary with the simulation: `hapax_sim::outcome` and `hapax_sim::rules`. Each sweep
//! prints how many points it covered. No test sleeps.

mod sweep;

pub use sweep::{Interruption, Sweep};

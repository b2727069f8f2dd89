//! The conformance suite: one list of cases for all stores, each naming the clause of the contract that it holds a store to.
//!
//! A backend joins with one line in a `tests/conformance.rs` (with `harness = false`):
//!
//! ```text
//! fn main() -> ExitCode {
//!     hapax_testkit::main(&[sqlite::backend()])
//! }
//! ```
//!
//! Beside it, what a test of a whole engine needs: [`Faulty`], a store that fails where it is told to, and [`VirtualTime`], a world
//! in which leases and timeouts cost no time. And what a test of a backend needs: [`servers`], real ones that can be killed, stopped and put
//! in the wrong hour, and a [`proxy`] before them that loses what it is told to lose.

mod clock;
mod differential;
mod faulty;
mod ports;
pub mod proxy;
pub mod servers;
mod setup;
mod suite;
mod virtual_time;

pub use clock::ManualClock;
pub use differential::differential;
pub use faulty::{Fault, Faulty, Operation, When, turn};
pub use setup::{Backend, Capability, Case, Setup, Step, main};
pub use suite::{GOLDEN_ANSWER, cases, golden_call};
pub use virtual_time::{Choose, Clocks, Part, Process, Started, VirtualTime};

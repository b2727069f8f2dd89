//! The conformance suite: one list of cases for all stores, each naming the clause of the contract that it holds a store to.
//!
//! A backend joins with one line in a `tests/conformance.rs` (with `harness = false`):
//!
//! ```text
//! fn main() -> ExitCode {
//!     hapax_testkit::main(&[sqlite::backend()])
//! }
//! ```

mod clock;
mod setup;
mod suite;

pub use clock::ManualClock;
pub use setup::{Backend, Capability, Case, Setup, Step, main};
pub use suite::{GOLDEN_ANSWER, cases, golden_call};

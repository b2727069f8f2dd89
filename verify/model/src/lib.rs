//! The protocol of Hapax in every order in which its steps, its faults and its clocks can meet.
//!
//! ```text
//! setting.rs    who calls, under which policy, with which faults; settings.rs is the table of them, each with what is expected
//! world.rs      a state: store, attempts, late requests, operator, history
//! possible.rs   what can happen next          steps.rs     what then happens
//! protocol.rs   one step of an operation: the store's, or a look and the core's machine
//! invariant.rs  what must hold in each state  reach.rs     from each state, a definite answer stays reachable
//! check.rs      a setting's verdict           trace.rs     the shortest way to what is broken, to be read
//! rows.rs       which rows of the machine's table are come to
//! ```
//!
//! Nothing of the protocol is written here: records are judged by `hapax_core::machine`, and swaps by `hapax_core::store::unchanged`.
//! What is written here are the engine's rules, as `hapax_core::gate` follows them, the network, and time.

mod action;
mod ask;
mod attempt;
mod check;
mod history;
mod invariant;
mod kept;
mod possible;
mod protocol;
mod reach;
mod rows;
mod setting;
mod settings;
mod space;
mod steps;
mod store;
mod trace;
mod world;

pub use check::{Verdict, check};
pub use invariant::Invariant;
pub use rows::{Row, rows};
pub use setting::Setting;
pub use settings::{Expected, Listed, SETTINGS};
pub use trace::tell;

//! The protocol of Hapax in every order in which its steps, its faults and its clocks can meet.
//!
//! ```text
//! settings.rs   the table: what is shipped and must hold, what must not be done and must break
//! setting.rs    one of them: who calls, under which policy, with how many faults
//! world.rs      a state: store, attempts, late requests, operator, what happened
//! possible.rs   what can happen next            steps.rs      what then happens, and time
//! network.rs    what becomes of a request       engine.rs     what an attempt does about it
//! protocol.rs   a step of an operation          operator.rs   who finds out
//! invariant.rs  what must hold in each state    reach.rs      a definite answer stays reachable from each
//! check.rs      a setting's verdict             trace.rs      the shortest way to what is broken, to be read
//! rows.rs       which rows of the machine's table a setting comes to
//! ```
//!
//! Nothing of the protocol is written here: records are judged by `hapax_core::machine`, and swaps by
//! `hapax_core::store::is_unchanged`. What is written here are the engine's rules, as `hapax_core::gate` follows them, the network and
//! time.
//!
//! It is meaner than the world: a lease ends at any moment and as often as it likes, nobody heeds a deadline, a swap is refused only
//! if the value differs or was armed anew, and what anybody read may be as old as it likes by the time they act on it.
//! It is kinder in this: a request that is lost is lost for good, so that "none of an attempt's begins can arrive any more" is a
//! fact, where the engine waits for a lease; a change is tried until it is made, where the protocol gives up after 8 tries; two
//! attempts never share a process, so twins that wait for each other, permits and the breaker are not here; and numbers are small.

mod action;
mod ask;
mod attempt;
mod check;
mod engine;
mod history;
mod invariant;
mod kept;
mod network;
mod operator;
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
pub use settings::{DEEP, Expected, Listed, settings};
pub use trace::tell;

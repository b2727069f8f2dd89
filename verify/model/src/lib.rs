//! A model of the protocol that explores every order of its steps, its faults and its clocks.
//!
//! ```text
//! settings.rs   the settings: the shipped ones must hold, the forbidden ones must break
//! setting.rs    one setting: its calls, its policy, and how many faults may happen
//! world.rs      a state: the store, the attempts, late requests, the operator, the history
//! actions.rs    the steps that are possible in a state     steps.rs      their effects, and time
//! network.rs    the fate of a request                      engine.rs     how an attempt reacts to it
//! protocol.rs   one step of an operation                   operator.rs   the operator who resolves outcomes
//! ledger.rs     the ledger's transaction, in steps
//! outbox.rs     the outbox and its relays: a model of its own
//! invariant.rs  the invariants                             property.rs   their checks on a state
//! reach.rs      whether each state can still lead to a definite answer
//! check.rs      the result of a setting                    trace.rs      the shortest way to a broken invariant
//! table.rs      the rows of the machine's table that a setting reaches
//! ```
//!
//! The model has no copy of the protocol. `hapax_core::machine` judges records, `hapax_core::store::is_unchanged`
//! judges swaps, and `hapax_core::ledger::rules` judges claims and commits. The model itself defines the rules of the
//! engine as `hapax_core::gate` follows them, the network, and time.
//!
//! The model is stricter than reality in these points. A lease may expire at any moment and any number of times. No
//! attempt respects a deadline. A swap is refused only if the value differs or was re-armed. An attempt may act on a
//! read of any age.
//!
//! The model is milder than reality in these points. A lost request never arrives, so "none of an attempt's begins can
//! arrive any more" is a fact; the engine waits for one lease instead. A change is repeated until it succeeds; the
//! protocol stops after 8 tries. Two attempts never share a process, so the model has no followers, permits or breaker.
//! A row of the ledger is never removed, and its database loses no commit. All numbers are small.

mod action;
mod actions;
mod attempt;
mod check;
mod engine;
mod explore;
mod history;
mod invariant;
mod ledger;
mod network;
mod operator;
mod outbox;
mod property;
mod protocol;
mod reach;
mod record;
mod reply;
mod request;
mod setting;
mod settings;
mod space;
mod steps;
mod store;
mod table;
mod trace;
mod world;

pub use check::{BrokenInvariant, CheckResult, CheckedSetting, check};
pub use invariant::Invariant;
pub use outbox::OutboxSetting;
pub use setting::ModelSetting;
pub use settings::{ExpectedResult, NamedSetting, deep_settings, settings};
pub use table::{ProtocolRow, rows};

//! Tests without a server: derivations, the machine row by row and under random sequences, and the gate.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, also outside of its own function")]

mod alerts;
mod answer_types;
mod begin;
#[cfg(feature = "chaos")]
mod chaos;
mod coalesce;
mod complete;
mod counters;
mod damage;
mod dead_sink;
mod error_kinds;
mod gate;
mod handler;
mod journal;
mod journal_adoption;
mod journal_folder;
mod lease;
mod ledger;
mod list;
mod machine;
mod memory;
mod properties;
mod protocol;
mod relay;
mod stepped;
mod vectors;
mod worker;
mod world;

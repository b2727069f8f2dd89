//! What holds without a server: derivations, the machine row by row and under random sequences, and the gate.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic, also outside of its own function")]

mod engine;
mod gate;
mod journal;
mod list;
mod machine;
mod memory;
mod properties;
mod protocol;
mod stepped;
mod vectors;

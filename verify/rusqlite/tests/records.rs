//! Runs the conformance suite.

#[path = "../../../crates/stores/tests/sqlite/mod.rs"]
mod sqlite;

use std::process::ExitCode;

fn main() -> ExitCode {
    hapax_testkit::main(&[sqlite::backend()])
}

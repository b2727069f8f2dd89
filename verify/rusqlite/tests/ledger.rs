//! Runs the ledger suite.

#[path = "../../../crates/stores/tests/sqlite_ledger/mod.rs"]
mod sqlite_ledger;

use std::process::ExitCode;

fn main() -> ExitCode {
    hapax_testkit::ledger_main(&[sqlite_ledger::backend()])
}

//! Runs the ledger suite against every ledger of this crate.

mod postgres_ledger;
mod sqlite_ledger;

use std::process::ExitCode;

fn main() -> ExitCode {
    hapax_testkit::ledger_main(&[postgres_ledger::backend(), sqlite_ledger::backend()])
}

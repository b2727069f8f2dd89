//! Runs the ledger suite against every ledger of this crate.

mod postgres_ledger;
mod spanner_ledger;
mod sqlite_ledger;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut backends = postgres_ledger::backends();
    backends.push(sqlite_ledger::backend());
    backends.push(spanner_ledger::backend());
    hapax_testkit::ledger_main(&backends)
}

//! The suite against every store of this crate: one line each.

mod sqlite;

use std::process::ExitCode;

fn main() -> ExitCode {
    hapax_testkit::main(&[sqlite::backend()])
}

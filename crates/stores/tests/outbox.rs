//! Runs the outbox suite against the outbox in memory and every outbox of this crate.

mod outbox_setup;

use std::process::ExitCode;

use outbox_setup::{memory, postgres, spanner, sqlite};

fn main() -> ExitCode {
    hapax_testkit::outbox_main(&[
        memory::backend(),
        postgres::backend(),
        postgres::pooled_backend(),
        spanner::backend(),
        sqlite::backend(),
    ])
}

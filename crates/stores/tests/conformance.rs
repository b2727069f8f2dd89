//! The suite against every store of this crate: one line each.

mod redis;
mod sqlite;

use std::process::ExitCode;

use hapax_testkit::servers::Kind;

fn main() -> ExitCode {
    let [redis, valkey] = Kind::ALL.map(redis::backend);
    hapax_testkit::main(&[redis, sqlite::backend(), valkey])
}

//! Runs the conformance suite against every store of this crate.

mod postgres;
mod redis;
mod sqlite;

use std::process::ExitCode;

use hapax_testkit::servers::RedisKind;

fn main() -> ExitCode {
    let [redis, valkey] = RedisKind::ALL.map(redis::backend);
    hapax_testkit::main(&[postgres::backend(), postgres::pooled_backend(), redis, sqlite::backend(), valkey])
}

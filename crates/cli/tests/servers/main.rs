//! Tests of the binary with real servers.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

mod dead;
#[path = "../it/dead_letters.rs"]
mod dead_letters;
#[path = "../it/harness.rs"]
#[allow(dead_code, reason = "shared with the tests that need no server")]
mod harness;
mod migrate;
mod postgres;
mod redis;
#[path = "../it/torture.rs"]
mod torture;
mod worker;

use std::process::ExitCode;

use hapax_testkit::servers;

fn main() -> ExitCode {
    let tests = [redis::tests(), postgres::tests(), migrate::tests(), dead::tests(), worker::tests()];
    servers::main(tests.into_iter().flatten().collect::<Vec<_>>())
}

//! The binary on real servers.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod redis;
#[path = "../it/torture.rs"]
mod torture;
#[path = "../it/world.rs"]
#[allow(dead_code, reason = "shared with the tests that need no server")]
mod world;

use std::process::ExitCode;

use hapax_testkit::servers;

fn main() -> ExitCode {
    servers::main(redis::tests())
}

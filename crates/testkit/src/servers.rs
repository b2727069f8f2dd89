//! Real servers for tests: each on a port and in a folder of its own, and none outlives the process of the test.
//!
//! A test that needs one lives in a test binary with `harness = false`, since only there can a test be ignored when it runs:
//!
//! ```no_run
//! use hapax_testkit::servers::{self, Kind, Options, RedisServer};
//!
//! async fn a_key_is_gone_when_its_hour_is_over(kind: Kind) {
//!     let server = RedisServer::start(Options::new(kind)).await.unwrap();
//!     server.command(&["SET", "key", "value", "EX", "3600"]).await.unwrap();
//!     server.step_clock(hapax_testkit::Step::Forward(std::time::Duration::from_secs(3601))).unwrap();
//!     assert_eq!(server.command(&["GET", "key"]).await.unwrap(), servers::Reply::Nil);
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     let name = "a_key_is_gone_when_its_hour_is_over";
//!     servers::main(Kind::ALL.map(|kind| servers::test(name, kind.name(), move || a_key_is_gone_when_its_hour_is_over(kind))))
//! }
//! ```

mod availability;
mod redis;
mod resp;
mod starter;

pub use availability::{Missing, main, required, test};
pub use libtest_mimic::Trial;
pub use redis::{Kind, Options, RedisServer};
pub use resp::Reply;

//! Runs the conformance suite against every store of this crate.

mod dynamodb;
mod far;
mod postgres;
mod redis;
mod spanner;
mod sqlite;

use std::process::ExitCode;

use hapax_testkit::servers::RedisKind;

fn main() -> ExitCode {
    let [redis, valkey] = RedisKind::ALL.map(redis::backend);
    let far = [postgres::far_backend(), redis::far_backend(), far::sqlite_backend()];
    let near = [dynamodb::backend(), postgres::backend(), postgres::pooled_backend(), redis, sqlite::backend(), valkey];
    let emulated = [spanner::backend()];
    let groups =
        RedisKind::ALL.into_iter().flat_map(|kind| [redis::cluster_backend(kind), redis::sentinel_backend(kind)]);
    hapax_testkit::main(&near.into_iter().chain(emulated).chain(groups).chain(far).collect::<Vec<_>>())
}

//! The bytes that a completed record takes in each store, by the size of its answer. `hapax plan` uses the table.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use hapax_core::runtime::Tokio;
use hapax_core::{Call, Inspect, Store};
use hapax_stores::{Postgres, PostgresUrl, Redis, Sqlite, SqliteSettings};
use hapax_testkit::servers::{PostgresServer, PostgresServerOptions, RedisKind, RedisServer, RedisServerOptions};
use rusqlite::Connection;

use crate::subjects::{FreshCalls, full_cycle_with};

/// The sizes of the answers. Stores round some of them up a lot: SQLite above 1,000 bytes, PostgreSQL above 2,000.
const SIZES: [usize; 11] = [0, 64, 256, 512, 900, 1_100, 1_900, 2_200, 4_096, 16_384, 65_536];
const IN_FLIGHT: usize = 64;
/// Enough records that pages and tables which are not full do not count.
const RECORDS: usize = 10_000;
/// All answers of a table together, so that the large ones end in time.
const BYTES: usize = 64 << 20;

/// Measures every store and prints the table.
pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let redis = RedisServer::start(RedisServerOptions::new(RedisKind::Redis).with_system_clock()).await?;
        let postgres = PostgresServer::start(PostgresServerOptions::new()).await?;
        println!("{:>8}  {:>8}  {:>8}  {:>8}", "answer", "redis", "postgres", "sqlite");
        for size in SIZES {
            let count = RECORDS.min(BYTES / size.max(1)).max(1_000);
            let in_redis = in_redis(&redis, size, count).await?;
            let in_postgres = in_postgres(&postgres, size, count).await?;
            let in_sqlite = in_sqlite(size, count).await?;
            println!("{size:>8}  {in_redis:>8}  {in_postgres:>8}  {in_sqlite:>8}");
        }
        Ok(())
    })
}

/// Bytes of `used_memory` for each record.
async fn in_redis(server: &RedisServer, size: usize, count: usize) -> anyhow::Result<u64> {
    server.command(&["FLUSHALL"]).await?;
    let before = used_memory(server).await?;
    let store = Redis::with(&server.url().parse()?, Arc::new(Tokio::current()))?;
    fill(&store, size, count).await?;
    Ok((used_memory(server).await? - before) / count as u64)
}

async fn used_memory(server: &RedisServer) -> anyhow::Result<u64> {
    let info = server.command(&["INFO", "memory"]).await?.text();
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    Ok(line.unwrap_or_default().trim().parse()?)
}

/// Bytes of the table with its index and the answers beside it, for each record.
async fn in_postgres(server: &PostgresServer, size: usize, count: usize) -> anyhow::Result<u64> {
    let client = server.client().await?;
    let url: PostgresUrl = server.url().parse()?;
    let store = Postgres::with(&url, Arc::new(Tokio::current()))?;
    // Creates the tables.
    store.check().await?;
    client.batch_execute(include_str!("sizing/empty.sql")).await?;
    fill(&store, size, count).await?;
    let row = client.query_one(include_str!("sizing/size.sql"), &[]).await?;
    Ok(row.get::<_, i64>(0) as u64 / count as u64)
}

/// Bytes of the file for each record.
async fn in_sqlite(size: usize, count: usize) -> anyhow::Result<u64> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("records.db");
    let store = Sqlite::with(&path, Arc::new(Tokio::current()), SqliteSettings::default())?;
    fill(&store, size, count).await?;
    // Counts the pages that are still in the log, too.
    let connection = Connection::open(&path)?;
    let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    Ok((number("page_count")? * number("page_size")?) as u64 / count as u64)
}

/// Begins and completes new keys. No store can compress the answers.
async fn fill(store: &dyn Store, size: usize, count: usize) -> anyhow::Result<()> {
    let calls: Vec<Call> = FreshCalls::new().take(count);
    let mut answer = vec![0; size];
    getrandom::fill(&mut answer).map_err(|error| anyhow::anyhow!("no random bytes: {error}"))?;
    let answer = bytes::Bytes::from(answer);
    let cycles = calls.into_iter().map(|call| full_cycle_with(store, call, answer.clone()));
    stream::iter(cycles).buffer_unordered(IN_FLIGHT).try_collect::<()>().await
}

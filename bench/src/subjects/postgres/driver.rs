//! Statements by the driver alone.

use std::time::Instant;

use anyhow::ensure;
use futures_util::future::try_join_all;
use hapax_core::Call;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Statement};

use super::server::BenchDatabase;
use super::{BATCHED_CALLS, SINGLE_CALLS, median};
use crate::harness::{MeasuredBatch, per_second};
use crate::subjects::ANSWER;

/// The keys of one statement, and the connections: as the store has them.
const BATCH: usize = 256;
const CONNECTIONS: usize = 4;

/// How many connections the usual pattern has.
const UNBATCHED_CONNECTIONS: usize = 32;

const TOKEN: i64 = 1_900_000_000_000_000;
const OWNER: &[u8] = &[7; 16];
const FINGERPRINT: &[u8] = &[1; 12];
const CHECK: &[u8] = &[2; 8];

/// The statements of the store, each for many keys.
pub(super) fn batched(database: &BenchDatabase) -> MeasuredBatch {
    let database = database.clone();
    Box::new(move || {
        let calls = database.take(BATCHED_CALLS);
        let clients = database.block_on(connections(&database, CONNECTIONS))?;
        per_second(calls.len(), || {
            database.block_on(async {
                let share = calls.len() / CONNECTIONS;
                let loops = clients.iter().zip(calls.chunks(share)).map(|(client, calls)| batches(client, calls));
                try_join_all(loops).await.map(drop)
            })
        })
    })
}

async fn connections(database: &BenchDatabase, count: usize) -> anyhow::Result<Vec<Client>> {
    try_join_all((0..count).map(|_| database.client())).await
}

async fn batches(client: &Client, calls: &[Call]) -> anyhow::Result<()> {
    for calls in calls.chunks(BATCH) {
        let keys: Vec<_> = calls.iter().map(Call::record_key).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|rk| &rk.as_bytes()[..]).collect();
        ensure!(begin_keys(client, &keys).await? == keys.len(), "a begin was refused");
        ensure!(complete_keys(client, &keys).await? == keys.len(), "a completion was refused");
    }
    Ok(())
}

async fn begin_keys(client: &Client, keys: &[&[u8]]) -> anyhow::Result<usize> {
    let n = keys.len();
    let parameters: [(&(dyn ToSql + Sync), Type); 12] = [
        (&keys, Type::BYTEA_ARRAY),
        (&vec![1_i16; n], Type::INT2_ARRAY),
        (&vec![false; n], Type::BOOL_ARRAY),
        (&vec![1_i16; n], Type::INT2_ARRAY),
        (&vec![FINGERPRINT; n], Type::BYTEA_ARRAY),
        (&vec![TOKEN; n], Type::INT8_ARRAY),
        (&vec![OWNER; n], Type::BYTEA_ARRAY),
        (&vec![1_i32; n], Type::INT4_ARRAY),
        (&vec![30_000_i64; n], Type::INT8_ARRAY),
        (&vec![2_592_000_i64; n], Type::INT8_ARRAY),
        (&vec![CHECK; n], Type::BYTEA_ARRAY),
        (&vec![2_592_000_i64; n], Type::INT8_ARRAY),
    ];
    written(client, include_str!("../../../../crates/stores/src/postgres/batch/begin.sql"), &parameters).await
}

async fn complete_keys(client: &Client, keys: &[&[u8]]) -> anyhow::Result<usize> {
    let n = keys.len();
    let parameters: [(&(dyn ToSql + Sync), Type); 10] = [
        (&keys, Type::BYTEA_ARRAY),
        (&vec![TOKEN; n], Type::INT8_ARRAY),
        (&vec![OWNER; n], Type::BYTEA_ARRAY),
        (&vec![1_i16; n], Type::INT2_ARRAY),
        (&vec![FINGERPRINT; n], Type::BYTEA_ARRAY),
        (&vec![CHECK; n], Type::BYTEA_ARRAY),
        (&vec![1_900_000_000_i64; n], Type::INT8_ARRAY),
        (&vec![ANSWER; n], Type::BYTEA_ARRAY),
        (&vec![86_400_i64; n], Type::INT8_ARRAY),
        (&vec![true; n], Type::BOOL_ARRAY),
    ];
    written(client, include_str!("../../../../crates/stores/src/postgres/batch/complete.sql"), &parameters).await
}

/// How many records the statement wrote. It is planned each time, as in the store: a plan for any number of keys is
/// slower.
async fn written(
    client: &Client,
    statement: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> anyhow::Result<usize> {
    let rows = client.query_typed(statement, parameters).await?;
    Ok(rows.iter().filter(|row| row.get("is_written")).count())
}

/// The usual pattern: two statements of one row each, on many connections.
pub(super) fn unbatched(database: &BenchDatabase) -> MeasuredBatch {
    let database = database.clone();
    Box::new(move || {
        let calls = database.take(SINGLE_CALLS * 4);
        let clients = database.block_on(connections(&database, UNBATCHED_CONNECTIONS))?;
        per_second(calls.len(), || {
            database.block_on(async {
                let share = calls.len() / UNBATCHED_CONNECTIONS;
                let loops = clients.iter().zip(calls.chunks(share)).map(async |(client, calls)| {
                    let pair = BarePair::prepare(client).await?;
                    for call in calls {
                        pair.cycle(client, call).await?;
                    }
                    anyhow::Ok(())
                });
                try_join_all(loops).await.map(drop)
            })
        })
    })
}

/// The usual pattern on one connection; 1 / p50.
pub(super) fn one_in_flight(database: &BenchDatabase) -> MeasuredBatch {
    let database = database.clone();
    Box::new(move || {
        let calls = database.take(SINGLE_CALLS);
        database.block_on(async {
            let client = database.client().await?;
            let pair = BarePair::prepare(&client).await?;
            let mut latencies = Vec::with_capacity(calls.len());
            for call in &calls {
                let started = Instant::now();
                pair.cycle(&client, call).await?;
                latencies.push(started.elapsed());
            }
            median(latencies)
        })
    })
}

/// An insert before the effect, and an update behind it.
struct BarePair {
    insert: Statement,
    update: Statement,
}

impl BarePair {
    async fn prepare(client: &Client) -> anyhow::Result<Self> {
        let insert = "insert into bare_record (rk, fingerprint, expires_at)
                      values ($1, $2, clock_timestamp() + interval '1 day') on conflict (rk) do nothing";
        let update = "update bare_record set answer = $2 where rk = $1 and answer is null";
        Ok(Self { insert: client.prepare(insert).await?, update: client.prepare(update).await? })
    }

    async fn cycle(&self, client: &Client, call: &Call) -> anyhow::Result<()> {
        let rk = call.record_key();
        let rk = &rk.as_bytes()[..];
        ensure!(client.execute(&self.insert, &[&rk, &FINGERPRINT]).await? == 1, "the key is not new");
        ensure!(client.execute(&self.update, &[&rk, &ANSWER]).await? == 1, "the row is missing");
        Ok(())
    }
}

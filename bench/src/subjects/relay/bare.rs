use std::time::Instant;

use anyhow::ensure;
use hapax_testkit::servers::PostgresServer;

use super::brokers::{BareEvent, BenchBroker};
use crate::harness::{BatchResult, own_seconds_of_cpu};

/// The rows of one turn of the loop: as many as the relay has in flight.
const BATCH: usize = 1024;

/// Reads rows, publishes them, waits for the confirmations and marks the rows, until all are published. The commit of
/// the marks does not wait for the disk, as that of the relay.
pub(super) async fn drain(
    postgres: &PostgresServer,
    broker: &dyn BenchBroker,
    topic: &str,
    events: usize,
) -> anyhow::Result<BatchResult> {
    let client = postgres.client().await?;
    client.batch_execute("set synchronous_commit = off").await?;
    let read = client.prepare(include_str!("read_bare.sql")).await?;
    let mark = client.prepare(include_str!("mark_bare.sql")).await?;
    let (before, begun) = (own_seconds_of_cpu()?, Instant::now());
    let (mut last, mut published) = (0_i64, 0);
    while published < events {
        let rows = client.query(&read, &[&last, &i64::try_from(BATCH)?]).await?;
        ensure!(!rows.is_empty(), "rows are missing");
        let ids: Vec<i64> = rows.iter().map(|row| row.get("id")).collect();
        let read = |row: &tokio_postgres::Row| BareEvent {
            id: row.get("event_id"),
            key: row.get("okey"),
            payload: row.get("payload"),
        };
        broker.publish(topic, rows.iter().map(read).collect()).await?;
        let marked = client.execute(&mark, &[&ids]).await?;
        ensure!(usize::try_from(marked)? == ids.len(), "rows were not marked");
        published += ids.len();
        last = ids.into_iter().max().unwrap_or(last);
    }
    let rate = events as f64 / begun.elapsed().as_secs_f64();
    let cpu = (own_seconds_of_cpu()? - before) / events as f64;
    Ok(BatchResult { rate, note: format!("{:.0} us of CPU each in this process", cpu * 1e6) })
}

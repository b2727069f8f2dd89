//! The latency of single calls while a sweep removes old rows, beside the same calls without a sweep.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::bail;
use futures_util::future::{Either, select, try_join_all};
use hapax_core::ledger::{Call, Retention, Terms};
use hapax_stores::PostgresLedger;
use uuid::Uuid;

use super::postgres::{Database, ledger};
use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject};
use crate::subjects::ANSWER;
use crate::subjects::statements::write_effects;

const CLIENTS: usize = 8;
const CALLS: usize = 2_000;
const FILL_OLD: &str = include_str!("fill_old.sql");

/// On a server of its own, so that the sweep finds old rows at once.
pub(super) fn beside_calls() -> anyhow::Result<Subject> {
    let database = Database::start()?;
    Ok(Subject {
        name: "ledger on PostgreSQL, p99 beside a sweep",
        what: "microseconds, not a rate: the 99th percentile of single calls of 8 clients while 100,000 old rows are \
               removed",
        run: latency(&database, true),
        limit: Some(Limit {
            what: "the same calls in the same table without a sweep; a ratio near 1 is good",
            run: latency(&database, false),
            at_least: None,
        }),
    })
}

fn latency(database: &Database, is_swept: bool) -> MeasuredBatch {
    let database = database.clone();
    Box::new(move || {
        let _inside = database.runtime().enter();
        let terms = Terms::new("bench")?.retention(Retention::For(Duration::from_hours(1)), Duration::ZERO)?;
        let (ledger, calls) = (ledger(database.server(), terms)?, database.take(CALLS));
        database.runtime().block_on(async {
            let admin = database.server().client().await?;
            admin.batch_execute(FILL_OLD).await?;
            let mut latencies = if is_swept {
                let sweeps = ledger.sweep_regularly(Duration::ZERO);
                match select(pin!(latencies(&ledger, &calls)), pin!(sweeps)).await {
                    Either::Left((latencies, _)) => latencies?,
                    Either::Right(((), _)) => bail!("the sweep has ended"),
                }
            } else {
                latencies(&ledger, &calls).await?
            };
            latencies.sort();
            let [median, p99] = [50, 99].map(|percentile| latencies[latencies.len() * percentile / 100]);
            let left = "select count(*) from hapax_ledger where created_at < now() - interval '1 hour'";
            let left: i64 = admin.query_one(left, &[]).await?.get(0);
            let note =
                format!("p50 {} us; {} of 100,000 old rows removed meanwhile", median.as_micros(), 100_000 - left);
            Ok(BatchResult { rate: p99.as_secs_f64() * 1e6, note })
        })
    })
}

/// How long each call took.
async fn latencies(ledger: &PostgresLedger, calls: &[Call]) -> anyhow::Result<Vec<Duration>> {
    let shares = calls.chunks(calls.len().div_ceil(CLIENTS)).map(async |share| {
        let mut latencies = Vec::with_capacity(share.len());
        for call in share {
            let begun = Instant::now();
            let run = ledger.run(*call, async |transaction, entry| {
                write_effects(transaction, &[Uuid::from_bytes(*entry.operation().as_bytes())]).await?;
                Ok(bytes::Bytes::from_static(ANSWER))
            });
            run.await.map_err(|refused| anyhow::anyhow!("{refused}"))?;
            latencies.push(begun.elapsed());
        }
        anyhow::Ok(latencies)
    });
    Ok(try_join_all(shares).await?.concat())
}

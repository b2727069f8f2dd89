//! The store on PostgreSQL, beside its own statements by the driver alone, and beside one statement for each call.
//! Client and server share the cores.

mod doors;
mod driver;
mod server;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use hapax_core::{Call, Store};

use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject, per_second};
use crate::subjects::full_cycle;
use server::BenchDatabase;

/// How many calls are in flight at once.
const IN_FLIGHT: usize = 1_024;

/// The calls of one measurement.
const BATCHED_CALLS: usize = 40_000;
const SINGLE_CALLS: usize = 2_000;

pub(crate) fn all() -> anyhow::Result<Vec<Subject>> {
    let database = BenchDatabase::start()?;
    let mut subjects = beside_the_driver(&database);
    subjects.extend(doors::all(&database));
    subjects.push(bloat(&database));
    Ok(subjects)
}

/// The subjects that are measured against the driver alone.
fn beside_the_driver(database: &BenchDatabase) -> Vec<Subject> {
    vec![
        Subject {
            name: "PostgreSQL, full cycle",
            what: "begin + complete of a new key, durable, 1,024 in flight, 4 connections",
            run: cycles(database),
            limit: Some(Limit {
                what: "the same statements for 256 keys each, by the driver alone on 4 connections",
                run: driver::batched(database),
                at_least: Some(0.5),
            }),
        },
        Subject {
            name: "PostgreSQL, full cycle, beside single statements",
            what: "the same",
            run: cycles(database),
            limit: Some(Limit {
                what: "the usual pattern: INSERT and UPDATE of one row each, durable, 32 connections, prepared",
                run: driver::unbatched(database),
                at_least: Some(4.0),
            }),
        },
        Subject {
            name: "PostgreSQL, one in flight",
            what: "begin + complete of a new key, one after the other; 1 / p50",
            run: one_in_flight(database),
            limit: Some(Limit {
                what: "INSERT and UPDATE of one row, one after the other on one connection, prepared",
                run: driver::one_in_flight(database),
                at_least: Some(1.0 / 1.3),
            }),
        },
    ]
}

/// The store in a table of ten million live records.
pub(crate) fn among_many() -> anyhow::Result<Vec<Subject>> {
    let (large, small) = (BenchDatabase::start()?, BenchDatabase::start()?);
    large.fill(10_000_000)?;
    Ok(vec![Subject {
        name: "PostgreSQL among 10,000,000 live records, full cycle",
        what: "begin + complete of a new key, durable, 1,024 in flight, 4 connections",
        run: cycles(&large),
        limit: Some(Limit { what: "the same in an empty table", run: cycles(&small), at_least: Some(0.8) }),
    }])
}

/// Cycles of the store, as many at once as [`IN_FLIGHT`].
fn cycles(database: &BenchDatabase) -> MeasuredBatch {
    let database = database.clone();
    Box::new(move || {
        let (store, calls) = (database.store()?, database.take(BATCHED_CALLS));
        per_second(calls.len(), || database.block_on(all_cycles(store, calls)))
    })
}

async fn all_cycles(store: Arc<dyn Store>, calls: Vec<Call>) -> anyhow::Result<()> {
    let client = |calls: &[Call]| {
        let (store, calls) = (Arc::clone(&store), calls.to_vec());
        tokio::spawn(async move {
            for call in calls {
                full_cycle(&*store, call).await?;
            }
            anyhow::Ok(())
        })
    };
    for client in calls.chunks(calls.len().div_ceil(IN_FLIGHT)).map(client).collect::<Vec<_>>() {
        client.await??;
    }
    Ok(())
}

fn one_in_flight(database: &BenchDatabase) -> MeasuredBatch {
    let database = database.clone();
    Box::new(move || {
        let (store, calls) = (database.store()?, database.take(SINGLE_CALLS));
        database.block_on(async {
            let mut latencies = Vec::with_capacity(calls.len());
            for call in calls {
                let started = Instant::now();
                full_cycle(&*store, call).await?;
                latencies.push(started.elapsed());
            }
            median(latencies)
        })
    })
}

/// One divided by the median, and the median as a note.
fn median(mut latencies: Vec<std::time::Duration>) -> anyhow::Result<BatchResult> {
    latencies.sort_unstable();
    let median = latencies.get(latencies.len() / 2).context("nothing was measured")?;
    Ok(BatchResult { rate: 1.0 / median.as_secs_f64(), note: format!("p50 {} us", median.as_micros()) })
}

/// The size of the table after a million calls, for each live record.
fn bloat(database: &BenchDatabase) -> Subject {
    const CYCLES: usize = 500_000;
    let database = database.clone();
    let run = move || {
        let (store, calls) = (database.store()?, database.take(CYCLES));
        database.block_on(all_cycles(store, calls))?;
        database.bloat()
    };
    Subject {
        name: "PostgreSQL, size after 1,000,000 calls",
        what: "bytes, not a rate: table and indexes for each live record, after 500,000 begins and completions more",
        run: crate::harness::once(Box::new(run)),
        limit: None,
    }
}

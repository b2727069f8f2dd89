use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::Call;
use hapax_core::runtime::Tokio;
use hapax_stores::{Sqlite, SqliteSettings};
use rusqlite::{Connection, params};
use tempfile::TempDir;
use tokio::runtime::Builder;

use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject, per_second};
use crate::subjects::{ANSWER, FreshCalls, full_cycle};

/// How many records the file has before the first measurement.
const ROWS: usize = 1_000_000;
const OPERATIONS: usize = 30_000;
const IN_FLIGHT: usize = 256;

/// Begin and complete with a sync before each answer, against the same statements in a plain loop on a file of the same
/// size.
pub(crate) fn durable() -> Subject {
    let directory = Arc::new(tempfile::tempdir().expect("a directory"));
    Subject {
        name: "SQLite, durable",
        what: "begin + complete of a new key, 256 in flight, fsync before each answer, file of 1,000,000 records",
        run: through_the_store(Arc::clone(&directory)),
        limit: Some(Limit {
            what: "the same two statements, 256 to a transaction, by one thread",
            run: in_plain_loop(directory),
            at_least: Some(0.7),
        }),
    }
}

fn through_the_store(directory: Arc<TempDir>) -> MeasuredBatch {
    let mut prepared: Option<(PathBuf, FreshCalls)> = None;
    Box::new(move || {
        if prepared.is_none() {
            let path = directory.path().join("store.db");
            prepared = Some((path.clone(), filled(&path)?));
        }
        let (path, calls) = prepared.as_mut().expect("the lines above prepare it");
        let calls = calls.take(OPERATIONS);
        let mut latencies = Vec::new();
        let BatchResult { rate, .. } = per_second(OPERATIONS, || {
            latencies = Builder::new_current_thread().enable_all().build()?.block_on(cycles(path, calls))?;
            Ok(())
        })?;
        latencies.sort_unstable();
        let p99 = latencies[latencies.len() * 99 / 100];
        Ok(BatchResult { rate, note: format!("p99 of a full cycle {:.1} ms", p99.as_secs_f64() * 1000.0) })
    })
}

async fn cycles(path: &Path, calls: Vec<Call>) -> anyhow::Result<Vec<Duration>> {
    let store = Arc::new(Sqlite::with(path, Arc::new(Tokio::current()), SqliteSettings::default())?);
    let tasks: Vec<_> = calls
        .chunks(OPERATIONS.div_ceil(IN_FLIGHT))
        .map(|calls| {
            let (store, calls) = (Arc::clone(&store), calls.to_vec());
            tokio::spawn(async move {
                let mut latencies = Vec::with_capacity(calls.len());
                for call in calls {
                    let started = Instant::now();
                    full_cycle(&*store, call).await?;
                    latencies.push(started.elapsed());
                }
                anyhow::Ok(latencies)
            })
        })
        .collect();
    let mut latencies = Vec::with_capacity(OPERATIONS);
    for task in tasks {
        latencies.extend(task.await??);
    }
    Ok(latencies)
}

/// Fills a file with records. Returns calls with other keys.
fn filled(path: &Path) -> anyhow::Result<FreshCalls> {
    Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async { Sqlite::with(path, Arc::new(Tokio::current()), SqliteSettings::default()).map(drop) })?;
    let mut connection = Connection::open(path)?;
    connection.pragma_update(None, "synchronous", "off")?;
    let mut calls = FreshCalls::new();
    let transaction = connection.transaction()?;
    {
        let mut statement = transaction.prepare(include_str!("sqlite/insert.sql"))?;
        for call in calls.take(ROWS) {
            statement.execute(params![
                call.record_key().as_bytes(),
                call.newest_fingerprint().as_bytes(),
                2,
                None::<&[u8]>,
                ANSWER
            ])?;
        }
    }
    transaction.commit()?;
    Ok(calls)
}

fn in_plain_loop(directory: Arc<TempDir>) -> MeasuredBatch {
    let mut prepared: Option<(Connection, FreshCalls)> = None;
    Box::new(move || {
        if prepared.is_none() {
            let path = directory.path().join("bare.db");
            let calls = filled(&path)?;
            let connection = Connection::open(&path)?;
            connection.pragma_update(None, "journal_mode", "wal")?;
            connection.pragma_update(None, "synchronous", "full")?;
            prepared = Some((connection, calls));
        }
        let (connection, calls) = prepared.as_mut().expect("the lines above prepare it");
        let calls = calls.take(OPERATIONS);
        per_second(OPERATIONS, || calls.chunks(IN_FLIGHT).try_for_each(|group| bare_cycle(connection, group)))
    })
}

fn bare_cycle(connection: &mut Connection, group: &[Call]) -> anyhow::Result<()> {
    let transaction = connection.transaction()?;
    for call in group {
        let mut statement = transaction.prepare_cached(include_str!("sqlite/insert.sql"))?;
        statement.execute(params![
            call.record_key().as_bytes(),
            call.newest_fingerprint().as_bytes(),
            1,
            [7_u8; 16],
            None::<&[u8]>
        ])?;
    }
    transaction.commit()?;
    let transaction = connection.transaction()?;
    for call in group {
        let mut statement = transaction.prepare_cached(include_str!("sqlite/complete.sql"))?;
        statement.execute(params![call.record_key().as_bytes(), ANSWER])?;
    }
    transaction.commit()?;
    Ok(())
}

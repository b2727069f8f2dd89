use std::path::Path;
use std::sync::Arc;

use anyhow::ensure;
use bytes::Bytes;
use hapax_core::ledger::{Call, Terms, Work};
use hapax_stores::SqliteLedger;
use rusqlite::{Connection, params};
use tempfile::TempDir;

use crate::harness::{Limit, MeasuredBatch, Subject, per_second};
use crate::subjects::{ANSWER, FreshCalls};

/// How many rows the file has before the first measurement.
const ROWS: usize = 1_000_000;
pub(super) const OPERATIONS: usize = 80 * super::BATCH;

const TABLES: &str = "
    create table effect (operation blob not null, amount integer not null) strict;
    create table bare_claim (
        id integer primary key, operation blob not null, fingerprint blob not null, answer blob not null
    ) strict;
    create unique index bare_claim_operation on bare_claim (operation)";

pub(super) const EFFECT: &str = "insert into effect values (?1, 5)";
const BARE_CLAIM: &str =
    "insert into bare_claim (operation, fingerprint, answer) values (?1, ?2, ?3) on conflict do nothing";

/// Batches on a file with a million rows, beside a plain loop on a file of the same size.
pub(super) fn batches() -> Subject {
    let directory = Arc::new(tempfile::tempdir().expect("a directory"));
    Subject {
        name: "ledger on SQLite, batches",
        what: "an insert; 256 to a transaction with fsync, with their rows of the ledger; file of 1,000,000 rows",
        run: through_the_ledger(Arc::clone(&directory)),
        limit: Some(Limit {
            what: "the same inserts with bare claim rows, 256 to a transaction",
            run: in_plain_loop(directory),
            at_least: Some(0.7),
        }),
    }
}

pub(super) fn through_the_ledger(directory: Arc<TempDir>) -> MeasuredBatch {
    let mut prepared: Option<(Connection, FreshCalls)> = None;
    Box::new(move || {
        if prepared.is_none() {
            let mut connection = open(&directory.path().join("ledger.db"))?;
            SqliteLedger::migrate(&mut connection)?;
            let calls = fill(&mut connection, include_str!("sqlite_row.sql"))?;
            prepared = Some((connection, calls));
        }
        let (connection, calls) = prepared.as_mut().expect("the lines above prepare it");
        let ledger = SqliteLedger::new(Terms::new("bench")?);
        let calls: Vec<Call> = calls.take(OPERATIONS).into_iter().map(Call::from).collect();
        per_second(OPERATIONS, || {
            calls.chunks(super::BATCH).try_for_each(|calls| run_batch(&ledger, connection, calls))
        })
    })
}

fn run_batch(ledger: &SqliteLedger, connection: &mut Connection, calls: &[Call]) -> anyhow::Result<()> {
    let work = calls.iter().map(|call| Work { call: *call, ordering_key: None, is_redelivered: false }).collect();
    let results = ledger.run_batch(connection, work, |transaction, entries| {
        let mut effect = transaction.prepare_cached(EFFECT)?;
        for entry in entries.iter() {
            effect.execute([entry.operation().as_bytes()])?;
        }
        Ok(entries.iter().map(|_| Bytes::from_static(ANSWER)).collect())
    });
    ensure!(results.iter().all(Result::is_ok), "a call was refused");
    Ok(())
}

fn in_plain_loop(directory: Arc<TempDir>) -> MeasuredBatch {
    let mut prepared: Option<(Connection, FreshCalls)> = None;
    Box::new(move || {
        if prepared.is_none() {
            let mut connection = open(&directory.path().join("bare.db"))?;
            let calls = fill(&mut connection, BARE_CLAIM)?;
            prepared = Some((connection, calls));
        }
        let (connection, calls) = prepared.as_mut().expect("the lines above prepare it");
        let calls: Vec<Call> = calls.take(OPERATIONS).into_iter().map(Call::from).collect();
        per_second(OPERATIONS, || calls.chunks(super::BATCH).try_for_each(|calls| bare_batch(connection, calls)))
    })
}

fn bare_batch(connection: &mut Connection, calls: &[Call]) -> anyhow::Result<()> {
    let transaction = connection.transaction()?;
    for call in calls {
        let operation = call.operation();
        let fingerprint = call.newest_fingerprint();
        let mut claim = transaction.prepare_cached(BARE_CLAIM)?;
        claim.execute(params![operation.as_bytes(), fingerprint.as_bytes(), ANSWER])?;
        transaction.prepare_cached(EFFECT)?.execute([operation.as_bytes()])?;
    }
    Ok(transaction.commit()?)
}

pub(super) fn open(path: &Path) -> anyhow::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.execute_batch(TABLES)?;
    Ok(connection)
}

/// Inserts the rows of a million operations. Returns calls of others.
pub(super) fn fill(connection: &mut Connection, row: &str) -> anyhow::Result<FreshCalls> {
    let mut calls = FreshCalls::new();
    let transaction = connection.transaction()?;
    {
        let mut statement = transaction.prepare(row)?;
        for call in calls.take(ROWS).into_iter().map(Call::from) {
            let (operation, fingerprint) = (call.operation(), call.newest_fingerprint());
            statement.execute(params![operation.as_bytes(), fingerprint.as_bytes(), ANSWER])?;
        }
    }
    transaction.commit()?;
    Ok(calls)
}

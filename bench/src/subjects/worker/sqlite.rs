use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context, ensure};
use bytes::Bytes;
use hapax_core::broker::{Job, Message};
use hapax_core::ledger::{Entry, Terms};
use hapax_core::runtime::Tokio;
use hapax_stores::{SqliteLedger, SqliteQueue, SqliteSource, SqliteSourceSettings};
use rusqlite::{Connection, Transaction, params};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use super::drain::{DrainPlan, drain};
use super::{BATCH, PAYLOAD, random};
use crate::harness::{Limit, MeasuredBatch, Subject, per_second};
use crate::subjects::ANSWER;

const MESSAGES: usize = 80 * BATCH;

const TABLES: &str = "
    create table effect (operation blob not null, amount integer not null) strict;
    create table bare_queue (id integer primary key, key blob not null, payload blob not null) strict;
    create table bare_claim (
        id integer primary key, operation blob not null, fingerprint blob not null, answer blob not null
    ) strict;
    create unique index bare_claim_operation on bare_claim (operation)";

const EFFECT: &str = "insert into effect values (?1, 5)";
const BARE_CLAIM: &str =
    "insert into bare_claim (operation, fingerprint, answer) values (?1, ?2, ?3) on conflict do nothing";

/// Batches from a queue to a ledger in the same file, beside a loop over a plain table.
pub(super) fn batches() -> Subject {
    let directory = Rc::new(tempfile::tempdir().expect("a directory"));
    Subject {
        name: "worker, queue and ledger in SQLite, batches",
        what: "an insert with its row of the ledger, 256 to a transaction with fsync; queue and ledger in one file",
        run: by_worker(Rc::clone(&directory)),
        limit: Some(Limit {
            what: "select from a plain table, the same inserts with bare claim rows, delete, all in one transaction, \
                   without leases",
            run: in_plain_loop(directory),
            at_least: None,
        }),
    }
}

fn by_worker(directory: Rc<TempDir>) -> MeasuredBatch {
    let mut prepared: Option<(Connection, Runtime)> = None;
    Box::new(move || {
        let path = directory.path().join("worker.db");
        if prepared.is_none() {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            prepared = Some((open(&path)?, runtime));
        }
        let (connection, runtime) = prepared.as_mut().context("the lines above prepare it")?;
        let queue = SqliteQueue::new("bench")?;
        SqliteLedger::migrate(connection)?;
        SqliteQueue::migrate(connection)?;
        fill(connection, &queue)?;
        runtime.block_on(async {
            let settings = SqliteSourceSettings::default();
            let source = SqliteSource::open(&path, &queue, Arc::new(Tokio::current()), settings)?;
            let mut own = reopen(&path)?;
            SqliteLedger::migrate(&mut own)?;
            let process = SqliteLedger::new(Terms::new("bench")?).process(own, write_effects);
            drain(Box::new(source), Arc::new(process), DrainPlan::new(MESSAGES, 1, BATCH)).await
        })
    })
}

fn write_effects(
    transaction: &Transaction<'_>,
    _jobs: &[Job],
    entries: &mut [Entry],
) -> Result<Vec<Bytes>, hapax_core::ledger::HandlerFailure<Bytes>> {
    let mut effect = transaction.prepare_cached(EFFECT)?;
    for entry in entries.iter() {
        effect.execute([entry.operation().as_bytes()])?;
    }
    Ok(vec![Bytes::from_static(ANSWER); entries.len()])
}

fn fill(connection: &mut Connection, queue: &SqliteQueue) -> anyhow::Result<()> {
    let transaction = connection.transaction()?;
    for _ in 0..MESSAGES {
        let key = Uuid::from_bytes(random()?).to_string();
        let headers = [("Idempotency-Key", key.into_bytes())].into_iter().collect();
        queue.enqueue(&transaction, &Message { payload: PAYLOAD.into(), headers, ..Message::default() })?;
    }
    Ok(transaction.commit()?)
}

fn in_plain_loop(directory: Rc<TempDir>) -> MeasuredBatch {
    let mut prepared: Option<Connection> = None;
    Box::new(move || {
        if prepared.is_none() {
            prepared = Some(open(&directory.path().join("bare.db"))?);
        }
        let connection = prepared.as_mut().context("the lines above prepare it")?;
        let transaction = connection.transaction()?;
        for _ in 0..MESSAGES {
            let mut insert = transaction.prepare_cached("insert into bare_queue (key, payload) values (?1, ?2)")?;
            insert.execute(params![random()?, PAYLOAD])?;
        }
        transaction.commit()?;
        per_second(MESSAGES, || (0..MESSAGES).step_by(BATCH).try_for_each(|_| bare_batch(connection)))
    })
}

fn bare_batch(connection: &mut Connection) -> anyhow::Result<()> {
    let transaction = connection.transaction()?;
    {
        let mut select = transaction.prepare_cached("select id, key, payload from bare_queue order by id limit 256")?;
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let rows = select.query_map([], row)?.collect::<Result<Vec<(i64, [u8; 16], Vec<u8>)>, _>>()?;
        ensure!(rows.len() == BATCH, "messages are missing");
        let mut claim = transaction.prepare_cached(BARE_CLAIM)?;
        let mut effect = transaction.prepare_cached(EFFECT)?;
        let mut delete = transaction.prepare_cached("delete from bare_queue where id = ?1")?;
        for (id, key, _payload) in rows {
            claim.execute(params![key, [7_u8; 12], ANSWER])?;
            effect.execute([key])?;
            delete.execute([id])?;
        }
    }
    Ok(transaction.commit()?)
}

fn open(path: &Path) -> anyhow::Result<Connection> {
    let connection = reopen(path)?;
    connection.execute_batch(TABLES)?;
    Ok(connection)
}

fn reopen(path: &Path) -> anyhow::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    Ok(connection)
}

//! SQLite, if it wrote each row of the ledger once, behind one guard row a transaction, as PostgreSQL does.

use std::sync::Arc;

use anyhow::ensure;
use hapax_core::ledger::Call;
use rusqlite::{Connection, TransactionBehavior, params};
use tempfile::TempDir;

use super::sqlite::{EFFECT, OPERATIONS, fill, open, through_the_ledger};
use crate::harness::{Limit, MeasuredBatch, Subject, per_second};
use crate::subjects::{ANSWER, FreshCalls};

const TABLES: &str = "
    create table never (id integer primary key check (id <> id)) strict;
    create table guard (
        id integer primary key, open integer not null default 1 references never deferrable initially deferred
    ) strict;
    create table closed (operation blob not null, namespace text not null) strict;
    create table row_once (
        id integer primary key, operation blob not null, namespace text not null, verdict integer not null,
        rule integer not null, fingerprint blob not null, created_at integer not null, answer blob not null
    ) strict;
    create unique index row_once_operation on row_once (operation, namespace);
    pragma foreign_keys = on";

const ROW: &str = "
    insert into row_once (operation, namespace, verdict, rule, fingerprint, created_at, answer)
    values (?1, 'bench', 1, 1, ?2, cast(unixepoch('subsec') * 1000 as integer), ?3)";

const SEARCH: &str = "
    select exists (select 1 from row_once where operation = ?1 and namespace = 'bench')
        or exists (select 1 from closed where operation = ?1 and namespace = 'bench')";

/// Batches in that form beside those of the ledger, on files of the same size.
pub(super) fn batches() -> Subject {
    let directory = Arc::new(tempfile::tempdir().expect("a directory"));
    Subject {
        name: "rows written once on SQLite, batches",
        what: "an insert; 256 to a transaction with fsync, with rows that are written once behind a guard row, by \
               statements alone; file of 1,000,000 rows",
        run: written_once(Arc::clone(&directory)),
        limit: Some(Limit {
            what: "the ledger, which inserts its rows with the claim and changes them with the end",
            run: through_the_ledger(directory),
            at_least: None,
        }),
    }
}

fn written_once(directory: Arc<TempDir>) -> MeasuredBatch {
    let mut prepared: Option<(Connection, FreshCalls)> = None;
    Box::new(move || {
        if prepared.is_none() {
            let mut connection = open(&directory.path().join("once.db"))?;
            connection.execute_batch(TABLES)?;
            let calls = fill(&mut connection, ROW)?;
            prepared = Some((connection, calls));
        }
        let (connection, calls) = prepared.as_mut().expect("the lines above prepare it");
        let calls: Vec<Call> = calls.take(OPERATIONS).into_iter().map(Call::from).collect();
        per_second(OPERATIONS, || calls.chunks(super::BATCH).try_for_each(|calls| run_batch(connection, calls)))
    })
}

fn run_batch(connection: &mut Connection, calls: &[Call]) -> anyhow::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.prepare_cached("insert into guard default values")?.execute([])?;
    for call in calls {
        let mut search = transaction.prepare_cached(SEARCH)?;
        let is_there: bool = search.query_row([call.operation().as_bytes()], |row| row.get(0))?;
        ensure!(!is_there, "a call was not new");
    }
    transaction.prepare_cached("savepoint handler")?.execute([])?;
    for call in calls {
        transaction.prepare_cached(EFFECT)?.execute([call.operation().as_bytes()])?;
    }
    transaction.prepare_cached("delete from guard")?.execute([])?;
    for call in calls {
        let (operation, fingerprint) = (call.operation(), call.newest_fingerprint());
        let mut row = transaction.prepare_cached(ROW)?;
        row.execute(params![operation.as_bytes(), fingerprint.as_bytes(), ANSWER])?;
    }
    Ok(transaction.commit()?)
}

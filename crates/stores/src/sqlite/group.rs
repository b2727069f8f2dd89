//! Runs the steps that wait in a queue: in groups of one transaction each, or one by one on committed data.

use std::sync::Arc;

use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, Timestamp, Token};
use rusqlite::Connection;

use crate::sqlite::checkpoint::Checkpoints;
use crate::sqlite::file_thread::FileConnection;
use crate::sqlite::row;
use crate::sqlite::step::StepContext;
use crate::sqlite::thread::{GroupError, QueuedStep, StepQueue};
use crate::sqlite::turn::Turn;

/// How many callers may share one transaction.
const GROUP: usize = 512;

/// The body of the writer thread: one transaction for all waiting steps, and no reply before its commit.
pub(super) fn write_groups(
    opened: FileConnection,
    mut checkpoints: Checkpoints,
    runtime: Arc<dyn Runtime>,
) -> impl FnOnce(StepQueue) + Send {
    move |mut queue| {
        while let Some(mut group) = queue.next(GROUP) {
            checkpoints.count(group.len());
            let committed = commit_readable(&opened, &*runtime, &mut group);
            group.into_iter().for_each(|step| step.reply(&committed));
        }
        opened.close();
    }
}

/// The body of the reader thread: one step at a time, on committed data.
pub(super) fn read_steps(opened: FileConnection, runtime: Arc<dyn Runtime>) -> impl FnOnce(StepQueue) + Send {
    move |mut queue| {
        while let Some(group) = queue.next(1) {
            for mut step in group {
                let (connection, now) = (&opened.connection, runtime.wall_now());
                let mut context = StepContext { connection, now, token_high_water: Token(0) };
                let read = check(&opened, ErrorKind::NotApplied).and_then(|()| {
                    step.carry_out(&mut context).map_err(|error| group_error(error, ErrorKind::NotApplied))
                });
                note_damage(&opened, &read);
                step.reply(&read);
            }
        }
        opened.close();
    }
}

/// Commits the group without the steps that find a damaged row: one damaged record must not fail the calls of others.
fn commit_readable(
    opened: &FileConnection,
    runtime: &dyn Runtime,
    group: &mut Vec<Box<dyn QueuedStep>>,
) -> Result<(), GroupError> {
    loop {
        let committed = commit(opened, runtime, group);
        note_damage(opened, &committed);
        match committed {
            Err(error)
                if let Some(damaged) = error.damaged_step
                    && group.len() > 1 =>
            {
                group.remove(damaged).reply(&Err(error));
            }
            committed => return committed,
        }
    }
}

fn commit(opened: &FileConnection, runtime: &dyn Runtime, group: &mut [Box<dyn QueuedStep>]) -> Result<(), GroupError> {
    let connection = &opened.connection;
    check(opened, ErrorKind::NotApplied)?;
    if !connection.is_autocommit() {
        // The rollback of an earlier group failed and left its transaction open.
        run(connection, "rollback").map_err(|error| group_error(error, ErrorKind::NotApplied))?;
    }
    // Until the function ends: after COMMIT or ROLLBACK.
    let _turn = Turn::take(connection);
    // `immediate` takes the write lock now: a transaction that reads first can fail with SQLITE_BUSY at its first
    // write.
    run(connection, "begin immediate").map_err(|error| group_error(error, ErrorKind::NotApplied))?;
    // Read the clock after the file's lock is held: a lease must not lose the time spent waiting for it.
    let now = runtime.wall_now();
    let committed = carry_out(connection, now, group).and_then(|()| run(connection, "commit").map_err(commit_error));
    if committed.is_err() && !connection.is_autocommit() {
        // If this rollback fails too, the next group repeats it before it begins.
        let _ = run(connection, "rollback");
    }
    // A file that was moved before its commit may not be the one that is kept.
    committed.and_then(|()| check(opened, ErrorKind::Unknown))
}

/// From then on, a check of the store finds that the file is damaged.
fn note_damage(opened: &FileConnection, result: &Result<(), GroupError>) {
    if result.as_ref().is_err_and(|error| error.kind == ErrorKind::Damaged) {
        opened.file.set_damaged();
    }
}

/// Checks that the file is still at its path.
fn check(opened: &FileConnection, kind: ErrorKind) -> Result<(), GroupError> {
    opened.file.check_as(kind).map_err(|error: Error| GroupError {
        kind,
        message: error.to_string().into(),
        source: None,
        damaged_step: None,
    })
}

fn carry_out(connection: &Connection, now: Timestamp, group: &mut [Box<dyn QueuedStep>]) -> Result<(), GroupError> {
    let failed = |error| group_error(error, ErrorKind::NotApplied);
    let token_high_water = mark(connection).map_err(failed)?;
    let mut context = StepContext { connection, now, token_high_water };
    for (place, step) in group.iter_mut().enumerate() {
        step.carry_out(&mut context).map_err(failed).map_err(|error| GroupError {
            damaged_step: (error.kind == ErrorKind::Damaged).then_some(place),
            ..error
        })?;
    }
    // One update for the whole group, in the transaction that stores the tokens.
    if context.token_high_water > token_high_water {
        raise_mark(connection, context.token_high_water).map_err(failed)?;
    }
    Ok(())
}

fn mark(connection: &Connection) -> rusqlite::Result<Token> {
    connection.prepare_cached(include_str!("mark.sql"))?.query_row([], row::token)
}

fn raise_mark(connection: &Connection, to: Token) -> rusqlite::Result<()> {
    connection.prepare_cached(include_str!("raise_mark.sql"))?.execute([row::stored_token(to)]).map(drop)
}

fn run(connection: &Connection, statement: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(statement)?.execute([]).map(drop)
}

fn group_error(error: rusqlite::Error, kind: ErrorKind) -> GroupError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, DiskFull, NotADatabase};
    let (kind, message) = match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => (ErrorKind::Damaged, "the SQLite file is damaged"),
        Some(DiskFull) => (ErrorKind::Full, "the disk of the SQLite file is full"),
        Some(_) | None => (kind, "SQLite failed to carry out the step"),
    };
    GroupError { kind, message: message.into(), source: Some(Arc::new(error)), damaged_step: None }
}

/// A failed commit may have reached the disk, with two exceptions. After `SQLITE_BUSY` the commit never got the file's
/// lock. After `SQLITE_FULL` a write to the log failed, and the frame that commits is its last write. The index of the
/// log grows after that frame; if the disk has no room for it, the error is `SQLITE_IOERR_SHMSIZE` instead.
fn commit_error(error: rusqlite::Error) -> GroupError {
    let kind = match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy) => ErrorKind::NotApplied,
        Some(_) | None => ErrorKind::Unknown,
    };
    group_error(error, kind)
}

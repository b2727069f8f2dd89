use std::sync::Arc;

use hapax_core::machine::{self, Begin, Change, Decision, Observed};
use hapax_core::runtime::Runtime;
use hapax_core::store::{Inserted, StoredRecord, Swapped, observe, unchanged};
use hapax_core::{ErrorKind, RecordKey, Timestamp, Token};
use rusqlite::{Connection, OptionalExtension};

use crate::sqlite::checkpoint::Checkpoints;
use crate::sqlite::row;
use crate::sqlite::thread::{Fault, Job, Jobs, Trouble};

/// How many callers share one transaction at most.
const GROUP: usize = 512;

/// The writer thread: one transaction for all who wait, and no reply before its commit.
pub(super) fn group(
    connection: Connection,
    mut checkpoints: Checkpoints,
    runtime: Arc<dyn Runtime>,
) -> impl FnOnce(Jobs) + Send {
    move |mut jobs| {
        while let Some(mut group) = jobs.next(GROUP) {
            let committed = commit(&connection, &*runtime, &mut group);
            checkpoints.committed(group.len());
            group.into_iter().for_each(|job| job.reply(&committed));
        }
    }
}

/// The reader thread: each caller by itself, on what is committed.
pub(super) fn snapshot(connection: Connection, runtime: Arc<dyn Runtime>) -> impl FnOnce(Jobs) + Send {
    move |mut jobs| {
        while let Some(group) = jobs.next(1) {
            for mut job in group {
                let mut step = Step { connection: &connection, now: runtime.wall_now(), token_high_water: Token(0) };
                let read = job.carry_out(&mut step).map_err(|error| trouble(error, ErrorKind::NotApplied));
                job.reply(&read);
            }
        }
    }
}

fn commit(connection: &Connection, runtime: &dyn Runtime, group: &mut [Box<dyn Job>]) -> Result<(), Trouble> {
    if !connection.is_autocommit() {
        // An earlier rollback failed.
        run(connection, "rollback").map_err(|error| trouble(error, ErrorKind::NotApplied))?;
    }
    run(connection, "begin immediate").map_err(|error| trouble(error, ErrorKind::NotApplied))?;
    // Read once it is this writer's turn: the time before that is not the lease's.
    let now = runtime.wall_now();
    let committed = carry_out(connection, now, group)
        .map_err(|error| trouble(error, ErrorKind::NotApplied))
        .and_then(|()| run(connection, "commit").map_err(commit_trouble));
    if committed.is_err() && !connection.is_autocommit() {
        // What cannot be rolled back now is before the next group begins.
        let _ = run(connection, "rollback");
    }
    committed
}

fn carry_out(connection: &Connection, now: Timestamp, group: &mut [Box<dyn Job>]) -> rusqlite::Result<()> {
    let token_high_water = connection.prepare_cached(include_str!("mark.sql"))?.query_row([], row::token)?;
    let mut step = Step { connection, now, token_high_water };
    group.iter_mut().try_for_each(|job| job.carry_out(&mut step))?;
    if step.token_high_water > token_high_water {
        connection
            .prepare_cached(include_str!("raise_mark.sql"))?
            .execute([row::stored_token(step.token_high_water)])?;
    }
    Ok(())
}

fn run(connection: &Connection, statement: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(statement)?.execute([]).map(drop)
}

fn trouble(error: rusqlite::Error, kind: ErrorKind) -> Trouble {
    use rusqlite::ErrorCode::{DatabaseCorrupt, DiskFull, NotADatabase};
    let (kind, message) = match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => (ErrorKind::Damaged, "the SQLite file is damaged"),
        Some(DiskFull) if kind == ErrorKind::NotApplied => (ErrorKind::Full, "the disk of the SQLite file is full"),
        Some(_) | None => (kind, "SQLite refused"),
    };
    Trouble { kind, message, source: Arc::new(error) }
}

/// A commit that failed may have reached the disk, unless it could not even get its turn.
fn commit_trouble(error: rusqlite::Error) -> Trouble {
    let kind = match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy) => ErrorKind::NotApplied,
        Some(_) | None => ErrorKind::Unknown,
    };
    trouble(error, kind)
}

/// What a caller's step works with: the connection, the group's instant, and the token_high_water as raised so far.
pub(super) struct Step<'a> {
    connection: &'a Connection,
    now: Timestamp,
    token_high_water: Token,
}

/// What a look of a sweep found.
pub(super) struct Window {
    /// Rows past their life.
    pub(super) expired: Vec<i64>,
    /// Where the next look begins; nothing at the end of the table.
    pub(super) next: Option<i64>,
}

impl Step<'_> {
    pub(super) fn begin(&mut self, ask: &Begin) -> Result<Inserted, Fault> {
        let rk = ask.call.record_key();
        let (change, grant) = machine::first_grant(ask, &observe(None, self.now, self.token_high_water));
        if self.put(include_str!("insert.sql"), &rk, &change)? {
            return Ok(Inserted::Granted(grant));
        }
        let seen = self.read(&rk)?;
        if seen.live().is_some() {
            return Ok(Inserted::Found(seen));
        }
        let (change, grant) = machine::first_grant(ask, &seen);
        self.put(include_str!("write.sql"), &rk, &change)?;
        Ok(Inserted::Granted(grant))
    }

    /// Carries out what the machine decides, within this transaction.
    pub(super) fn decide<R>(
        &mut self,
        rk: &RecordKey,
        judge: impl FnOnce(&Observed) -> Decision<R>,
    ) -> Result<R, Fault> {
        match judge(&self.read(rk)?) {
            Decision::Reply(reply) => Ok(reply),
            Decision::Change(change, reply) => {
                self.put(include_str!("write.sql"), rk, &change)?;
                Ok(reply)
            }
        }
    }

    pub(super) fn read(&self, rk: &RecordKey) -> Result<Observed, Fault> {
        let (armed, token_high_water) = self.find(rk)?;
        Ok(observe(armed.as_ref(), self.now, token_high_water))
    }

    pub(super) fn swap(&mut self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped, Fault> {
        if !unchanged(self.find(rk)?.0.as_ref(), seen, self.now) {
            return Ok(Swapped::Changed);
        }
        self.put(include_str!("write.sql"), rk, next)?;
        Ok(Swapped::Yes)
    }

    /// The record as it is stored, and the token_high_water.
    fn find(&self, rk: &RecordKey) -> Result<(Option<StoredRecord>, Token), Fault> {
        let mut statement = self.connection.prepare_cached(include_str!("read.sql"))?;
        let mut rows = statement.query([rk.as_bytes()])?;
        let Some(row) = rows.next()? else {
            return Err(Fault::Record(row::damaged("the SQLite store has lost its own row")));
        };
        let token_high_water = row::token(row)?.max(self.token_high_water);
        Ok((row::armed(row).map_err(Fault::Record)?, token_high_water))
    }

    /// Writes a change, armed from now; says whether the statement did write.
    fn put(&mut self, statement: &str, rk: &RecordKey, change: &Change) -> rusqlite::Result<bool> {
        let armed = StoredRecord::at(self.now, change);
        let written = row::execute(&mut *self.connection.prepare_cached(statement)?, rk, &armed)? == 1;
        if written {
            self.token_high_water = self.token_high_water.max(change.record.token);
        }
        Ok(written)
    }

    pub(super) fn expired(&self, from: i64, rows: usize, most: usize) -> Result<Window, Fault> {
        let mut statement = self.connection.prepare_cached(include_str!("expired.sql"))?;
        let limit = i64::try_from(rows).unwrap_or(i64::MAX);
        let mut found = statement.query((from, limit, row::stored_time(self.now)))?;
        let (mut expired, mut seen, mut next) = (Vec::new(), 0, from);
        while let Some(row) = found.next()? {
            (seen, next) = (seen + 1, row.get(0)?);
            if row.get(1)? {
                expired.push(next);
            }
            if expired.len() == most {
                return Ok(Window { expired, next: Some(next) });
            }
        }
        Ok(Window { expired, next: (seen == rows).then_some(next) })
    }

    pub(super) fn delete(&mut self, expired: &[i64]) -> Result<usize, Fault> {
        let mut statement = self.connection.prepare_cached(include_str!("delete.sql"))?;
        let mut deleted = 0;
        for id in expired {
            deleted += statement.execute((id, row::stored_time(self.now)))?;
        }
        Ok(deleted)
    }

    pub(super) fn synchronous(&self) -> Result<i64, Fault> {
        Ok(self.connection.query_row("pragma synchronous", [], |row| row.get(0)).optional()?.unwrap_or_default())
    }
}

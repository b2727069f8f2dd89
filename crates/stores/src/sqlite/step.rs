use hapax_core::machine::{self, Begin, Change, Decision, Observed};
use hapax_core::store::{Inserted, StoredRecord, Swapped, is_unchanged, observe};
use hapax_core::{Error, RecordKey, Timestamp, Token};
use rusqlite::{Connection, OptionalExtension};

use crate::sqlite::row;

/// Why the step of one caller failed.
pub(super) enum StepError {
    /// The database refused a statement: the whole group is rolled back.
    Database(rusqlite::Error),
    /// This caller's record cannot be read. The other steps of the group are unaffected.
    Record(Error),
}

impl From<rusqlite::Error> for StepError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

/// What a step works with inside its group's transaction.
pub(super) struct StepContext<'a> {
    pub(super) connection: &'a Connection,
    /// The same instant for every step of the group.
    pub(super) now: Timestamp,
    /// The stored mark, raised by the earlier steps of the group.
    pub(super) token_high_water: Token,
}

/// The part of the table that one search of a sweep covered.
pub(super) struct SweepWindow {
    /// The ids of the expired rows.
    pub(super) expired: Vec<i64>,
    /// The id after which the next search begins; `None` at the end of the table.
    pub(super) next: Option<i64>,
}

impl StepContext<'_> {
    pub(super) fn begin(&mut self, ask: &Begin) -> Result<Inserted, StepError> {
        let rk = ask.call.record_key();
        // Most keys are new, so try the insert before reading.
        let (change, grant) = machine::first_grant(ask, &observe(None, self.now, self.token_high_water));
        if self.put(include_str!("insert.sql"), &rk, &change)? {
            return Ok(Inserted::Granted(grant));
        }
        let seen = self.read(&rk)?;
        if seen.live().is_some() {
            return Ok(Inserted::Found(seen));
        }
        // The row is there but its record has expired: replace it.
        let (change, grant) = machine::first_grant(ask, &seen);
        self.put(include_str!("write.sql"), &rk, &change)?;
        Ok(Inserted::Granted(grant))
    }

    /// Reads the record, writes the change that the machine decides on, and returns the machine's reply.
    pub(super) fn decide<R>(
        &mut self,
        rk: &RecordKey,
        judge: impl FnOnce(&Observed) -> Decision<R>,
    ) -> Result<R, StepError> {
        match judge(&self.read(rk)?) {
            Decision::Reply(reply) => Ok(reply),
            Decision::Change(change, reply) => {
                self.put(include_str!("write.sql"), rk, &change)?;
                Ok(reply)
            }
        }
    }

    pub(super) fn read(&self, rk: &RecordKey) -> Result<Observed, StepError> {
        let (stored, token_high_water) = self.find(rk)?;
        Ok(observe(stored.as_ref(), self.now, token_high_water))
    }

    pub(super) fn swap(&mut self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped, StepError> {
        if !is_unchanged(self.find(rk)?.0.as_ref(), seen, self.now) {
            return Ok(Swapped::Changed);
        }
        self.put(include_str!("write.sql"), rk, next)?;
        Ok(Swapped::Yes)
    }

    /// The stored record, expired or not, and the mark.
    pub(super) fn find(&self, rk: &RecordKey) -> Result<(Option<StoredRecord>, Token), StepError> {
        let mut statement = self.connection.prepare_cached(include_str!("read.sql"))?;
        let mut rows = statement.query([rk.as_bytes()])?;
        let Some(row) = rows.next()? else {
            return Err(StepError::Record(row::damaged("the SQLite store's own row in hapax_store is missing")));
        };
        let token_high_water = row::token(row)?.max(self.token_high_water);
        Ok((row::stored_record(row, rk).map_err(StepError::Record)?, token_high_water))
    }

    /// Writes a change whose lease and lifetime begin now. Returns whether the statement wrote a row.
    fn put(&mut self, statement: &str, rk: &RecordKey, change: &Change) -> rusqlite::Result<bool> {
        let stored = StoredRecord::at(self.now, change);
        let written = row::execute(&mut *self.connection.prepare_cached(statement)?, rk, &stored)? == 1;
        if written {
            self.token_high_water = self.token_high_water.max(change.record.token);
        }
        Ok(written)
    }

    /// Searches at most `rows` rows after the id `from`, until it has found `most` expired ones.
    pub(super) fn find_expired(&self, from: i64, rows: usize, most: usize) -> Result<SweepWindow, StepError> {
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
                return Ok(SweepWindow { expired, next: Some(next) });
            }
        }
        // Fewer rows than asked for: this window ends at the end of the table.
        Ok(SweepWindow { expired, next: (seen == rows).then_some(next) })
    }

    /// Deletes those of these rows that are still expired: a begin may have replaced one since the search.
    pub(super) fn delete(&mut self, expired: &[i64]) -> Result<usize, StepError> {
        let mut statement = self.connection.prepare_cached(include_str!("delete.sql"))?;
        let mut deleted = 0;
        for id in expired {
            deleted += statement.execute((id, row::stored_time(self.now)))?;
        }
        Ok(deleted)
    }

    /// Counts the live records with an unknown outcome.
    pub(super) fn count_unknown(&self) -> Result<u64, StepError> {
        let mut statement = self.connection.prepare_cached(include_str!("count_unknown.sql"))?;
        Ok(statement.query_row([row::stored_time(self.now)], |row| row.get::<_, i64>(0))?.unsigned_abs())
    }

    pub(super) fn synchronous(&self) -> Result<i64, StepError> {
        Ok(self.connection.query_row("pragma synchronous", [], |row| row.get(0)).optional()?.unwrap_or_default())
    }
}

//! The five operations, and purges. Each is a transaction of one read and one commit.

use std::time::Duration;

use hapax_core::machine::{self, Begin, Change, Claim, Complete, Completed, Decision, Observed, Renewed};
use hapax_core::store::{Inserted, StoredRecord, Swapped, is_unchanged, observe};
use hapax_core::{RecordKey, Result, Timestamp, Token};

use super::api::SpannerApi;
use super::messages::{Mutation, SqlList};
use super::row;
use super::transactions::TransactionEnd;
use super::values::{SqlStatement, columns};
use crate::errors::not_applied;

/// How often a begin looks again after another one was faster.
const TRIES: usize = 8;

/// How far the servers of Spanner may differ, with room to spare. A record that was written by this much later than now
/// was written now.
const SKEW: Duration = Duration::from_secs(2);

/// The records of a database.
#[derive(Clone, Debug)]
pub(super) struct SpannerRecords {
    pub(super) api: SpannerApi,
}

/// The result of a read.
struct FoundRecord {
    now: Timestamp,
    stored: Option<StoredRecord>,
}

impl FoundRecord {
    /// The store keeps no high-water mark.
    fn seen(&self) -> Observed {
        let token = self.stored.as_ref().map_or(Token(0), |stored| stored.record.token);
        observe(self.stored.as_ref(), self.now, token)
    }

    /// Whether the record is as it was seen.
    fn is_unchanged(&self, seen: &Observed) -> bool {
        is_unchanged(self.stored.as_ref(), seen, self.now)
    }

    /// The change as it is stored. It differs from the record that is there, because a renewal is a change, too.
    fn changed(&self, change: &Change) -> StoredRecord {
        let written = StoredRecord::at(self.now, change);
        match &self.stored {
            Some(stored) if *stored == written => StoredRecord::at(Timestamp(self.now.0 + 1), change),
            Some(_) | None => written,
        }
    }
}

impl SpannerRecords {
    /// Reads, and inserts if there is no row: a copy of an operation costs one call then, and takes no lock.
    pub(super) async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        let rk = ask.call.record_key();
        for _ in 0..TRIES {
            let found = self.find(&rk).await?;
            let seen = found.seen();
            if seen.live().is_some() {
                return Ok(Inserted::Found(seen));
            }
            if found.stored.is_some() {
                return self.begin_over(ask).await;
            }
            let (change, grant) = machine::first_grant(ask, &seen);
            if self.api.insert(row::insert(&rk, &found.changed(&change))).await? {
                return Ok(Inserted::Granted(grant));
            }
        }
        Err(not_applied("other calls for the key are in the way"))
    }

    /// Begins over a record that may have expired.
    async fn begin_over(&self, ask: &Begin) -> Result<Inserted> {
        let rk = ask.call.record_key();
        self.transact(&rk, |found| {
            let seen = found.seen();
            if seen.live().is_some() {
                return TransactionEnd::Keep(Inserted::Found(seen));
            }
            let (change, grant) = machine::first_grant(ask, &seen);
            TransactionEnd::Write(vec![row::write(&rk, &found.changed(&change))], Inserted::Granted(grant))
        })
        .await
    }

    pub(super) async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.decide(rk, |seen| machine::renew(seen, claim)).await
    }

    pub(super) async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        self.decide(rk, |seen| machine::complete(seen, ask)).await
    }

    pub(super) async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.find(rk).await.map(|found| found.seen())
    }

    pub(super) async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        self.replace(rk, seen, |found| row::write(rk, &found.changed(next))).await
    }

    pub(super) async fn purge(&self, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
        let Some(live) = seen.live() else { return Ok(Swapped::Changed) };
        // The next token may come from a server whose clock is behind, and must be larger.
        let ahead = Timestamp(live.token.0).since(seen.now);
        if ahead < SKEW {
            self.api.runtime().sleep(ahead).await;
        }
        self.replace(rk, seen, |_| row::remove([&rk.as_bytes()[..]].into_iter())).await
    }

    async fn replace(
        &self,
        rk: &RecordKey,
        seen: &Observed,
        mutation: impl Fn(&FoundRecord) -> Mutation + Send + Sync,
    ) -> Result<Swapped> {
        self.transact(rk, |found| match found.is_unchanged(seen) {
            true => TransactionEnd::Write(vec![mutation(&found)], Swapped::Yes),
            false => TransactionEnd::Keep(Swapped::Changed),
        })
        .await
    }

    async fn decide<R: Send>(
        &self,
        rk: &RecordKey,
        judge: impl Fn(&Observed) -> Decision<R> + Send + Sync,
    ) -> Result<R> {
        self.transact(rk, |found| match judge(&found.seen()) {
            Decision::Reply(reply) => TransactionEnd::Keep(reply),
            Decision::Change(change, reply) => {
                TransactionEnd::Write(vec![row::write(rk, &found.changed(&change))], reply)
            }
        })
        .await
    }

    async fn transact<R: Send>(
        &self,
        rk: &RecordKey,
        decide: impl Fn(FoundRecord) -> TransactionEnd<R> + Send + Sync,
    ) -> Result<R> {
        self.api.transact(&statement(rk), |rows| Ok(decide(self.found(rk, &rows)?))).await
    }

    async fn find(&self, rk: &RecordKey) -> Result<FoundRecord> {
        let rows = self.api.read(&statement(rk)).await?;
        self.found(rk, &rows)
    }

    fn found(&self, rk: &RecordKey, rows: &[SqlList]) -> Result<FoundRecord> {
        let [row] = rows else { return Err(not_applied("Spanner has not answered with one row")) };
        let [now, record @ ..] = columns::<4>(&row.values)?;
        let stored = match record[0].as_text()? {
            Some(_) => Some(row::stored_record(rk, record)?),
            None => None,
        };
        Ok(FoundRecord { now: not_before(self.api.clock(now.as_time()?), stored.as_ref()), stored })
    }
}

/// The time of a statement. It was read before the statement waited for the lock of the record, perhaps on a server
/// whose clock is behind.
fn not_before(now: Timestamp, stored: Option<&StoredRecord>) -> Timestamp {
    let written = stored.map_or(now, |stored| stored.armed_at);
    if written > now && written.since(now) < SKEW { written } else { now }
}

fn statement(rk: &RecordKey) -> SqlStatement {
    SqlStatement::new(include_str!("records/read.sql")).bytes("rk", rk.as_bytes())
}

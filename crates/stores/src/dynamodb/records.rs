//! The operations on records: each is one conditional write, or one read.

use std::time::Duration;

use hapax_core::machine::{self, Begin, Change, Claim, Complete, Completed, Decision, Observed, Renewed};
use hapax_core::store::{Inserted, Swapped};
use hapax_core::{Error, Record, RecordKey, Result, Seconds, State, Timestamp, Token};
use serde_json::Value;

use super::answers::{Attributes, TableFailure};
use super::api::{TableApi, TableResult};
use super::clock::ClockRange;
use super::item::{self, PartsOfAnswer, ReadItem};
use super::request::{self, Condition};
use crate::errors::{not_applied, unknown};

/// How often a call tries again whose condition met an expired item, or one that vanished.
const TRIES: usize = 8;

/// How much later than a write the clock may seem when its reply comes: as far as two hosts of the service may differ,
/// and as inexactly as one reply shows it.
const LATE: Duration = Duration::from_millis(1_500);

/// The records of a table.
#[derive(Clone, Debug)]
pub(super) struct RecordTable {
    pub(super) api: TableApi,
}

impl RecordTable {
    pub(super) async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        let rk = ask.call.record_key();
        let (mut expired, mut newest): (Option<ReadItem>, _) = (None, Token(0));
        for _ in 0..TRIES {
            let range = self.api.time().await?;
            let at = self.api.stamp()?;
            newest = expired.as_ref().map_or(newest, |item| newest.max(item.stored.record.token));
            let seen = Observed { now: at, token_high_water: newest, ..item::absent(range) };
            let (change, grant) = machine::first_grant(ask, &seen);
            let condition = free_condition(expired.as_ref(), &rk);
            match self.put(&change, &rk, (at, condition)).await {
                Ok(_) => return Ok(Inserted::Granted(grant)),
                Err(TableFailure::Condition(found)) => match self.found(found, &rk).await? {
                    Some(item) if !item.is_expired(self.range()?) => {
                        return Ok(Inserted::Found(item.observed(self.range()?)));
                    }
                    vanished_or_expired => expired = vanished_or_expired,
                },
                Err(TableFailure::Failed(error)) => return Err(error),
            }
        }
        Err(contended())
    }

    pub(super) async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        let mut least = Timestamp(0);
        for _ in 0..TRIES {
            let range = self.api.time().await?;
            let (drawn, at) = (self.now(), self.api.stamp()?.max(least));
            let condition = Condition::renewable(claim, (range.earliest, at));
            let body = request::renewal(self.api.table(), rk, (condition, at));
            match self.api.call("UpdateItem", &body).await {
                Ok(mut answer) => {
                    // A damaged record is an error and no renewal. An open record has no parts.
                    let renewed = answer.remove("Attributes");
                    let renewed = renewed.as_ref().and_then(Value::as_object).ok_or_else(no_result)?;
                    ReadItem::of(renewed, rk)?;
                    return self.confirmed(at, drawn).map(|()| Renewed::Yes);
                }
                Err(TableFailure::Condition(found)) => {
                    let found = self.found(found, rk).await?;
                    // Another process may know the clock less exactly, and have written a later instant.
                    least = found.as_ref().map_or(least, |item| Timestamp(item.stored.armed_at.0 + 1));
                    if least.since(at) > item::AHEAD {
                        least = Timestamp(0);
                    }
                    let seen = self.seen(found.as_ref())?;
                    if let Decision::Reply(renewed) = machine::renew(&seen, claim) {
                        return Ok(renewed);
                    }
                }
                Err(TableFailure::Failed(error)) => return Err(error),
            }
        }
        Err(contended())
    }

    pub(super) async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        let mut expired: Option<ReadItem> = None;
        for _ in 0..TRIES {
            let range = self.api.time().await?;
            let at = self.api.stamp()?;
            let Some(change) = completion(range, ask) else { return Ok(Completed::Gone) };
            let may_recreate = ask.age < Duration::from(ask.retention);
            let condition = match &expired {
                Some(item) => Condition::unchanged(&item.columns(rk), item.stored.expires_at).or_nothing(),
                None if may_recreate => Condition::completable(ask, range.earliest).or_nothing(),
                None => Condition::completable(ask, range.earliest),
            };
            match self.put(&change, rk, (at, condition)).await {
                Ok(answer) if expired.is_none() && answer.contains_key("Attributes") => return Ok(Completed::Done),
                Ok(_) => return Ok(Completed::Recreated),
                Err(TableFailure::Condition(found)) => {
                    expired = self.found(found, rk).await?;
                    if let Some(completed) = judged(&self.seen(expired.as_ref())?, ask) {
                        return Ok(completed);
                    }
                }
                Err(TableFailure::Failed(error)) => return Err(error),
            }
        }
        Err(contended())
    }

    pub(super) async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        // Before the record is read: the clock is known better then.
        self.api.time().await?;
        let item = self.get(rk).await?;
        self.seen(self.found(item, rk).await?.as_ref())
    }

    pub(super) async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        let range = self.api.time().await?;
        let (mut at, ends) = (self.api.stamp()?, seen.now.plus(seen.life_left));
        if at.plus(next.lifetime.into()) == ends {
            // Every write moves the end of the record.
            at = Timestamp(at.0 + 1);
        }
        let condition = match (seen.live(), &seen.record) {
            (Some(live), _) => Condition::unchanged_and_live(&columns(live, rk), ends, range.earliest),
            (None, Some(expired)) => Condition::still_expired(&columns(expired, rk), item::low_mark(range, seen)),
            (None, None) => Condition::nothing(),
        };
        match self.put(next, rk, (at, condition)).await {
            Ok(_) => Ok(Swapped::Yes),
            Err(failure) => self.changed(failure, rk).await,
        }
    }

    /// Removes a record that is still the observed one. The parts of its answer stay until they expire: a completion
    /// that is repeated meanwhile names them again.
    pub(super) async fn purge(&self, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
        let Some(live) = seen.live() else { return Ok(Swapped::Changed) };
        let (range, ends) = (self.api.time().await?, seen.now.plus(seen.life_left));
        // The next token may come from a process that knows the clock more exactly, and must be larger.
        let ahead = Timestamp(live.token.0).since(range.earliest);
        if ahead < item::AHEAD {
            self.api.runtime().sleep(ahead).await;
        }
        let condition = Condition::unchanged_and_live(&columns(live, rk), ends, range.earliest);
        let body = request::deletion(self.api.table(), rk.as_bytes(), condition);
        match self.api.call("DeleteItem", &body).await {
            Ok(_) => Ok(Swapped::Yes),
            Err(failure) => self.changed(failure, rk).await,
        }
    }

    /// The item with the answer of its parts. None if it has vanished.
    ///
    /// # Errors
    /// `Damaged` if it was altered, and if it is live and a part is missing.
    pub(super) async fn found(&self, mut found: Option<Attributes>, rk: &RecordKey) -> Result<Option<ReadItem>> {
        for _ in 0..TRIES {
            let Some(item) = found else { return Ok(None) };
            let read = ReadItem::of(&item, rk)?;
            let Some(parts) = read.parts else { return Ok(Some(read)) };
            if let Some(answer) = parts.read(&self.api, rk).await? {
                return read.with_answer(rk, answer).map(Some);
            }
            // DynamoDB removes what has expired in any order.
            if read.is_expired(self.range()?) {
                return Ok(Some(read));
            }
            // Another call may have replaced the record meanwhile, and removed the parts.
            found = self.get(rk).await?;
            if found.as_ref() == Some(&item) {
                return Err(item::damaged("a part of the answer of a record is missing"));
            }
        }
        Err(contended())
    }

    async fn get(&self, rk: &RecordKey) -> Result<Option<Attributes>> {
        let body = request::get(self.api.table(), rk.as_bytes());
        let mut answer = self.api.call("GetItem", &body).await.map_err(TableFailure::into_error)?;
        match answer.remove("Item") {
            Some(Value::Object(item)) => Ok(Some(item)),
            Some(_) | None => Ok(None),
        }
    }

    /// Writes a change at this instant. First it writes the parts of an answer that does not fit into the item.
    async fn put(
        &self,
        change: &Change,
        rk: &RecordKey,
        (at, condition): (Timestamp, Condition),
    ) -> TableResult<Attributes> {
        let parts = PartsOfAnswer::of(&change.record, rk);
        if let (Some(parts), State::Completed(completion)) = (parts, &change.record.state) {
            let expires = at.plus(change.lifetime.into());
            parts.write(&self.api, rk, (&completion.answer, expires)).await?;
        }
        let (drawn, item) = (self.now(), item::written(change, rk, (at, parts.map(|parts| parts.count))));
        let answer = self.api.call("PutItem", &request::put(self.api.table(), item, condition)).await?;
        self.confirmed(at, drawn)?;
        Ok(answer)
    }

    /// Whether a write with this instant, drawn at that time, may count.
    ///
    /// # Errors
    /// `Unknown` if its reply shows that the clock was much later: the service's clock has stepped, or this machine
    /// stood still. The lease may have ended already. Its repetition has the right instant.
    fn confirmed(&self, at: Timestamp, drawn: Duration) -> Result<()> {
        let then = at.plus(self.now().saturating_sub(drawn));
        if self.range()?.latest.since(then) > LATE {
            return Err(unknown("the clock of DynamoDB was later than a write: it stepped, or this host stood still"));
        }
        Ok(())
    }

    fn now(&self) -> Duration {
        self.api.runtime().boottime_now()
    }

    /// The reply to a swap that was not written.
    async fn changed(&self, failure: TableFailure, rk: &RecordKey) -> Result<Swapped> {
        match failure {
            // A damaged record is an error.
            TableFailure::Condition(found) => self.found(found, rk).await.map(|_| Swapped::Changed),
            TableFailure::Failed(error) => Err(error),
        }
    }

    pub(super) fn seen(&self, item: Option<&ReadItem>) -> Result<Observed> {
        let range = self.range()?;
        Ok(item.map_or_else(|| item::absent(range), |item| item.observed(range)))
    }

    fn range(&self) -> Result<ClockRange> {
        self.api.range().ok_or_else(super::answers::undated)
    }
}

/// No live record has the key: there is none, or this one that has expired.
fn free_condition(expired: Option<&ReadItem>, rk: &RecordKey) -> Condition {
    expired.map_or_else(Condition::nothing, |item| {
        Condition::unchanged(&item.columns(rk), item.stored.expires_at).or_nothing()
    })
}

fn columns(record: &Record, rk: &RecordKey) -> Attributes {
    item::columns(record, rk, PartsOfAnswer::of(record, rk).map(|parts| parts.count))
}

/// The record that a completion writes. It does not depend on what is stored, so the machine is asked about an absent
/// record. With an age of zero and a lifetime the machine always gives a change.
fn completion(range: ClockRange, ask: &Complete) -> Option<Change> {
    let young = Complete { age: Duration::ZERO, retention: Seconds(ask.retention.0.max(1)), ..ask.clone() };
    match machine::complete(&item::absent(range), &young) {
        Decision::Change(change, _) => Some(change),
        Decision::Reply(_) => None,
    }
}

/// The reply to a completion whose condition met this. None if the same step may be tried again.
fn judged(seen: &Observed, ask: &Complete) -> Option<Completed> {
    match (machine::complete(seen, ask), seen.live()) {
        (Decision::Reply(completed), _) => Some(completed),
        // The caller reads and swaps (clause 8 of the contract).
        (Decision::Change(..), Some(live)) => Some(Completed::Lost(live.clone())),
        (Decision::Change(..), None) => None,
    }
}

fn contended() -> Error {
    not_applied("the record changed during each of 8 tries; try again")
}

fn no_result() -> Error {
    unknown("the answer of DynamoDB to a renewal has no item")
}

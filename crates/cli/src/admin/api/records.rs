//! Records, for operators. The machine decides what may be written.

use std::time::{Duration, Instant};

use hapax::http::RecordedResponse;
use hapax::machine::{self, Change, Decision, Observed, Purge, Purged, Resolved, Verdict};
use hapax::runtime::{Runtime, Tokio};
use hapax::store::{Protocol, RecordStatus, Scan};
use hapax::{Policy, RecordKey, Seconds, Token};
use http::StatusCode;
use serde_json::{Value, json};

use crate::admin::api::call::{FoundOutcome, ListRecords, RecordAction, RecordChange};
use crate::admin::api::record::{SeenRecord, refusal, shown_answer};
use crate::admin::api::values::hexadecimal;
use crate::admin::api::{ApiError, within_deadline};
use crate::store::wiring::OpenedStore;
use crate::worker::target::PROCESSED;

/// The records of one store.
#[derive(Debug)]
pub(crate) struct RecordDesk {
    store: OpenedStore,
    lifetimes: RecordLifetimes,
    answers: AnswerForm,
}

/// How long records live that an operator writes.
#[derive(Clone, Copy, Debug)]
struct RecordLifetimes {
    answer: Seconds,
    released: Seconds,
    unknown: Seconds,
}

impl RecordLifetimes {
    fn of(policy: &Policy) -> Self {
        let seconds = |time: Duration| Seconds(u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1));
        Self {
            answer: seconds(policy.retention),
            released: seconds(policy.released_retention),
            unknown: seconds(policy.unknown_retention),
        }
    }
}

/// What the records of a process keep. An answer in another form would break the retry that gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerForm {
    /// Responses, in a gateway.
    Responses,
    /// Whether a message was processed, in a worker.
    Messages,
    /// Whatever the operator says: the store may be that of either.
    Either,
}

/// How many records one request to the store reads. Each may have an answer of 1 MiB, and requests wait meanwhile.
const CHUNK: usize = 50;

/// The pause before a page that continues a list. Between the chunks of a page, the pause is as long as the last chunk
/// took, rounded up to the milliseconds of the timer: a list leaves at least half of the time to requests.
const PAUSE: Duration = Duration::from_millis(5);

/// How long one page may take. A list with a filter that fits few records continues behind its cursor.
const PAGE_TIME: Duration = Duration::from_millis(500);

impl RecordDesk {
    /// The records of a process with this policy.
    pub(crate) fn new(store: OpenedStore, policy: &Policy, answers: AnswerForm) -> Self {
        Self { store, lifetimes: RecordLifetimes::of(policy), answers }
    }

    pub(crate) async fn list(&self, ask: &ListRecords) -> Result<Value, ApiError> {
        let started = Instant::now();
        // A chunk is counted before it is filtered.
        let is_filtered = ask.filter.is_some() || ask.operation.is_some() || !ask.idle_for.is_zero();
        let chunk = if is_filtered { CHUNK } else { CHUNK.min(ask.limit) };
        let mut scan = Scan::new(chunk).idle_for(ask.idle_for);
        if let Some(filter) = ask.filter {
            scan = scan.only(&filter.statuses());
        }
        let mut next = ask.from.clone();
        let (mut records, mut damaged) = (Vec::new(), Vec::new());
        let mut pause = if next.is_some() { PAUSE } else { Duration::ZERO };
        loop {
            Tokio::current().sleep(pause).await;
            let begun = Instant::now();
            scan = next.take().map_or(scan.clone(), |position| scan.from(position));
            let chunk = within_deadline(self.store.inspect.scan(&scan)).await?;
            let now = Tokio::current().wall_now();
            let seen = chunk.records.into_iter().map(|found| SeenRecord::of_scan(found, now));
            let is_wanted = |seen: &SeenRecord| ask.operation.is_none_or(|id| seen.rk.operation() == id);
            records.extend(seen.filter(is_wanted).filter(|seen| !seen.is_internal()).map(|seen| seen.to_json()));
            damaged.extend(chunk.damaged.iter().map(ToString::to_string));
            next = chunk.next;
            // An operation has one record.
            if ask.operation.is_some() && !records.is_empty() {
                next = None;
            }
            if next.is_none() || records.len() >= ask.limit || started.elapsed() >= PAGE_TIME {
                break;
            }
            pause = begun.elapsed();
        }
        let next = next.map(|position| hexadecimal(&position.0));
        Ok(json!({ "records": records, "damaged": damaged, "next": next }))
    }

    pub(crate) async fn show(&self, rk: &RecordKey, with_answer: bool) -> Result<Value, ApiError> {
        let seen = self.read(rk).await?;
        let Some(record) = SeenRecord::of_read(*rk, &seen) else {
            return Err(ApiError::not_found("there is no such record: it never existed, was purged, or has expired"));
        };
        let mut shown = record.to_json();
        if with_answer {
            shown["answer"] = record.completion().map_or(Value::Null, shown_answer);
        }
        Ok(shown)
    }

    /// Carries out what an operator wants. The reply has the record before and after it. A dry run writes nothing, and
    /// has the same refusals.
    pub(crate) async fn act(&self, rk: &RecordKey, action: &RecordAction) -> Result<Value, ApiError> {
        let before = self.read(rk).await?;
        let seen = SeenRecord::of_read(*rk, &before);
        if seen.as_ref().is_some_and(SeenRecord::is_internal) {
            let detail = "the record belongs to Hapax itself: it ties a namespace to its secret, or events to a relay";
            return Err(ApiError::new(StatusCode::CONFLICT, "internal-record", detail));
        }
        if action.is_dry_run {
            return match (self.is_allowed(action, &before)?, seen) {
                (true, Some(seen)) => {
                    Ok(json!({ "rk": rk.to_string(), "before": seen.to_json(), "after": seen.to_json() }))
                }
                (_, seen) => Err(refusal(rk, seen.as_ref(), action)),
            };
        }
        let is_done = match &action.change {
            RecordChange::Resolve(outcome) => self.resolve(rk, action, &self.verdict(outcome)?, &before).await?,
            RecordChange::Release => self.resolve(rk, action, &self.verdict(&FoundOutcome::NotDone)?, &before).await?,
            RecordChange::Reopen => {
                let (protocol, lifetime) = (Protocol::over(&*self.store.store), self.lifetimes.released);
                within_deadline(protocol.reopen(rk, Token(action.token), lifetime)).await? == Resolved::Yes
            }
            RecordChange::Purge { force } => self.purge(rk, action.token, *force).await?,
        };
        let after = self.read(rk).await?;
        let after = SeenRecord::of_read(*rk, &after);
        if !is_done {
            return Err(refusal(rk, after.as_ref(), action));
        }
        Ok(json!({
            "rk": rk.to_string(),
            "before": seen.map(|seen| seen.to_json()),
            "after": after.map(|seen| seen.to_json()),
        }))
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed, ApiError> {
        within_deadline(self.store.store.read(rk)).await
    }

    /// Resolves the record. One whose lease has expired is held first, so that no retry can run meanwhile.
    async fn resolve(
        &self,
        rk: &RecordKey,
        action: &RecordAction,
        verdict: &Verdict,
        before: &Observed,
    ) -> Result<bool, ApiError> {
        let (protocol, token) = (Protocol::over(&*self.store.store), Token(action.token));
        if RecordStatus::of(before) == Some(RecordStatus::Lapsed)
            && within_deadline(protocol.hold(rk, token, self.lifetimes.unknown)).await? == Resolved::Stale
        {
            return Ok(false);
        }
        Ok(within_deadline(protocol.resolve(rk, token, verdict)).await? == Resolved::Yes)
    }

    /// Whether the machine allows a change of the record that was read.
    fn is_allowed(&self, action: &RecordAction, before: &Observed) -> Result<bool, ApiError> {
        let token = Token(action.token);
        let reply = |decision| match decision {
            Decision::Reply(reply) | Decision::Change(_, reply) => reply == Resolved::Yes,
        };
        let resolves = |verdict: &Verdict| {
            let held = match machine::hold(before, token, self.lifetimes.unknown) {
                Decision::Change(Change { record, .. }, _) => Observed { record: Some(record), ..before.clone() },
                Decision::Reply(_) => before.clone(),
            };
            reply(machine::resolve(&held, token, verdict))
        };
        Ok(match &action.change {
            RecordChange::Resolve(outcome) => resolves(&self.verdict(outcome)?),
            RecordChange::Release => resolves(&self.verdict(&FoundOutcome::NotDone)?),
            RecordChange::Reopen => reply(machine::reopen(before, token, self.lifetimes.released)),
            RecordChange::Purge { force } => {
                machine::purge(before, &Purge { expected: token, forget_unknown: *force }) == Purged::Yes
            }
        })
    }

    async fn purge(&self, rk: &RecordKey, token: u64, force: bool) -> Result<bool, ApiError> {
        let ask = Purge { expected: Token(token), forget_unknown: force };
        let purged = Protocol::over(&*self.store.store).purge(&*self.store.inspect, rk, &ask);
        match within_deadline(purged).await? {
            Purged::Yes => Ok(true),
            Purged::Stale | Purged::Running | Purged::Unknown => Ok(false),
        }
    }

    fn verdict(&self, outcome: &FoundOutcome) -> Result<Verdict, ApiError> {
        let retention = self.lifetimes.answer;
        let is_response = matches!(outcome, FoundOutcome::Response { .. });
        match outcome {
            FoundOutcome::NotDone => Ok(Verdict::NotDone { lifetime: self.lifetimes.released }),
            FoundOutcome::Response { .. } | FoundOutcome::Processed
                if self.answers != AnswerForm::Either && is_response != (self.answers == AnswerForm::Responses) =>
            {
                let detail = match self.answers {
                    AnswerForm::Responses | AnswerForm::Either => {
                        "these records have responses: name the status, the headers and the body of the answer"
                    }
                    AnswerForm::Messages => "these records are of messages, which have no response: say `processed`",
                };
                Err(ApiError::invalid(detail))
            }
            FoundOutcome::Response { status, headers, body } => {
                let response = RecordedResponse { status: *status, headers: headers.clone(), body: body.clone() };
                Ok(Verdict::Done { answer: response.encode()?, retention })
            }
            FoundOutcome::Processed => Ok(Verdict::Done { answer: PROCESSED, retention }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use hapax::machine::{Begin, Begun, Lapse};
    use hapax::store::{Chunk, Finding, Memory, Swapped};
    use hapax::{Identity, Inspect, Key, Millis, Owner, Scope};

    use super::*;
    use crate::admin::api::record::RecordFilter;

    /// Counts how often a list reads the store.
    #[derive(Debug)]
    struct CountingInspect {
        store: Arc<Memory>,
        scans: AtomicUsize,
    }

    #[async_trait]
    impl Inspect for CountingInspect {
        async fn sweep(&self, limit: usize) -> hapax::Result<usize> {
            self.store.sweep(limit).await
        }

        async fn scan(&self, ask: &Scan) -> hapax::Result<Chunk> {
            self.scans.fetch_add(1, Ordering::Relaxed);
            self.store.scan(ask).await
        }

        async fn purge(&self, rk: &RecordKey, seen: &Observed) -> hapax::Result<Swapped> {
            self.store.purge(rk, seen).await
        }

        async fn check(&self) -> hapax::Result<Vec<Finding>> {
            self.store.check().await
        }
    }

    /// A store with so many records in progress.
    async fn desk(records: usize) -> (RecordDesk, Arc<CountingInspect>) {
        let store = Arc::new(Memory::new());
        for number in 0..records {
            let key = Key::new(format!("key-{number}")).unwrap();
            let call = Identity::plain().call(&Scope::untenanted("default").unwrap(), &key);
            let (lease, unknown_retention) = (Millis(600_000), Seconds(3600));
            let ask = Begin { call, owner: Owner([1; 16]), lease, unknown_retention, on_lapse: Lapse::Hold };
            let begun = Protocol::over(&*store).begin(&ask).await.unwrap();
            assert!(matches!(begun, Begun::Granted(_)), "{begun:?}");
        }
        let inspect = Arc::new(CountingInspect { store: Arc::clone(&store), scans: AtomicUsize::new(0) });
        let opened = OpenedStore { store, inspect: Arc::clone(&inspect) as _ };
        (RecordDesk::new(opened, &hapax::Settings::default().policy, AnswerForm::Either), inspect)
    }

    #[tokio::test]
    async fn a_filtered_list_with_a_small_limit_reads_the_store_in_large_chunks() {
        let (desk, inspect) = desk(5 * CHUNK).await;
        let filter = Some(RecordFilter::named("dead").unwrap());
        let ask = ListRecords { filter, idle_for: Duration::ZERO, operation: None, from: None, limit: 1 };
        let listed = desk.list(&ask).await.unwrap();
        assert_eq!((listed["records"].as_array().unwrap().len(), &listed["next"]), (0, &Value::Null));
        // The memory store has 64 parts, and reads one of them at a time.
        let scans = inspect.scans.load(Ordering::Relaxed);
        assert!(scans <= 64, "{scans} reads of {} records", 5 * CHUNK);
        let all = ListRecords { filter: None, ..ask };
        assert_eq!(desk.list(&all).await.unwrap()["records"].as_array().unwrap().len(), 1);
    }
}

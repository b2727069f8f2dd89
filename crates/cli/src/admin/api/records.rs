//! Records, for operators. The machine decides what may be written.

pub(crate) mod writes;

use std::time::{Duration, Instant};

use hapax::machine::Observed;
use hapax::runtime::{Runtime, Tokio};
use hapax::store::{Scan, ScanPosition};
use hapax::{Completion, OperationId, Policy, RecordKey, Seconds};
use hapax_systems::OpenedStore;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admin::api::calls::{ApiCall, RecordName, page_limit, wrong_cursor};
use crate::admin::api::record::{RecordState, RecordView, SeenRecord, missing, shown_answer};
use crate::admin::api::values::{hexadecimal, optional_text, text, unhex};
use crate::admin::api::{AdminApi, ApiError, within_deadline};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListRecords {
    pub(crate) state: Option<RecordState>,
    /// Only records that were neither written nor renewed for this long.
    #[serde(default, with = "optional_text")]
    pub(crate) older_than: Option<humantime::Duration>,
    #[serde(default, with = "optional_text")]
    pub(crate) operation: Option<OperationId>,
    /// The position in the scan of the store, as hexadecimal digits.
    pub(crate) cursor: Option<String>,
    #[serde(default, with = "optional_text")]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordPage {
    pub(crate) records: Vec<RecordView>,
    /// The keys of records that cannot be read.
    pub(crate) damaged: Vec<String>,
    /// The cursor of the next page.
    pub(crate) next: Option<String>,
}

impl ApiCall for ListRecords {
    const PATH: &'static str = "records";
    type Answer = RecordPage;

    async fn carry_out(&self, api: &AdminApi) -> Result<RecordPage, ApiError> {
        api.records()?.list(self).await
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShowRecord {
    #[serde(with = "text")]
    pub(crate) rk: RecordName,
    #[serde(default, with = "text")]
    pub(crate) answer: bool,
}

impl ApiCall for ShowRecord {
    const PATH: &'static str = "records/{rk}";
    type Answer = RecordView;

    async fn carry_out(&self, api: &AdminApi) -> Result<RecordView, ApiError> {
        let seen = api.records()?.read(&self.rk.0).await?;
        let record = SeenRecord::of_read(self.rk.0, &seen).ok_or_else(missing)?;
        let answer = match record.completion() {
            _ if !self.answer => None,
            None => Some(Value::Null),
            Some(completion) => Some(shown_answer(&api.records()?.fetch(completion).await?)),
        };
        Ok(RecordView { answer, ..record.view() })
    }
}

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

    async fn list(&self, ask: &ListRecords) -> Result<RecordPage, ApiError> {
        let (started, limit) = (Instant::now(), page_limit(ask.limit)?);
        let idle_for = ask.older_than.map_or(Duration::ZERO, Into::into);
        // A chunk is counted before it is filtered.
        let is_filtered = ask.state.is_some() || ask.operation.is_some() || !idle_for.is_zero();
        let chunk = if is_filtered { CHUNK } else { CHUNK.min(limit) };
        let mut scan = Scan::new(chunk).idle_for(idle_for);
        if let Some(state) = ask.state {
            scan = scan.only(state.statuses());
        }
        let position = |digits: &String| unhex(digits).map(|bytes| ScanPosition(bytes.into())).ok_or_else(wrong_cursor);
        let mut next = ask.cursor.as_ref().map(position).transpose()?;
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
            records.extend(seen.filter(is_wanted).filter(|seen| !seen.is_internal()).map(|seen| seen.view()));
            damaged.extend(chunk.damaged.iter().map(ToString::to_string));
            next = chunk.next;
            // An operation has one record.
            if ask.operation.is_some() && !records.is_empty() {
                next = None;
            }
            if next.is_none() || records.len() >= limit || started.elapsed() >= PAGE_TIME {
                break;
            }
            pause = begun.elapsed();
        }
        Ok(RecordPage { records, damaged, next: next.map(|position| hexadecimal(&position.0)) })
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed, ApiError> {
        within_deadline(self.store.store.read(rk)).await
    }

    /// The answer itself, if the record has only a pointer to it.
    async fn fetch(&self, completion: &Completion) -> Result<Completion, ApiError> {
        within_deadline(self.store.store.fetch(completion.clone())).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use hapax::machine::{Begin, Begun, Lapse};
    use hapax::store::{Chunk, Finding, Memory, Protocol, Swapped};
    use hapax::{Identity, Inspect, Key, Millis, Owner, Scope};

    use super::*;

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
        let ask = ListRecords { state: Some(RecordState::Dead), limit: Some(1), ..ListRecords::default() };
        let listed = desk.list(&ask).await.unwrap();
        assert_eq!((listed.records.len(), listed.next), (0, None));
        // The memory store has 64 parts, and reads one of them at a time.
        let scans = inspect.scans.load(Ordering::Relaxed);
        assert!(scans <= 64, "{scans} reads of {} records", 5 * CHUNK);
        assert_eq!(desk.list(&ListRecords { state: None, ..ask }).await.unwrap().records.len(), 1);
    }
}

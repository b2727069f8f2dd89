//! The suite's setups of stores with a bucket: every answer that is not empty lies on MinIO.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::runtime::Tokio;
use hapax_core::store::{Chunk, Finding, Inserted, Inspect, Scan, Swapped};
use hapax_core::{Completion, Record, RecordKey, Result, State, Store, StoredAnswer};
use hapax_stores::{AnswerBucket, BucketUrl, FarAnswers, FarInspect};
use hapax_testkit::servers::MinioServer;
use hapax_testkit::{Backend, ClockStep, GOLDEN_ANSWER, Setup, StoredPart};

use crate::sqlite;

/// The setup of a store with a bucket around the one of this setup.
///
/// `service` is what the store inside needs.
pub(crate) fn backend<F>(name: &'static str, service: Option<&'static str>, inside: fn() -> F) -> Backend
where
    F: Future<Output = Box<dyn Setup>> + Send + 'static,
{
    let backend =
        Backend::new(name, move || async move { Box::new(FarSetup::around(inside().await).await) as Box<dyn Setup> });
    // Each sequence has many answers, and what the stores inside decide is compared without a bucket.
    service.into_iter().fold(backend.sequences(20).requiring("minio"), Backend::requiring)
}

const LONG: Duration = Duration::from_secs(60);

/// The setup of SQLite is shared with a package that has no bucket, so this is here.
pub(crate) fn sqlite_backend() -> Backend {
    backend("sqlite_and_s3", None, sqlite::setup).lacking(sqlite::LACKING)
}

struct FarSetup {
    inside: Box<dyn Setup>,
    store: Arc<Fetching>,
}

impl FarSetup {
    async fn around(inside: Box<dyn Setup>) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let server = MinioServer::shared().await.expect("the server starts");
        let prefix = format!("suite-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let url: BucketUrl = server.answers(&prefix).parse().expect("the URL is valid");
        let key = (MinioServer::KEY, MinioServer::SECRET);
        let bucket = AnswerBucket::with_key(&url, key, Arc::new(Tokio::current())).expect("the URL can be used");
        let inspect = Arc::new(FarInspect::around(inside.inspect(), bucket.clone()));
        // Nothing measures the time of a case.
        let store = FarAnswers::around(inside.store(), bucket, 0, Arc::new(Tokio::current())).wait(LONG);
        Self { inside, store: Arc::new(Fetching { store: Arc::new(store), inspect }) }
    }
}

#[async_trait]
impl Setup for FarSetup {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as _
    }

    fn inspect(&self) -> Arc<dyn Inspect> {
        Arc::clone(&self.store) as _
    }

    async fn lapse(&self, rk: &RecordKey) {
        self.inside.lapse(rk).await;
    }

    async fn expire(&self, rk: &RecordKey) {
        self.inside.expire(rk).await;
    }

    async fn step_clock(&self, step: ClockStep) {
        self.inside.step_clock(step).await;
    }

    async fn corrupt(&self, rk: &RecordKey, part: StoredPart) {
        self.inside.corrupt(rk, part).await;
    }

    async fn put_golden(&self) {
        self.inside.put_golden().await;
    }
}

/// Fetches every answer, so that the cases see what a caller is given. A user of a store fetches only what is sent.
#[derive(Debug)]
struct Fetching {
    store: Arc<dyn Store>,
    inspect: Arc<dyn Inspect>,
}

impl Fetching {
    async fn whole(&self, record: Record) -> Result<Record> {
        let State::Completed(completion) = record.state else { return Ok(record) };
        // Without this no case would use the bucket. The golden record is written into the store inside.
        let is_inside = completion.answer.is_empty() || completion.answer == GOLDEN_ANSWER;
        assert!(completion.form == StoredAnswer::Pointer || is_inside, "{completion:?}");
        Ok(Record { state: State::Completed(self.store.fetch(completion).await?), ..record })
    }

    async fn seen(&self, seen: Observed) -> Result<Observed> {
        let record = match seen.record {
            Some(record) => Some(self.whole(record).await?),
            None => None,
        };
        Ok(Observed { record, ..seen })
    }

    /// What the store inside has shown: with the pointer again, if it still has it. Only the pointer is read anew.
    async fn as_stored(&self, rk: &RecordKey, seen: &Observed) -> Result<Observed> {
        let mut seen = seen.clone();
        if let Some(Record { state: State::Completed(completion), .. }) = &mut seen.record
            && let Some(Record { state: State::Completed(stored), .. }) = self.store.read(rk).await?.record
            && stored.holds(&completion.answer)
        {
            *completion = Completion { expiry: completion.expiry, ..stored };
        }
        Ok(seen)
    }
}

#[async_trait]
impl Store for Fetching {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        match self.store.begin(ask).await? {
            Inserted::Found(seen) => Ok(Inserted::Found(self.seen(seen).await?)),
            granted @ Inserted::Granted(_) => Ok(granted),
        }
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.store.renew(rk, claim).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        match self.store.complete(rk, ask).await? {
            Completed::Lost(record) => Ok(Completed::Lost(self.whole(record).await?)),
            other @ (Completed::Done | Completed::Recreated | Completed::Already | Completed::Gone) => Ok(other),
        }
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.seen(self.store.read(rk).await?).await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        let store = Arc::clone(&self.store).dedicated().await?;
        Ok(Arc::new(Self { store, inspect: Arc::clone(&self.inspect) }))
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        self.store.swap(rk, &self.as_stored(rk, seen).await?, next).await
    }
}

#[async_trait]
impl Inspect for Fetching {
    async fn sweep(&self, limit: usize) -> Result<usize> {
        self.inspect.sweep(limit).await
    }

    async fn scan(&self, ask: &Scan) -> Result<Chunk> {
        let mut chunk = self.inspect.scan(ask).await?;
        for scanned in &mut chunk.records {
            scanned.record = self.whole(scanned.record.clone()).await?;
        }
        Ok(chunk)
    }

    async fn purge(&self, rk: &RecordKey, seen: &Observed) -> Result<Swapped> {
        self.inspect.purge(rk, &self.as_stored(rk, seen).await?).await
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        self.inspect.check().await
    }

    async fn count_unknown(&self) -> Result<Option<u64>> {
        self.inspect.count_unknown().await
    }
}

//! Large answers in a bucket, beside the calls of the bucket alone, and small answers beside a store without one.

use std::rc::Rc;
use std::sync::Arc;

use anyhow::ensure;
use bytes::Bytes;
use futures_util::future::try_join_all;
use hapax_core::runtime::Tokio;
use hapax_core::store::Memory;
use hapax_core::{Call, Gate, Settings, Store};
use hapax_stores::{AnswerBucket, BucketUrl, FarAnswers, FoundObject};
use hapax_testkit::servers::MinioServer;
use tokio::runtime::{Builder, Runtime};

use crate::harness::{BatchResult, Limit, Subject, per_second};
use crate::subjects::worker::unpack;
use crate::subjects::{FreshCalls, full_cycle};

const REPLAYS: usize = 400;
const NEW_KEYS: usize = 100_000;

/// How many replays or calls are on the way at once.
const AT_ONCE: usize = 4;

/// The largest answer that stays in its record, as by default.
const INLINE: usize = 64 << 10;

/// The object of the bare calls.
const NAME: &str = "bench/bare";

pub(crate) fn all() -> anyhow::Result<Vec<Subject>> {
    let place = Rc::new(AnswerPlace::start()?);
    let (beside, with, without) = (Rc::clone(&place), Rc::clone(&place), Rc::clone(&place));
    let replays = Subject {
        name: "answers in a bucket, replays",
        what: "the replay of an answer of 1 MiB from MinIO by the gate, the record in memory; 4 at once",
        run: Box::new(move || place.replay()),
        limit: Some(Limit {
            what: "a GET of an object of 1 MiB by our signed client",
            run: Box::new(move || beside.get()),
            at_least: Some(0.7),
        }),
    };
    let new_keys = Subject {
        name: "answers in a bucket, new keys with small answers",
        what: "begin and complete of a new key in memory, with a bucket for answers above 64 KiB",
        run: Box::new(move || {
            let store = with.around(with.memory());
            on_one_core(|| cycles(&store))
        }),
        limit: Some(Limit {
            what: "the same without a bucket",
            run: Box::new(move || {
                let store = without.memory();
                on_one_core(|| cycles(&*store))
            }),
            at_least: Some(0.9),
        }),
    };
    Ok(vec![replays, new_keys])
}

/// A bucket with an object.
struct AnswerPlace {
    _server: MinioServer,
    bucket: AnswerBucket,
    answer: Bytes,
    runtime: Runtime,
}

impl AnswerPlace {
    fn start() -> anyhow::Result<Self> {
        unpack("minio")?;
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let answer = Bytes::from_iter((0..1 << 20).map(|place: u32| place.to_le_bytes()[place as usize % 3]));
        let (server, bucket) = runtime.block_on(async {
            let server = MinioServer::start(&[]).await?;
            let url: BucketUrl = server.answers("bench").parse()?;
            let key = (MinioServer::KEY, MinioServer::SECRET);
            let bucket = AnswerBucket::with_key(&url, key, Arc::new(Tokio::current()))?;
            bucket.put(NAME, answer.clone()).await?;
            anyhow::Ok((server, bucket))
        })?;
        Ok(Self { _server: server, bucket, answer, runtime })
    }

    fn memory(&self) -> Arc<dyn Store> {
        let _inside = self.runtime.enter();
        Arc::new(Memory::new())
    }

    /// The store with the bucket.
    fn around(&self, store: Arc<dyn Store>) -> FarAnswers {
        let _inside = self.runtime.enter();
        FarAnswers::around(store, self.bucket.clone(), INLINE, Arc::new(Tokio::current()))
    }

    fn replay(&self) -> anyhow::Result<BatchResult> {
        let store = self.around(self.memory());
        // The gate answers copies of one call that are there at once with one read.
        let calls = FreshCalls::new().take(AT_ONCE);
        let gate = self.runtime.block_on(async {
            let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
            for call in &calls {
                let answer = self.answer.clone();
                gate.run(*call, |_attempt| async { Ok(answer) }).await?;
            }
            anyhow::Ok(gate)
        })?;
        self.at_once(async |place| replayed(&gate, calls[place], self.answer.len()).await)
    }

    fn get(&self) -> anyhow::Result<BatchResult> {
        self.at_once(async |_| {
            let found = self.bucket.get(NAME).await?;
            let is_whole = matches!(found, FoundObject::Bytes(bytes) if bytes.len() == self.answer.len());
            ensure!(is_whole, "the object is another one");
            Ok(())
        })
    }

    fn at_once(&self, once: impl AsyncFn(usize) -> anyhow::Result<()>) -> anyhow::Result<BatchResult> {
        per_second(REPLAYS, || {
            self.runtime.block_on(try_join_all((0..AT_ONCE).map(async |place| {
                for _ in 0..REPLAYS / AT_ONCE {
                    once(place).await?;
                }
                anyhow::Ok(())
            })))?;
            Ok(())
        })
    }
}

async fn replayed(gate: &Gate, call: Call, length: usize) -> anyhow::Result<()> {
    let result = gate.run(call, |_attempt| async { Ok(Bytes::new()) }).await?;
    ensure!(result.answer.len() == length, "the answer is another one");
    Ok(())
}

fn on_one_core<F: Future<Output = anyhow::Result<()>>>(all: impl FnOnce() -> F) -> anyhow::Result<BatchResult> {
    per_second(NEW_KEYS, || Builder::new_current_thread().enable_all().build()?.block_on(all()))
}

async fn cycles(store: &dyn Store) -> anyhow::Result<()> {
    for call in FreshCalls::new().take(NEW_KEYS) {
        full_cycle(store, call).await?;
    }
    Ok(())
}

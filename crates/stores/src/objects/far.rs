//! A store around a store: large answers lie in a bucket, and everything else in the store inside.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::machine::{self, Begin, Change, Claim, Complete, Completed, Decision, Observed, Renewed};
use hapax_core::runtime::Runtime;
use hapax_core::store::{Inserted, Swapped};
use hapax_core::{AnswerPointer, Completion, Error, ErrorKind, RecordKey, Result, State, Store, StoredAnswer, Token};

use super::AnswerBucket;
use super::bucket::{FoundObject, LARGEST};
use super::writes::ObjectWrites;

/// How long a call waits for the write of an answer, of a timeout of 1 s.
const WAIT: Duration = Duration::from_millis(400);

/// How many times a completion reads, decides and swaps before it gives up on a record that keeps changing.
const TRIES: usize = 8;

/// A store whose answers above a limit lie in a bucket. Their records have pointers to them.
///
/// An answer is in the bucket before its record names it. Its name is made of the record, the token and its hash, so no
/// other answer has this name, and to write it again is harmless. A write has the time limit of the bucket. Its caller
/// waits for a part of a second, gets `NotApplied`, and comes again; the write goes on meanwhile and is found again.
///
/// All processes that use the store need the same bucket, or they cannot give the answers that lie there. The limit may
/// differ. Objects are removed by the lifecycle rules of the bucket only, and by [`FarInspect`](super::FarInspect) if a
/// record is purged.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::sync::Arc;
///
/// use hapax::runtime::Tokio;
/// use hapax::stores::{AnswerBucket, BucketUrl, FarAnswers};
/// use hapax::{Gate, Settings, store::Memory};
///
/// let url: BucketUrl = "s3://shop-answers/hapax?region=eu-west-1".parse()?;
/// let bucket = AnswerBucket::new(&url, Arc::new(Tokio::current()))?;
/// let store = FarAnswers::around(Arc::new(Memory::new()), bucket, 64 << 10, Arc::new(Tokio::current()));
/// let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FarAnswers {
    store: Arc<dyn Store>,
    place: Arc<FarPlace>,
    wait: Duration,
}

/// The bucket, and what is on its way there.
struct FarPlace {
    bucket: AnswerBucket,
    /// The largest answer that stays in its record, in bytes.
    inline: usize,
    writes: ObjectWrites,
}

impl FarAnswers {
    /// The store inside keeps answers of up to `inline` bytes, and the bucket those above.
    pub fn around(store: Arc<dyn Store>, bucket: AnswerBucket, inline: usize, runtime: Arc<dyn Runtime>) -> Self {
        let writes = ObjectWrites::new(bucket.clone(), runtime);
        Self { store, place: Arc::new(FarPlace { bucket, inline, writes }), wait: WAIT }
    }

    /// How long a call waits for the write of an answer, 400 ms by default. The timeout of a call to the store must
    /// leave time for the store inside.
    #[must_use]
    pub fn wait(mut self, longest: Duration) -> Self {
        self.wait = longest;
        self
    }

    /// Reads the record, lets the machine decide, and swaps: the store's own step would record the answer itself.
    async fn complete_far(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        let pointer = self.place.keep((rk, ask.claim.token), &ask.answer, self.wait).await?;
        for _ in 0..TRIES {
            let seen = self.store.read(rk).await?;
            let (next, reply) = match machine::complete(&seen, ask) {
                Decision::Reply(reply) => return Ok(reply),
                Decision::Change(next, reply) => (next, reply),
            };
            if self.swap_far(rk, &seen, &next, &pointer).await? == Swapped::Yes {
                return Ok(reply);
            }
        }
        Err(Error::new(ErrorKind::NotApplied, "the record changed during each of 8 tries; try again"))
    }

    /// Swaps with the pointer in the place of the answer, which is in the bucket.
    async fn swap_far(
        &self,
        rk: &RecordKey,
        seen: &Observed,
        next: &Change,
        pointer: &AnswerPointer,
    ) -> Result<Swapped> {
        let mut next = next.clone();
        if let State::Completed(completion) = &mut next.record.state {
            (completion.answer, completion.form) = (pointer.encode(), StoredAnswer::Pointer);
        }
        let swapped = self.store.swap(rk, seen, &next).await?;
        if swapped == Swapped::Yes {
            self.place.writes.forget(pointer.path.split_once('/').map_or("", |(_, name)| name));
        }
        Ok(swapped)
    }
}

impl FarPlace {
    /// Whether an answer lies in the bucket. One that is too large to be read there stays in its record.
    fn takes(&self, answer: &Bytes) -> bool {
        (self.inline + 1..=LARGEST).contains(&answer.len())
    }

    /// Writes an answer, unless that has just been done, and returns what points to it.
    async fn keep(&self, (rk, token): (&RecordKey, Token), answer: &Bytes, wait: Duration) -> Result<AnswerPointer> {
        let mut pointer = AnswerPointer::new(answer, "");
        let hash = pointer.hash.iter().take(16).fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        let name = format!("{}/{:020}-{hash}", folder(&self.bucket, rk), token.0);
        self.writes.write(&name, answer, wait).await?;
        pointer.path = format!("{}/{name}", self.bucket.url().bucket());
        Ok(pointer)
    }

    async fn fetch(&self, completion: &Completion) -> Result<Completion> {
        let pointer = AnswerPointer::decode(&completion.answer)?;
        let (url, bucket) = (self.bucket.url(), self.bucket.url().bucket());
        let (named, name) = pointer.path.split_once('/').unwrap_or_default();
        if named != bucket {
            let message = format!("the answer is in the bucket {named}, and this process uses {bucket}");
            return Err(Error::new(ErrorKind::NotApplied, message).beside_store());
        }
        let damaged = |what: &str| {
            // Logs show no more of a record key.
            let record = name.rsplit('/').nth(1).and_then(|rk| rk.get(..8)).unwrap_or_default();
            let message = format!("the answer of the record {record}… {what} in the bucket {url}");
            Error::new(ErrorKind::Damaged, message).beside_store()
        };
        match self.bucket.get(name).await? {
            FoundObject::Bytes(answer) if pointer.is_to(&answer) => Ok(Completion::whole(answer, completion.expiry)),
            FoundObject::Bytes(_) => Err(damaged("was altered")),
            FoundObject::Missing => Err(damaged("is missing")),
        }
    }
}

/// The prefix of the names of all answers of a record. Its first part spreads the records over the bucket.
pub(super) fn folder(bucket: &AnswerBucket, rk: &RecordKey) -> String {
    let (prefix, first) = (bucket.url().prefix(), rk.as_bytes()[0]);
    format!("{prefix}/{first:02x}/{rk}")
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Store for FarAnswers {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        self.store.begin(ask).await
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.store.renew(rk, claim).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        if self.place.takes(&ask.answer) {
            return self.complete_far(rk, ask).await;
        }
        self.store.complete(rk, ask).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.store.read(rk).await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        let store = Arc::clone(&self.store).dedicated().await?;
        Ok(Arc::new(Self { store, place: Arc::clone(&self.place), wait: self.wait }))
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        match &next.record.state {
            State::Completed(Completion { answer, form: StoredAnswer::Whole, .. }) if self.place.takes(answer) => {
                // The new token may be another one at the next try, and the write that goes on would not be found.
                let token = seen.record.as_ref().map_or(next.record.token, |record| record.token);
                let pointer = self.place.keep((rk, token), answer, self.wait).await?;
                self.swap_far(rk, seen, next, &pointer).await
            }
            State::Completed(_) | State::Open(..) => self.store.swap(rk, seen, next).await,
        }
    }

    async fn fetch(&self, completion: Completion) -> Result<Completion> {
        match completion.form {
            StoredAnswer::Whole => Ok(completion),
            StoredAnswer::Pointer => self.place.fetch(&completion).await,
        }
    }
}

impl fmt::Debug for FarAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FarPlace { bucket, inline, .. } = &*self.place;
        write!(f, "{:?} with answers above {inline} bytes in {bucket:?}", self.store)
    }
}

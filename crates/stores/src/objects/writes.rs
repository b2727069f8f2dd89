//! The writes of answers that are under way, and those that have just ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use hapax_core::runtime::Runtime;
use hapax_core::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::AnswerBucket;

/// How long a write counts that has ended while nobody waited. The next try of its completion comes sooner.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Old writes are looked for if there are more than this.
const FEW: usize = 64;

type ObjectWrite = Shared<BoxFuture<'static, Result<(), Arc<Error>>>>;

/// A caller of a store gives up sooner than a write to a bucket, and comes again. A write goes on meanwhile, so that
/// the next try finds it under way or ended.
pub(super) struct ObjectWrites {
    bucket: AnswerBucket,
    runtime: Arc<dyn Runtime>,
    states: Arc<Mutex<HashMap<String, ObjectWriteState>>>,
}

enum ObjectWriteState {
    Running(ObjectWrite),
    /// Confirmed at this time, on the boot-time clock.
    Ended(Duration),
}

impl ObjectWrites {
    pub(super) fn new(bucket: AnswerBucket, runtime: Arc<dyn Runtime>) -> Self {
        Self { bucket, runtime, states: Arc::default() }
    }

    /// Waits until an answer is confirmed under its name.
    ///
    /// # Errors
    /// `NotApplied` if it is not.
    ///
    /// # Cancel safety
    /// Safe to drop. The write goes on.
    pub(super) async fn write(&self, name: &str, answer: &Bytes) -> Result<()> {
        let Some(write) = self.under_way(name, answer) else { return Ok(()) };
        let failed = |cause| Error::new(ErrorKind::NotApplied, "an answer is not in its bucket").caused_by(cause);
        write.await.map_err(failed)
    }

    /// Its record names it, so no further try will come.
    pub(super) fn forget(&self, name: &str) {
        let mut states = self.states.lock();
        if let Some(ObjectWriteState::Ended(_)) = states.get(name) {
            states.remove(name);
        }
    }

    /// The write of an answer, which is started if need be. None if it has just ended.
    fn under_way(&self, name: &str, answer: &Bytes) -> Option<ObjectWrite> {
        let now = self.runtime.boottime_now();
        let is_recent = |ended: Duration| now.saturating_sub(ended) < REMEMBERED;
        let mut states = self.states.lock();
        match states.get(name) {
            Some(ObjectWriteState::Running(write)) => return Some(write.clone()),
            Some(ObjectWriteState::Ended(ended)) if is_recent(*ended) => return None,
            Some(ObjectWriteState::Ended(_)) | None => {}
        }
        if states.len() > FEW {
            states.retain(|_, state| match state {
                ObjectWriteState::Running(_) => true,
                ObjectWriteState::Ended(ended) => is_recent(*ended),
            });
        }
        let write = self.start(name.to_owned(), answer.clone());
        states.insert(name.to_owned(), ObjectWriteState::Running(write.clone()));
        Some(write)
    }

    fn start(&self, name: String, answer: Bytes) -> ObjectWrite {
        let (bucket, states, runtime) = (self.bucket.clone(), Arc::clone(&self.states), Arc::clone(&self.runtime));
        let write = async move {
            let written = bucket.put(&name, answer).await;
            let mut states = states.lock();
            // A failure is told to those who wait, and the next try begins anew.
            match &written {
                Ok(()) => drop(states.insert(name, ObjectWriteState::Ended(runtime.boottime_now()))),
                Err(_) => drop(states.remove(&name)),
            }
            written.map_err(Arc::new)
        };
        let write = write.boxed().shared();
        self.runtime.spawn(write.clone().map(drop).boxed());
        write
    }
}

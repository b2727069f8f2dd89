//! The writes of answers that are under way, and those that have just ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use hapax_core::runtime::{Runtime, timeout};
use hapax_core::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::AnswerBucket;

/// How many bytes may be under way at once. One answer may always.
const ROOM: usize = 256 << 20;

/// How long a write counts that has ended while nobody waited.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Old writes are looked for if there are more than this.
const FEW: usize = 64;

type ObjectWrite = Shared<BoxFuture<'static, Result<(), Arc<Error>>>>;

/// A caller of a store has less time than a write to a bucket may need, and comes again. A write goes on meanwhile, so
/// that the next try finds it under way or ended.
pub(super) struct ObjectWrites {
    bucket: AnswerBucket,
    runtime: Arc<dyn Runtime>,
    states: Arc<Mutex<ObjectWriteStates>>,
}

#[derive(Default)]
struct ObjectWriteStates {
    by_name: HashMap<String, ObjectWriteState>,
    /// The bytes of those that run.
    running: usize,
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

    /// Waits until an answer is confirmed under its name, for so long at most.
    ///
    /// # Errors
    /// `NotApplied` if it is not confirmed, or not yet.
    ///
    /// # Cancel safety
    /// Safe to drop. The write goes on.
    pub(super) async fn write(&self, name: &str, answer: &Bytes, wait: Duration) -> Result<()> {
        let Some(write) = self.under_way(name, answer)? else { return Ok(()) };
        match timeout(&*self.runtime, wait, write).await {
            Some(written) => written.map_err(|cause| failed("an answer is not in its bucket").caused_by(cause)),
            None => Err(failed("an answer is on its way to its bucket; try again")),
        }
    }

    /// Its record names it, so no further try will come.
    pub(super) fn forget(&self, name: &str) {
        let mut states = self.states.lock();
        if let Some(ObjectWriteState::Ended(_)) = states.by_name.get(name) {
            states.by_name.remove(name);
        }
    }

    /// The write of an answer, which is started if need be. None if it has just ended, which counts once.
    fn under_way(&self, name: &str, answer: &Bytes) -> Result<Option<ObjectWrite>> {
        let now = self.runtime.boottime_now();
        let is_recent = |ended: Duration| now.saturating_sub(ended) < REMEMBERED;
        let mut states = self.states.lock();
        match states.by_name.get(name) {
            Some(ObjectWriteState::Running(write)) => return Ok(Some(write.clone())),
            Some(ObjectWriteState::Ended(ended)) if is_recent(*ended) => {
                states.by_name.remove(name);
                return Ok(None);
            }
            Some(ObjectWriteState::Ended(_)) | None => {}
        }
        if states.running > 0 && states.running + answer.len() > ROOM {
            return Err(failed("too many answers are on their way to their bucket"));
        }
        if states.by_name.len() > FEW {
            states.by_name.retain(|_, state| match state {
                ObjectWriteState::Running(_) => true,
                ObjectWriteState::Ended(ended) => is_recent(*ended),
            });
        }
        let write = self.start(name.to_owned(), answer.clone());
        states.by_name.insert(name.to_owned(), ObjectWriteState::Running(write.clone()));
        states.running += answer.len();
        Ok(Some(write))
    }

    fn start(&self, name: String, answer: Bytes) -> ObjectWrite {
        let (bucket, states, runtime) = (self.bucket.clone(), Arc::clone(&self.states), Arc::clone(&self.runtime));
        let write = async move {
            let length = answer.len();
            let written = bucket.put(&name, answer).await;
            let mut states = states.lock();
            states.running = states.running.saturating_sub(length);
            // A failure is told to those who wait, and the next try begins anew.
            match &written {
                Ok(()) => drop(states.by_name.insert(name, ObjectWriteState::Ended(runtime.boottime_now()))),
                Err(_) => drop(states.by_name.remove(&name)),
            }
            written.map_err(Arc::new)
        };
        let write = write.boxed().shared();
        self.runtime.spawn(write.clone().map(drop).boxed());
        write
    }
}

fn failed(message: &'static str) -> Error {
    Error::new(ErrorKind::NotApplied, message).beside_store()
}

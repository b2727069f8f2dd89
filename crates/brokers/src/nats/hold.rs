//! Keeps the order of messages over a cut. What the server had sent by then and has not arrived is sent again only
//! after its lease; what arrives meanwhile waits for it.
//!
//! The server sends a message again before any new one. So what waits may run as soon as everything that the server
//! counts as unfinished has arrived here, or when a new message is sent for a request that was made after the leases
//! have ended. Messages that are sent again wait, too: the lease of an earlier one may end later. A message that the
//! server counts and never sends again, for instance because it was deleted, is not waited for any longer than such a
//! request takes. Nor does a hold begin anew for a message that never arrives, as `lost_alone.rs` tells.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{self, Consumer, pull};
use hapax_core::Result;
use hapax_core::runtime::Runtime;
use parking_lot::Mutex;

use super::connect;
use super::losses::{SLACK, comes_again};
use super::pull::EXPIRES;

/// The sequences of the messages that have arrived here and for whose end the server was not told yet.
pub(super) type Here = Arc<Mutex<BTreeSet<u64>>>;

/// How often the server is asked whether something is still missing.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How often the server is asked whether it has forgotten an earlier request.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// New messages that wait for earlier ones.
pub(super) struct Hold {
    /// How many messages were missing at its beginning.
    pub(super) missing: usize,
    /// Messages behind this sequence are new.
    beyond: u64,
    /// When the lease of everything that is missing has ended.
    until: Duration,
    /// Whether a new message waits.
    has_new: bool,
    /// When a request was first made after that.
    asked: Option<Duration>,
    /// Whether nothing is missing any more.
    is_over: Arc<AtomicBool>,
}

/// The server's counts of a consumer before a source asks for messages.
pub(super) struct Survey {
    pub(super) info: consumer::Info,
    /// How many of the messages that the server counts as unfinished are not here.
    pub(super) missing: usize,
}

impl Survey {
    /// Waits until the server has forgotten earlier requests.
    pub(super) async fn make(
        consumer: &Consumer<pull::Config>,
        here: &Here,
        runtime: &Arc<dyn Runtime>,
    ) -> Result<Self> {
        // A request that the server still has, perhaps for a connection that it takes for alive, loses further ones.
        let deadline = runtime.boottime_now() + EXPIRES + SLACK;
        let mut survey = look(consumer, here).await?;
        while survey.info.num_waiting > 0 && runtime.boottime_now() < deadline {
            runtime.sleep(ASK_EVERY).await;
            survey = look(consumer, here).await?;
        }
        Ok(survey)
    }
}

impl Hold {
    /// Holds new messages until everything has arrived that was missing in a survey.
    pub(super) fn begin(
        survey: &Survey,
        consumer: &Consumer<pull::Config>,
        here: &Here,
        runtime: &Arc<dyn Runtime>,
    ) -> Self {
        let Survey { info, missing } = survey;
        let until = runtime.boottime_now() + comes_again(&info.config) + SLACK;
        let is_over = Arc::new(AtomicBool::new(false));
        let (ended, consumer, here, sleeping) =
            (Arc::downgrade(&is_over), consumer.clone(), Arc::clone(here), Arc::clone(runtime));
        runtime.spawn(Box::pin(async move {
            // The flag is weak here: the task ends once the hold is dropped.
            while let Some(ended) = ended.upgrade() {
                if look(&consumer, &here).await.is_ok_and(|survey| survey.missing == 0) {
                    ended.store(true, Ordering::Release);
                    return;
                }
                drop(ended);
                sleeping.sleep(LOOK_EVERY).await;
            }
        }));
        Self { missing: *missing, beyond: info.delivered.stream_sequence, until, has_new: false, asked: None, is_over }
    }

    /// Whether everything that was missing has arrived, or does not come.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        let has_waited = |asked: Duration| now >= asked + EXPIRES + SLACK;
        self.is_over.load(Ordering::Acquire) || self.asked.is_some_and(has_waited)
    }

    pub(super) fn note_asked(&mut self, asked: Duration) {
        if self.ends_with(asked) {
            self.asked.get_or_insert(asked);
        }
    }

    /// Whether to ask for messages.
    pub(super) fn asks(&self, now: Duration) -> bool {
        !self.has_new || now >= self.until
    }

    /// Whether an answer to a request of this time shows that nothing is missing any more.
    pub(super) fn ends_with(&self, asked: Duration) -> bool {
        asked >= self.until
    }

    /// Whether a message is new.
    pub(super) fn is_new(&self, sequence: u64) -> bool {
        sequence > self.beyond
    }

    pub(super) fn note_new(&mut self) {
        self.has_new = true;
    }
}

/// The server's counts of a consumer now.
async fn look(consumer: &Consumer<pull::Config>, here: &Here) -> Result<Survey> {
    // What arrives or ends meanwhile may be in the count of the server or not.
    let before = here.lock().clone();
    let info = connect::info(consumer).await?;
    // Only those that were here before and after the answer are surely in its count.
    let stayed = before.intersection(&here.lock()).count();
    let missing = info.num_ack_pending.saturating_sub(stayed);
    Ok(Survey { info, missing })
}

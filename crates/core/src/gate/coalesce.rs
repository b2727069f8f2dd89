//! Coalesces copies of one call in one process: the first leads and asks the store, the others follow and share its
//! outcome.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::chaos::Mutant;
use crate::gate::outcome::{Answer, Provenance, Recorded, Refused, RunResult};
use crate::gate::reason::Reason;
use crate::key::{Call, RecordKey};
use crate::telemetry;

/// The calls in flight in this process.
pub(super) struct Coalescer {
    max_followers: usize,
    max_followers_per_key: usize,
    in_flight: Mutex<InFlightCalls>,
}

#[derive(Default)]
struct InFlightCalls {
    by_key: HashMap<RecordKey, InFlightCall>,
    followers: usize,
}

struct InFlightCall {
    call: Call,
    stage: LeaderStage,
    /// Created with the first follower: most calls have none.
    stage_sender: Option<watch::Sender<LeaderStage>>,
}

/// How far a leader is.
#[derive(Clone, Debug)]
pub(super) enum LeaderStage {
    /// Its begin is not decided yet.
    Beginning,
    /// Its handler runs.
    Granted,
    /// It has ended.
    Ended(LeaderOutcome),
}

/// What followers get from a leader that has ended.
#[derive(Clone, Debug)]
pub(super) enum LeaderOutcome {
    /// The answer as it is stored, and the other fields of [`RunResult`].
    Answer { answer: Bytes, recorded: Recorded, expiry: Option<u32> },
    /// No answer.
    Refused(Reason),
    /// Nothing was applied: each follower begins for itself.
    NothingApplied,
}

impl LeaderOutcome {
    /// The leader ended without an outcome after its begin was granted.
    const UNKNOWN: Self = Self::Refused(Reason::Unknown { unrecorded: false });

    pub(super) fn of<A: Answer>(result: &Result<RunResult<A>, Refused<A>>) -> Self {
        match result {
            Ok(result) => {
                Self::Answer { answer: result.answer.encode(), recorded: result.recorded, expiry: result.expiry }
            }
            Err(refused) => refused.reason.for_followers().map_or(Self::NothingApplied, Self::Refused),
        }
    }

    /// The result of a follower. None means that the follower begins for itself.
    pub(super) fn into_result<A: Answer>(self) -> Option<Result<RunResult<A>, Refused<A>>> {
        match self {
            Self::Answer { answer, recorded, expiry } => Some(RunResult::decoded(answer, |answer| RunResult {
                answer,
                provenance: Provenance::Replayed,
                recorded,
                expiry,
            })),
            Self::Refused(reason) => Some(Err(reason.into())),
            Self::NothingApplied => None,
        }
    }
}

/// What a call is among the calls in flight.
pub(super) enum CallRole {
    /// The first call of its key. It must report its outcome.
    Leader(Leader),
    /// A copy of a call in flight.
    Follower(Follower),
    /// Another payload under a key whose leader is granted.
    Mismatch,
    /// Another payload under a key whose leader is not granted yet. The call begins for itself and has no followers.
    Alone,
    /// A copy beyond the limit of followers.
    TooManyFollowers,
}

impl Coalescer {
    pub(super) fn new(max_followers: usize, max_followers_per_key: usize) -> Self {
        Self { max_followers, max_followers_per_key, in_flight: Mutex::default() }
    }

    pub(super) fn join(self: &Arc<Self>, call: &Call) -> CallRole {
        let rk = call.record_key();
        let mut in_flight = self.in_flight.lock();
        let all_followers = in_flight.followers;
        let leading = match in_flight.by_key.entry(rk) {
            Entry::Vacant(vacant) => {
                vacant.insert(InFlightCall { call: *call, stage: LeaderStage::Beginning, stage_sender: None });
                let leader = Leader { coalescer: Arc::clone(self), rk, is_granted: false, has_ended: false };
                return CallRole::Leader(leader);
            }
            Entry::Occupied(occupied) => occupied.into_mut(),
        };
        if Mutant::TwinRunsToo.is_on() {
            return CallRole::Alone;
        }
        if !call.is_copy_of(&leading.call) {
            return match leading.stage {
                LeaderStage::Granted => CallRole::Mismatch,
                // The leader's begin may still be refused, so the store has to compare the payloads.
                LeaderStage::Beginning | LeaderStage::Ended(_) => CallRole::Alone,
            };
        }
        let followers = leading.stage_sender.as_ref().map_or(0, watch::Sender::receiver_count);
        if followers >= self.max_followers_per_key || all_followers >= self.max_followers {
            return CallRole::TooManyFollowers;
        }
        // The channel starts at the present stage, which it would otherwise never send.
        let stage = &leading.stage;
        let leader_stage = leading.stage_sender.get_or_insert_with(|| watch::Sender::new(stage.clone())).subscribe();
        in_flight.followers += 1;
        telemetry::follower_joined();
        CallRole::Follower(Follower { coalescer: Arc::clone(self), leader_stage })
    }
}

impl fmt::Debug for Coalescer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_flight = self.in_flight.lock();
        write!(f, "Coalescer({} calls, {} followers)", in_flight.by_key.len(), in_flight.followers)
    }
}

/// The leader's side. If it is dropped before [`end`](Self::end), its followers get *unknown*, or begin for themselves
/// if it was not granted.
pub(super) struct Leader {
    coalescer: Arc<Coalescer>,
    rk: RecordKey,
    is_granted: bool,
    has_ended: bool,
}

impl Leader {
    /// Reports that the handler is about to run.
    pub(super) fn set_granted(&mut self) {
        self.is_granted = true;
        let mut in_flight = self.coalescer.in_flight.lock();
        if let Some(call) = in_flight.by_key.get_mut(&self.rk) {
            // Kept here too: the channel may not exist before the first follower joins.
            call.stage = LeaderStage::Granted;
            if let Some(sender) = &call.stage_sender {
                sender.send_replace(LeaderStage::Granted);
            }
        }
    }

    /// Reports the outcome. `outcome` is called only if there are followers, because it encodes the answer.
    pub(super) fn end(mut self, outcome: impl FnOnce() -> LeaderOutcome) {
        self.send_outcome(outcome);
    }

    fn send_outcome(&mut self, outcome: impl FnOnce() -> LeaderOutcome) {
        self.has_ended = true;
        // Removed before the outcome is sent: a copy that arrives from now on is a new leader and asks the store.
        let call = self.coalescer.in_flight.lock().by_key.remove(&self.rk);
        if let Some(sender) = call.and_then(|call| call.stage_sender) {
            sender.send_replace(LeaderStage::Ended(outcome()));
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if !self.has_ended {
            let is_granted = self.is_granted;
            self.send_outcome(|| if is_granted { LeaderOutcome::UNKNOWN } else { LeaderOutcome::NothingApplied });
        }
    }
}

/// A follower's side.
pub(super) struct Follower {
    coalescer: Arc<Coalescer>,
    leader_stage: watch::Receiver<LeaderStage>,
}

impl Follower {
    /// Waits until the leader's begin is decided.
    ///
    /// # Cancel safety
    /// Safe to drop, as is [`wait_for_end`](Self::wait_for_end).
    pub(super) async fn wait_for_begin(&mut self) -> LeaderStage {
        self.wait_until(|stage| !matches!(stage, LeaderStage::Beginning)).await
    }

    /// Waits until the leader has ended.
    pub(super) async fn wait_for_end(&mut self) -> LeaderStage {
        self.wait_until(|stage| matches!(stage, LeaderStage::Ended(_))).await
    }

    async fn wait_until(&mut self, is_reached: impl FnMut(&LeaderStage) -> bool) -> LeaderStage {
        let stage = self.leader_stage.wait_for(is_reached).await.map(|stage| stage.clone());
        // Not expected: a leader sends its outcome before its sender is dropped.
        stage.unwrap_or(LeaderStage::Ended(LeaderOutcome::UNKNOWN))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.coalescer.in_flight.lock().followers -= 1;
        telemetry::follower_left();
    }
}

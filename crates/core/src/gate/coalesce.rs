//! Twins: copies of one call in one process. The first leads and asks the store; the others share what becomes of it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use crate::chaos;
use crate::error::{Error, ErrorKind};
use crate::gate::outcome::{Answer, Provenance, Recorded, Refused, RunResult};
use crate::key::{Call, RecordKey};
use crate::record::{Completion, Timestamp};
use crate::telemetry;

/// Every call that is under way in this process.
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
    /// Made for the first twin: most calls have none.
    told: Option<watch::Sender<LeaderStage>>,
}

/// How far a leader has come.
#[derive(Clone, Debug)]
pub(super) enum LeaderStage {
    /// It asks the store.
    Beginning,
    /// Its handler runs.
    Granted,
    /// It is over.
    Ended(LeaderOutcome),
}

/// What became of a leader.
#[derive(Clone, Debug)]
pub(super) enum LeaderOutcome {
    /// There is an answer, as it is stored, or is to be; the rest as in [`RunResult`].
    Answer { answer: Bytes, recorded: Recorded, expiry: Option<u32> },
    /// There was one already.
    Recorded(Completion),
    /// Nothing was applied: each twin begins for itself.
    NotApplied,
    /// Nobody knows; whether the handler ran without a record.
    Unknown { unrecorded: bool },
    /// Another process runs it; the rest of its lease.
    Busy(Duration),
    /// The key was used for another payload.
    Mismatch,
    /// Nobody knows, since then.
    Indeterminate(Timestamp),
    /// Closed after too many attempts.
    Dead,
    /// The store could not be asked.
    Store(ErrorKind),
}

impl LeaderOutcome {
    /// Nobody knows, and the record says so.
    const UNKNOWN: Self = Self::Unknown { unrecorded: false };

    pub(super) fn of<A: Answer>(ran: &Result<RunResult<A>, Refused<A>>) -> Self {
        match ran {
            Ok(ran) => Self::Answer { answer: ran.answer.encode(), recorded: ran.recorded, expiry: ran.expiry },
            Err(Refused::NotApplied { .. } | Refused::Overloaded) => Self::NotApplied,
            Err(Refused::Unknown { unrecorded, .. }) => Self::Unknown { unrecorded: *unrecorded },
            Err(Refused::Unrecorded(_)) => Self::UNKNOWN,
            Err(Refused::Busy { retry_after }) => Self::Busy(*retry_after),
            Err(Refused::Mismatch) => Self::Mismatch,
            Err(Refused::Indeterminate { since }) => Self::Indeterminate(*since),
            Err(Refused::Dead) => Self::Dead,
            Err(Refused::Store(error)) => Self::Store(error.kind()),
        }
    }

    /// The end as a copy of the call hears it.
    pub(super) fn into_result<A: Answer>(self) -> Result<RunResult<A>, Refused<A>> {
        let error = |kind, message| Error::new(kind, message);
        match self {
            Self::Answer { answer, recorded, expiry } => RunResult::decoded(answer, |answer| RunResult {
                answer,
                provenance: Provenance::Replayed,
                recorded,
                expiry,
            }),
            Self::Recorded(completion) => RunResult::recorded(completion, Provenance::Replayed),
            Self::NotApplied => {
                let detail = error(ErrorKind::NotApplied, "a copy of this call was not applied").into();
                Err(Refused::NotApplied { detail, unrecorded: false })
            }
            Self::Unknown { unrecorded } => {
                let detail = error(ErrorKind::Unknown, "the outcome of a copy of this call is unknown").into();
                Err(Refused::Unknown { detail, unrecorded })
            }
            Self::Busy(retry_after) => Err(Refused::Busy { retry_after }),
            Self::Mismatch => Err(Refused::Mismatch),
            Self::Indeterminate(since) => Err(Refused::Indeterminate { since }),
            Self::Dead => Err(Refused::Dead),
            Self::Store(kind) => Err(Refused::Store(error(kind, "a copy of this call could not ask the store"))),
        }
    }
}

/// What a call is among those under way.
pub(super) enum CallRole {
    /// The first: its end is to be told by the call_in_flight.
    Leader(Leader),
    /// A copy of one that is under way.
    Follower(Follower),
    /// Another payload under a key whose leader is granted.
    Mismatch,
    /// Another payload under a key whose leader is not granted yet: it begins for itself, and nobody shares its end.
    Alone,
    /// A copy, and there are too many already.
    TooMany,
}

impl Coalescer {
    pub(super) fn new(max_followers: usize, max_followers_per_key: usize) -> Self {
        Self { max_followers, max_followers_per_key, in_flight: Mutex::default() }
    }

    pub(super) fn join(self: &Arc<Self>, call: &Call) -> CallRole {
        let rk = call.record_key();
        let mut in_flight = self.lock();
        let all_followers = in_flight.followers;
        let call_in_flight = match in_flight.by_key.entry(rk) {
            Entry::Vacant(vacant) => {
                vacant.insert(InFlightCall { call: *call, stage: LeaderStage::Beginning, told: None });
                return CallRole::Leader(Leader { coalescer: Arc::clone(self), rk, granted: false, ended: false });
            }
            Entry::Occupied(occupied) => occupied.into_mut(),
        };
        if chaos::on("twin_runs_too") {
            return CallRole::Alone;
        }
        if call_in_flight.call != *call {
            return match call_in_flight.stage {
                LeaderStage::Granted => CallRole::Mismatch,
                LeaderStage::Beginning | LeaderStage::Ended(_) => CallRole::Alone,
            };
        }
        let followers = call_in_flight.told.as_ref().map_or(0, watch::Sender::receiver_count);
        if followers >= self.max_followers_per_key || all_followers >= self.max_followers {
            return CallRole::TooMany;
        }
        let stage = &call_in_flight.stage;
        let told = call_in_flight.told.get_or_insert_with(|| watch::Sender::new(stage.clone())).subscribe();
        in_flight.followers += 1;
        telemetry::follower_joined();
        CallRole::Follower(Follower { coalescer: Arc::clone(self), told })
    }

    fn lock(&self) -> MutexGuard<'_, InFlightCalls> {
        // Counts may be off after a panic in here, which only bounds what waits.
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Coalescer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_flight = self.lock();
        write!(f, "Coalescer({}, followers {})", in_flight.by_key.len(), in_flight.followers)
    }
}

/// The leader's side. Dropped before its end was told, its followers hear that the outcome is unknown, or that nothing was applied
/// if it was not even granted.
pub(super) struct Leader {
    coalescer: Arc<Coalescer>,
    rk: RecordKey,
    granted: bool,
    ended: bool,
}

impl Leader {
    /// The handler is about to run.
    pub(super) fn granted(&mut self) {
        self.granted = true;
        let mut in_flight = self.coalescer.lock();
        if let Some(call_in_flight) = in_flight.by_key.get_mut(&self.rk) {
            call_in_flight.stage = LeaderStage::Granted;
            if let Some(told) = &call_in_flight.told {
                told.send_replace(LeaderStage::Granted);
            }
        }
    }

    pub(super) fn ended(mut self, ended: impl FnOnce() -> LeaderOutcome) {
        self.end(ended);
    }

    fn end(&mut self, ended: impl FnOnce() -> LeaderOutcome) {
        self.ended = true;
        let call_in_flight = self.coalescer.lock().by_key.remove(&self.rk);
        if let Some(told) = call_in_flight.and_then(|call_in_flight| call_in_flight.told) {
            told.send_replace(LeaderStage::Ended(ended()));
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if !self.ended {
            let granted = self.granted;
            self.end(|| if granted { LeaderOutcome::UNKNOWN } else { LeaderOutcome::NotApplied });
        }
    }
}

/// A twin's side.
pub(super) struct Follower {
    coalescer: Arc<Coalescer>,
    told: watch::Receiver<LeaderStage>,
}

impl Follower {
    /// Waits until the leader's begin is decided.
    ///
    /// # Cancel safety
    /// Safe to drop, as is [`Follower::ended`].
    pub(super) async fn decided(&mut self) -> LeaderStage {
        self.until(|stage| !matches!(stage, LeaderStage::Beginning)).await
    }

    /// Waits until the leader is over.
    pub(super) async fn ended(&mut self) -> LeaderStage {
        self.until(|stage| matches!(stage, LeaderStage::Ended(_))).await
    }

    async fn until(&mut self, holds: impl FnMut(&LeaderStage) -> bool) -> LeaderStage {
        let stage = self.told.wait_for(holds).await.map(|stage| stage.clone());
        // A leader tells its end before its side is dropped.
        stage.unwrap_or(LeaderStage::Ended(LeaderOutcome::UNKNOWN))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.coalescer.lock().followers -= 1;
        telemetry::follower_left();
    }
}

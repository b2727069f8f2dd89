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
pub(super) struct Flights {
    most_twins: usize,
    most_twins_per_key: usize,
    under_way: Mutex<UnderWay>,
}

#[derive(Default)]
struct UnderWay {
    by_key: HashMap<RecordKey, Flight>,
    twins: usize,
}

struct Flight {
    call: Call,
    stage: Stage,
    /// Made for the first twin: most calls have none.
    told: Option<watch::Sender<Stage>>,
}

/// How far a leader has come.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// It asks the store.
    Beginning,
    /// Its handler runs.
    Granted,
    /// It is over.
    Ended(Ended),
}

/// What became of a leader.
#[derive(Clone, Debug)]
pub(super) enum Ended {
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

impl Ended {
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
pub(super) enum Role {
    /// The first: its end is to be told by the flight.
    Leader(Leading),
    /// A copy of one that is under way.
    Twin(Twin),
    /// Another payload under a key whose leader is granted.
    Mismatch,
    /// Another payload under a key whose leader is not granted yet: it begins for itself, and nobody shares its end.
    Alone,
    /// A copy, and there are too many already.
    TooMany,
}

impl Flights {
    pub(super) fn new(most_twins: usize, most_twins_per_key: usize) -> Self {
        Self { most_twins, most_twins_per_key, under_way: Mutex::default() }
    }

    pub(super) fn join(self: &Arc<Self>, call: &Call) -> Role {
        let rk = call.record_key();
        let mut under_way = self.lock();
        let all_twins = under_way.twins;
        let flight = match under_way.by_key.entry(rk) {
            Entry::Vacant(vacant) => {
                vacant.insert(Flight { call: *call, stage: Stage::Beginning, told: None });
                return Role::Leader(Leading { flights: Arc::clone(self), rk, granted: false, ended: false });
            }
            Entry::Occupied(occupied) => occupied.into_mut(),
        };
        if chaos::on("twin_runs_too") {
            return Role::Alone;
        }
        if flight.call != *call {
            return match flight.stage {
                Stage::Granted => Role::Mismatch,
                Stage::Beginning | Stage::Ended(_) => Role::Alone,
            };
        }
        let twins = flight.told.as_ref().map_or(0, watch::Sender::receiver_count);
        if twins >= self.most_twins_per_key || all_twins >= self.most_twins {
            return Role::TooMany;
        }
        let stage = &flight.stage;
        let told = flight.told.get_or_insert_with(|| watch::Sender::new(stage.clone())).subscribe();
        under_way.twins += 1;
        telemetry::twins_grew();
        Role::Twin(Twin { flights: Arc::clone(self), told })
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        // Counts may be off after a panic in here, which only bounds what waits.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Flights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let under_way = self.lock();
        write!(f, "Flights({}, twins {})", under_way.by_key.len(), under_way.twins)
    }
}

/// The leader's side. Dropped before its end was told, its twins hear that the outcome is unknown, or that nothing was applied
/// if it was not even granted.
pub(super) struct Leading {
    flights: Arc<Flights>,
    rk: RecordKey,
    granted: bool,
    ended: bool,
}

impl Leading {
    /// The handler is about to run.
    pub(super) fn granted(&mut self) {
        self.granted = true;
        let mut under_way = self.flights.lock();
        if let Some(flight) = under_way.by_key.get_mut(&self.rk) {
            flight.stage = Stage::Granted;
            if let Some(told) = &flight.told {
                told.send_replace(Stage::Granted);
            }
        }
    }

    pub(super) fn ended(mut self, ended: impl FnOnce() -> Ended) {
        self.end(ended);
    }

    fn end(&mut self, ended: impl FnOnce() -> Ended) {
        self.ended = true;
        let flight = self.flights.lock().by_key.remove(&self.rk);
        if let Some(told) = flight.and_then(|flight| flight.told) {
            told.send_replace(Stage::Ended(ended()));
        }
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        if !self.ended {
            let granted = self.granted;
            self.end(|| if granted { Ended::UNKNOWN } else { Ended::NotApplied });
        }
    }
}

/// A twin's side.
pub(super) struct Twin {
    flights: Arc<Flights>,
    told: watch::Receiver<Stage>,
}

impl Twin {
    /// Waits until the leader's begin is decided.
    ///
    /// # Cancel safety
    /// Safe to drop, as is [`Twin::ended`].
    pub(super) async fn decided(&mut self) -> Stage {
        self.until(|stage| !matches!(stage, Stage::Beginning)).await
    }

    /// Waits until the leader is over.
    pub(super) async fn ended(&mut self) -> Stage {
        self.until(|stage| matches!(stage, Stage::Ended(_))).await
    }

    async fn until(&mut self, holds: impl FnMut(&Stage) -> bool) -> Stage {
        let stage = self.told.wait_for(holds).await.map(|stage| stage.clone());
        // A leader tells its end before its side is dropped.
        stage.unwrap_or(Stage::Ended(Ended::UNKNOWN))
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        self.flights.lock().twins -= 1;
        telemetry::twins_shrank();
    }
}

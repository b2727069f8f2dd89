//! What operators see of a record, and what they are told if it does not allow what they want.

mod advice;
mod answer;

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::Duration;

use hapax::machine::Observed;
use hapax::relay::{bucket_records, member_records};
use hapax::store::{RecordStatus, Scanned};
use hapax::{Completion, Record, RecordKey, State, Timestamp};
use serde_json::{Value, json};

use crate::admin::api::ApiError;
use crate::admin::api::call::URN;
use crate::admin::api::values::time;

pub(super) use advice::refusal;
pub(super) use answer::shown_answer;

/// A live record at an instant.
#[derive(Clone, Debug)]
pub(crate) struct SeenRecord {
    pub(crate) rk: RecordKey,
    pub(crate) record: Record,
    pub(crate) status: RecordStatus,
    pub(crate) lease_left: Duration,
    life_left: Duration,
    now: Timestamp,
}

impl SeenRecord {
    /// The live record that was read. None if there was none.
    pub(crate) fn of_read(rk: RecordKey, seen: &Observed) -> Option<Self> {
        let (record, status) = (seen.live()?.clone(), RecordStatus::of(seen)?);
        let Observed { lease_left, life_left, now, .. } = *seen;
        Some(Self { rk, record, status, lease_left, life_left, now })
    }

    pub(crate) fn of_scan(found: Scanned, now: Timestamp) -> Self {
        let Scanned { rk, record, status, life_left, .. } = found;
        Self { rk, record, status, lease_left: Duration::ZERO, life_left, now }
    }

    /// The record without its answer, as all commands and the API show it.
    pub(crate) fn to_json(&self) -> Value {
        let (since, holding) = (self.since(), self.record.state.holding());
        json!({
            "rk": self.rk.to_string(),
            "urn": format!("{URN}{}", self.rk),
            "operation": self.rk.operation().to_string(),
            "state": state_name(self.status),
            "held": self.status == RecordStatus::Indeterminate,
            "token": self.record.token.0,
            "attempt": holding.map(|holding| holding.attempt),
            "takeover": holding.is_some_and(|holding| holding.takeover),
            "since": time(since),
            "age_seconds": self.now.since(since).as_secs(),
            "expires": time(self.now.plus(self.life_left)),
            "answer_bytes": self.completion().map(|completion| completion.answer.len()),
        })
    }

    pub(crate) fn completion(&self) -> Option<&Completion> {
        match &self.record.state {
            State::Completed(completion) => Some(completion),
            State::Open(..) => None,
        }
    }

    /// When the record was last written or renewed. A completed one does not tell; its token was minted by the clock.
    fn since(&self) -> Timestamp {
        let armed = |lifetime: Duration| {
            let age = lifetime.saturating_sub(self.life_left);
            Timestamp(self.now.0.saturating_sub(u64::try_from(age.as_micros()).unwrap_or(u64::MAX)))
        };
        let holding = self.record.state.holding();
        holding.map_or(Timestamp(self.record.token.0), |holding| armed(holding.lifetime.into()))
    }

    /// Whether the record is one of Hapax itself: the pin of a namespace, or a claim of a relay.
    pub(crate) fn is_internal(&self) -> bool {
        /// Only a pin lives longer.
        const LONGEST: Duration = Duration::from_secs(2 * 366 * 24 * 3600);
        let is_pin = self.completion().is_some_and(|completion| completion.answer.is_empty());
        is_pin && self.life_left > LONGEST || OF_RELAYS.contains(&self.rk)
    }
}

static OF_RELAYS: LazyLock<HashSet<RecordKey>> =
    LazyLock::new(|| [bucket_records(), member_records()].into_iter().flatten().flatten().collect());

/// The names of states. An outcome is unknown once the lease has expired, whether a record is held or not.
fn state_name(status: RecordStatus) -> &'static str {
    match status {
        RecordStatus::Running => "in-progress",
        RecordStatus::Lapsed | RecordStatus::Indeterminate => "indeterminate",
        RecordStatus::Completed => "completed",
        RecordStatus::Released => "released",
        RecordStatus::Dead => "dead",
    }
}

/// Which records a list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordFilter(&'static str);

impl RecordFilter {
    const ALL: [RecordStatus; 6] = [
        RecordStatus::Running,
        RecordStatus::Lapsed,
        RecordStatus::Indeterminate,
        RecordStatus::Completed,
        RecordStatus::Released,
        RecordStatus::Dead,
    ];

    /// The records in the state with this name.
    ///
    /// # Errors
    /// If no state has it.
    pub(crate) fn named(name: &str) -> Result<Self, ApiError> {
        let known = Self::ALL.into_iter().map(state_name).find(|known| *known == name);
        let wrong = || ApiError::invalid("the states are in-progress, indeterminate, completed, released and dead");
        known.map(Self).ok_or_else(wrong)
    }

    pub(crate) fn statuses(self) -> Vec<RecordStatus> {
        Self::ALL.into_iter().filter(|status| state_name(*status) == self.0).collect()
    }
}

//! What operators see of a record, and what they are told if it does not allow what they want.

mod advice;
mod answer;

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::Duration;

use hapax::machine::Observed;
use hapax::relay::{bucket_records, member_records};
use hapax::store::{RecordStatus, Scanned};
use hapax::{Completion, Fingerprint, OperationId, Record, RecordKey, State, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admin::api::calls::{RecordName, URN};
use crate::admin::api::values::{text, time};
use crate::store::checks::TRIAL_RETENTION;

pub(super) use advice::{missing, refusal};
pub(super) use answer::shown_answer;

/// A record, as all commands and the API show it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RecordView {
    #[serde(with = "text")]
    pub(crate) rk: RecordName,
    pub(super) urn: String,
    #[serde(with = "text")]
    pub(crate) operation: OperationId,
    pub(crate) state: RecordState,
    /// Until the record is resolved.
    pub(super) refuses_retries: bool,
    pub(crate) token: u64,
    pub(crate) attempt: Option<u16>,
    pub(super) takeover: bool,
    /// Only while an attempt runs.
    pub(super) lease_seconds: Option<f64>,
    /// How much of the lease is left if nothing renews it.
    pub(super) lease_seconds_left: Option<f64>,
    pub(crate) since: String,
    pub(super) age_seconds: u64,
    pub(super) expires: String,
    pub(super) answer_bytes: Option<u64>,
    /// Only if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Value>,
}

/// The states of records for operators. An outcome is unknown once the lease has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RecordState {
    InProgress,
    Unknown,
    Completed,
    Released,
    Dead,
}

impl RecordState {
    pub(crate) fn statuses(self) -> &'static [RecordStatus] {
        match self {
            Self::InProgress => &[RecordStatus::Running],
            Self::Unknown => &[RecordStatus::Lapsed, RecordStatus::Indeterminate],
            Self::Completed => &[RecordStatus::Completed],
            Self::Released => &[RecordStatus::Released],
            Self::Dead => &[RecordStatus::Dead],
        }
    }
}

impl From<RecordStatus> for RecordState {
    fn from(status: RecordStatus) -> Self {
        match status {
            RecordStatus::Running => Self::InProgress,
            RecordStatus::Lapsed | RecordStatus::Indeterminate => Self::Unknown,
            RecordStatus::Completed => Self::Completed,
            RecordStatus::Released => Self::Released,
            RecordStatus::Dead => Self::Dead,
        }
    }
}

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
        let Scanned { rk, record, status, idle, life_left } = found;
        let lease_left = record.state.holding().map_or(Duration::ZERO, |holding| Duration::from(holding.lease));
        Self { rk, record, status, lease_left: lease_left.saturating_sub(idle), life_left, now }
    }

    pub(crate) fn view(&self) -> RecordView {
        let (since, holding) = (self.since(), self.record.state.holding());
        let running = holding.filter(|_| self.status == RecordStatus::Running);
        RecordView {
            rk: RecordName(self.rk),
            urn: format!("{URN}{}", self.rk),
            operation: self.rk.operation(),
            state: self.status.into(),
            refuses_retries: self.status == RecordStatus::Indeterminate,
            token: self.record.token.0,
            attempt: holding.map(|holding| holding.attempt),
            takeover: holding.is_some_and(|holding| holding.takeover),
            lease_seconds: running.map(|holding| Duration::from(holding.lease).as_secs_f64()),
            lease_seconds_left: running.map(|_| self.lease_left.as_secs_f64()),
            since: time(since),
            age_seconds: self.now.since(since).as_secs(),
            expires: time(self.now.plus(self.life_left)),
            answer_bytes: self.completion().and_then(|completion| completion.answer_len().ok()),
            answer: None,
        }
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

    /// Whether the record is one of Hapax itself: the pin of a namespace, a trial call, or a claim of a relay.
    pub(crate) fn is_internal(&self) -> bool {
        /// Only a pin lives longer.
        const LONGEST: Duration = Duration::from_secs(2 * 366 * 24 * 3600);
        let is_empty = self.completion().is_some_and(|completion| completion.answer.is_empty());
        let is_pin = is_empty && self.life_left > LONGEST;
        // A request and a message have a fingerprint.
        let is_short = self.life_left <= Duration::from(TRIAL_RETENTION);
        let is_trial = is_empty && is_short && self.record.fingerprint == Fingerprint::NONE;
        is_pin || is_trial || OF_RELAYS.contains(&self.rk)
    }
}

static OF_RELAYS: LazyLock<HashSet<RecordKey>> =
    LazyLock::new(|| [bucket_records(), member_records()].into_iter().flatten().flatten().collect());

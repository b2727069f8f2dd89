use std::collections::BTreeMap;
use std::time::Duration;

use crate::broker::{DeadCause, DeadReason};
use crate::error::Result;
use crate::ledger::rules::backoff;

/// How many dead letters are written in one call. The results of a call that takes too long are lost, and a store may
/// write one letter after the other: a call with many slow letters would never succeed.
const MOST_AT_ONCE: usize = 32;

/// Why a message is dead.
#[derive(Clone, Debug)]
pub(super) struct DeadEnd {
    pub(super) reason: DeadReason,
    pub(super) attempts: u32,
    pub(super) cause: Option<DeadCause>,
}

/// A message that is to become a dead letter.
#[derive(Clone, Debug)]
pub(super) struct Burial {
    pub(super) end: DeadEnd,
    tries: u32,
    due: Duration,
    is_in_flight: bool,
}

/// The messages whose dead letters are not confirmed. They are not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Burials(BTreeMap<u64, Burial>);

impl Burials {
    pub(super) fn push(&mut self, number: u64, end: DeadEnd) {
        let burial = Burial { end, tries: 0, due: Duration::ZERO, is_in_flight: false };
        self.0.insert(number, burial);
    }

    /// The burials to carry out now. One call is in flight at a time.
    pub(super) fn take_due(&mut self, now: Duration) -> Vec<(u64, Burial)> {
        if self.is_in_flight() {
            return Vec::new();
        }
        let due = self.0.iter_mut().filter(|(_, burial)| burial.due <= now).take(MOST_AT_ONCE);
        due.map(|(number, burial)| {
            burial.is_in_flight = true;
            (*number, burial.clone())
        })
        .collect()
    }

    /// Notes the result of a burial. Returns the burial if it is confirmed.
    pub(super) fn ended(&mut self, number: u64, result: &Result<()>, now: Duration) -> Option<Burial> {
        let burial = self.0.get_mut(&number)?;
        burial.is_in_flight = false;
        if result.is_ok() {
            return self.0.remove(&number);
        }
        burial.tries += 1;
        burial.due = now + backoff(burial.tries);
        None
    }

    pub(super) fn forget(&mut self, number: u64) {
        self.0.remove(&number);
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.0.contains_key(&number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When the next burial is to be carried out.
    pub(super) fn next_due(&self) -> Option<Duration> {
        if self.is_in_flight() {
            return None;
        }
        self.0.values().map(|burial| burial.due).min()
    }

    fn is_in_flight(&self) -> bool {
        self.0.values().any(|burial| burial.is_in_flight)
    }
}

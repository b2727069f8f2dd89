//! Rows of the ledger and of the outbox as the columns that the drivers of PostgreSQL send and read.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::Hash;

use bytes::Bytes;
use hapax_core::ledger::{Fault, FaultKind, Finished, FoundRow, LedgerVerdict, OutboxRow, Row, Tried};
use hapax_core::{Fingerprint, Rule};

/// The columns of a row. An older release may have left one without its end, and others may have written what no
/// release writes.
pub(crate) struct FinishedRow<'r> {
    pub(crate) rule: i16,
    pub(crate) verdict: Option<i16>,
    pub(crate) fingerprint: &'r [u8],
    pub(crate) answer: Option<&'r [u8]>,
    pub(crate) transaction: i64,
}

impl From<FinishedRow<'_>> for FoundRow {
    fn from(row: FinishedRow<'_>) -> Self {
        let (Some(verdict), Some(answer)) = (row.verdict.and_then(verdict), row.answer) else {
            return Self::Damaged;
        };
        let (Ok(rule), Ok(bytes)) = (u8::try_from(row.rule), row.fingerprint.try_into()) else {
            return Self::Damaged;
        };
        Self::Row(Row {
            fingerprint: Fingerprint::from_parts(Rule(rule), bytes),
            verdict,
            answer: Bytes::copy_from_slice(answer),
            transaction: Some(row.transaction.cast_unsigned()),
        })
    }
}

/// The column `verdict`.
pub(crate) fn verdict_number(verdict: LedgerVerdict) -> i16 {
    match verdict {
        LedgerVerdict::Applied => 1,
        LedgerVerdict::Rejected => 2,
    }
}

/// The verdict with this number in the column `verdict`. None: no release writes this number.
pub(crate) fn verdict(number: i16) -> Option<LedgerVerdict> {
    [LedgerVerdict::Applied, LedgerVerdict::Rejected].into_iter().find(|&verdict| verdict_number(verdict) == number)
}

/// Translates the word that `hapax_claim_own` returns.
pub(crate) fn own_claim(found: &str) -> Result<Tried, Fault> {
    match found {
        "locked" => Ok(Tried::Locked),
        "busy" => Ok(Tried::LockedUnread),
        "claimed" => Ok(Tried::Inserted),
        "ended" => Ok(Tried::NotInserted),
        "open" => Ok(Tried::ClaimedHere),
        _ => Err(Fault::new(FaultKind::Failed, "the claim returned a word that this release does not know")),
    }
}

/// The place that `hapax_claim_one` returns if it has made no claim.
const NO_GUARD: &str = "(0,0)";

/// Reads the result of `hapax_claim_one`: its outcome, and the place of its guard, which is empty without a claim.
pub(crate) fn guard_of_one(guard: Option<String>) -> (Tried, String) {
    match guard {
        None => (Tried::Locked, String::new()),
        Some(guard) if guard == NO_GUARD => (Tried::NotInserted, String::new()),
        Some(guard) => (Tried::Inserted, guard),
    }
}

/// The outcome of `hapax_claim` for each of these operations, from the lists of the busy and of the ended ones.
pub(crate) fn tries<T: Eq + Hash>(operations: &[T], busy: &HashSet<T>, ended: &HashSet<T>) -> Vec<Tried> {
    let tried = |operation: &T| match operation {
        operation if busy.contains(operation) => Tried::Locked,
        operation if ended.contains(operation) => Tried::NotInserted,
        _ => Tried::Inserted,
    };
    operations.iter().map(tried).collect()
}

/// The rows in the order in which `hapax_finish` takes them: ascending by their operations.
pub(crate) fn ascending(rows: &[Finished]) -> Vec<&Finished> {
    let mut rows: Vec<&Finished> = rows.iter().collect();
    rows.sort_unstable_by_key(|row| *row.operation.as_bytes());
    rows
}

/// The column `headers` of an event.
pub(crate) fn headers(row: &OutboxRow) -> String {
    let headers: BTreeMap<_, _> = row.headers.iter().map(|(name, value)| (name, value)).collect();
    serde_json::to_string(&headers).expect("texts can be written as JSON")
}

/// The ordering keys of the rows that are to leave in the order of their commits, sorted and each once.
pub(crate) fn keys_in_commit_order(rows: &[OutboxRow]) -> Vec<&[u8]> {
    let ordered = rows.iter().filter(|row| row.is_in_commit_order);
    let keys: BTreeSet<&[u8]> = ordered.filter_map(|row| row.ordering_key.as_deref()).collect();
    keys.into_iter().collect()
}

//! Rows of the ledger and of the outbox as the columns that the drivers of PostgreSQL send and read.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use hapax_core::ledger::{FoundRow, LedgerVerdict, OutboxRow, Row};
use hapax_core::{Fingerprint, Rule};

/// The columns of a finished row.
pub(crate) struct FinishedRow<'r> {
    pub(crate) rule: i16,
    pub(crate) verdict: i16,
    pub(crate) fingerprint: &'r [u8],
    pub(crate) answer: &'r [u8],
    pub(crate) transaction: i64,
}

impl From<FinishedRow<'_>> for FoundRow {
    fn from(row: FinishedRow<'_>) -> Self {
        let bytes = row.fingerprint.try_into().unwrap_or_default();
        let is_rejected = row.verdict == verdict_number(LedgerVerdict::Rejected);
        Self::Row(Row {
            fingerprint: Fingerprint::from_parts(Rule(u8::try_from(row.rule).unwrap_or(u8::MAX)), bytes),
            verdict: if is_rejected { LedgerVerdict::Rejected } else { LedgerVerdict::Applied },
            answer: Bytes::copy_from_slice(row.answer),
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

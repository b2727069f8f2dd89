//! The rows of the machine's table: the operation, the state of the record, and the reply.

use std::collections::BTreeSet;

use hapax_model::{TableRow, rows, settings};
use libtest_mimic::Failed;

/// Small settings that together reach all rows.
const ENOUGH: &[&str] = &[
    "hold",
    "operator-answer",
    "expiry-ledger",
    "late-owner",
    "bury",
    "retry-reopen",
    "clock-back",
    "retry",
    "payloads",
];

pub(crate) fn is_covered() -> Result<(), Failed> {
    let chosen = settings().filter(|listed| ENOUGH.contains(&listed.name));
    let met: BTreeSet<TableRow> = chosen.flat_map(|listed| rows(listed.setting)).collect();
    let missing: Vec<_> = TABLE.iter().filter(|(_, row)| !met.contains(row)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("no setting reaches {missing:?}").into()) }
}

/// Checks that every numbered row of the document is listed here, and that every listed number is in the document.
pub(crate) fn has_every_number() -> Result<(), Failed> {
    let documented: BTreeSet<&str> = DOCUMENT.lines().filter_map(row_number).collect();
    let listed: BTreeSet<&str> = TABLE.iter().map(|(number, _)| *number).chain(OUTSIDE.iter().copied()).collect();
    let different: Vec<_> = documented.symmetric_difference(&listed).collect();
    if different.is_empty() {
        Ok(())
    } else {
        Err(format!("in the document or here, but not in both: {different:?}").into())
    }
}

/// The number of a row: a capital letter and digits in the first cell.
fn row_number(line: &str) -> Option<&str> {
    let number = line.strip_prefix("| ")?.split(' ').next()?;
    let digits = number.strip_prefix(|first: char| first.is_ascii_uppercase())?;
    (!digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())).then_some(number)
}

/// The numbered table of the protocol.
const DOCUMENT: &str = include_str!("../../../../crates/core/src/machine/protocol.md");

/// Rows that these settings need not reach. Answers have no age in the model (C2). Two owners get the same token only
/// after a failover (C5, C7). No attempt completes with another payload than the record has (C9). The gate decides what
/// a lost completion returns (G). No setting is required to cancel on an absent record (X3). The model starts no
/// process (P).
const OUTSIDE: &[&str] = &["C2", "C5", "C7", "C9", "G1", "G2", "G3", "P1", "P2", "P3", "P4", "P5", "P6", "P7", "X3"];

/// Each row with its number in the document.
#[rustfmt::skip] // One row a line, as in the table.
const TABLE: &[(&str, TableRow)] = &[
    ("B1", TableRow("begin", "nothing", "granted")),
    ("B1", TableRow("begin", "expired", "granted")),
    ("B2", TableRow("begin", "completed", "mismatch")),
    ("B2", TableRow("begin", "live", "mismatch")),
    ("B2", TableRow("begin", "released", "mismatch")),
    ("B2", TableRow("begin", "indeterminate", "mismatch")),
    ("B3", TableRow("begin", "completed", "replay")),
    ("B4", TableRow("begin", "live own", "granted")),
    ("B4", TableRow("begin", "lapsed own", "granted")),
    ("B5", TableRow("begin", "live", "busy")),
    ("B6", TableRow("begin", "overlong", "busy")),
    ("B7", TableRow("begin", "lapsed", "taken over")),
    ("B7", TableRow("begin", "abandoned", "taken over")),
    ("B8", TableRow("begin", "lapsed", "indeterminate")),
    ("B8", TableRow("begin", "abandoned", "indeterminate")),
    ("B9", TableRow("begin", "indeterminate", "indeterminate")),
    ("B10", TableRow("begin", "dead", "dead")),
    ("B11", TableRow("begin", "released", "granted")),
    ("R2", TableRow("renew", "live own", "yes")),
    ("R2", TableRow("renew", "lapsed own", "yes")),
    ("R3", TableRow("renew", "live", "no")),
    ("R3", TableRow("renew", "completed", "no")),
    ("R1", TableRow("renew", "nothing", "no")),
    ("C6", TableRow("complete", "live own", "recorded")),
    ("C6", TableRow("complete", "lapsed own", "recorded")),
    ("C6", TableRow("complete", "indeterminate own", "recorded")),
    ("C6", TableRow("complete", "released own", "recorded")),
    ("C1", TableRow("complete", "nothing", "recorded")),
    ("C1", TableRow("complete", "expired", "recorded")),
    ("C3", TableRow("complete", "completed", "recorded")),
    ("C8", TableRow("complete", "released", "recorded")),
    ("C8", TableRow("complete", "dead", "recorded")),
    ("C8", TableRow("complete", "indeterminate", "recorded")),
    ("C8", TableRow("complete", "live", "recorded")),
    ("C4", TableRow("complete", "completed", "lost")),
    ("L1", TableRow("release", "live own", "yes")),
    ("L2", TableRow("release", "live own takeover", "yes")),
    ("L1", TableRow("release", "indeterminate own", "yes")),
    ("L3", TableRow("release", "indeterminate own takeover", "yes")),
    ("L4", TableRow("release", "released own", "yes")),
    ("L5", TableRow("release", "live", "no")),
    ("X1", TableRow("cancel", "live own", "yes")),
    ("X1", TableRow("cancel", "live own takeover", "yes")),
    ("X1", TableRow("cancel", "indeterminate own", "yes")),
    ("X1", TableRow("cancel", "released own", "yes")),
    ("X2", TableRow("cancel", "live", "no")),
    ("A1", TableRow("abandon", "live own", "yes")),
    ("A2", TableRow("abandon", "abandoned own", "yes")),
    ("A3", TableRow("abandon", "indeterminate own", "yes")),
    ("A4", TableRow("abandon", "live", "no")),
    ("D1", TableRow("bury", "live own", "yes")),
    ("D2", TableRow("bury", "indeterminate own", "yes")),
    ("D4", TableRow("bury", "indeterminate own takeover", "no")),
    ("D3", TableRow("bury", "dead own", "yes")),
    ("D4", TableRow("bury", "live", "no")),
    ("H1", TableRow("hold", "lapsed own", "yes")),
    ("H1", TableRow("hold", "abandoned own", "yes")),
    ("H2", TableRow("hold", "indeterminate own", "yes")),
    ("H3", TableRow("hold", "live own", "no")),
    ("V1", TableRow("resolve done", "indeterminate own", "yes")),
    ("V3", TableRow("resolve done", "completed", "yes")),
    ("V5", TableRow("resolve done", "completed", "no")),
    ("V2", TableRow("resolve not done", "indeterminate own", "yes")),
    ("V4", TableRow("resolve not done", "released own", "yes")),
    ("V5", TableRow("resolve not done", "live", "no")),
    ("O1", TableRow("reopen", "dead own", "yes")),
    ("O2", TableRow("reopen", "released", "yes")),
    ("O3", TableRow("reopen", "live", "no")),
];

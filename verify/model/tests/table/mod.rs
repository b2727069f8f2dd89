//! The rows of the machine's table: the operation, the state of the record, and the reply.

use std::collections::BTreeSet;

use hapax_model::{CheckedSetting, ProtocolRow, rows, settings};
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
    let of = |setting: &CheckedSetting| match setting {
        CheckedSetting::Protocol(setting) => rows(setting),
        CheckedSetting::Outbox(_) => BTreeSet::new(),
    };
    let met: BTreeSet<ProtocolRow> = chosen.flat_map(|listed| of(&listed.setting)).collect();
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

/// Rows that these settings need not reach. Answers have no age in the model (C2). No attempt completes after it buried
/// its record (C5), or with another payload than the record has (C8). The gate decides what a lost completion returns
/// (G). No setting is required to cancel on an absent record (X3). The model starts no
/// process (P), and no operator removes a record (U).
const OUTSIDE: &[&str] =
    &["C2", "C5", "C8", "G1", "G2", "G3", "P1", "P2", "P3", "P4", "P5", "P6", "P7", "U1", "U2", "U3", "U4", "X3"];

/// Each row with its number in the document.
#[rustfmt::skip] // One row a line, as in the table.
const TABLE: &[(&str, ProtocolRow)] = &[
    ("B1", ProtocolRow("begin", "nothing", "granted")),
    ("B1", ProtocolRow("begin", "expired", "granted")),
    ("B2", ProtocolRow("begin", "completed", "mismatch")),
    ("B2", ProtocolRow("begin", "live", "mismatch")),
    ("B2", ProtocolRow("begin", "released", "mismatch")),
    ("B2", ProtocolRow("begin", "indeterminate", "mismatch")),
    ("B3", ProtocolRow("begin", "completed", "replay")),
    ("B4", ProtocolRow("begin", "live own", "granted")),
    ("B4", ProtocolRow("begin", "lapsed own", "granted")),
    ("B5", ProtocolRow("begin", "live", "busy")),
    ("B6", ProtocolRow("begin", "overlong", "busy")),
    ("B7", ProtocolRow("begin", "lapsed", "taken over")),
    ("B7", ProtocolRow("begin", "abandoned", "taken over")),
    ("B8", ProtocolRow("begin", "lapsed", "indeterminate")),
    ("B8", ProtocolRow("begin", "abandoned", "indeterminate")),
    ("B9", ProtocolRow("begin", "indeterminate", "indeterminate")),
    ("B10", ProtocolRow("begin", "dead", "dead")),
    ("B11", ProtocolRow("begin", "released", "granted")),
    ("R2", ProtocolRow("renew", "live own", "yes")),
    ("R2", ProtocolRow("renew", "lapsed own", "yes")),
    ("R3", ProtocolRow("renew", "live", "no")),
    ("R3", ProtocolRow("renew", "completed", "no")),
    ("R1", ProtocolRow("renew", "nothing", "no")),
    ("C6", ProtocolRow("complete", "live own", "recorded")),
    ("C6", ProtocolRow("complete", "lapsed own", "recorded")),
    ("C6", ProtocolRow("complete", "indeterminate own", "recorded")),
    ("C6", ProtocolRow("complete", "released own", "recorded")),
    ("C1", ProtocolRow("complete", "nothing", "recorded")),
    ("C1", ProtocolRow("complete", "expired", "recorded")),
    ("C3", ProtocolRow("complete", "completed", "recorded")),
    ("C7", ProtocolRow("complete", "released", "recorded")),
    ("C7", ProtocolRow("complete", "dead", "recorded")),
    ("C7", ProtocolRow("complete", "indeterminate", "recorded")),
    ("C7", ProtocolRow("complete", "live", "recorded")),
    ("C4", ProtocolRow("complete", "completed", "lost")),
    ("L1", ProtocolRow("release", "live own", "yes")),
    ("L2", ProtocolRow("release", "live own takeover", "yes")),
    ("L1", ProtocolRow("release", "indeterminate own", "yes")),
    ("L3", ProtocolRow("release", "indeterminate own takeover", "yes")),
    ("L4", ProtocolRow("release", "released own", "yes")),
    ("L5", ProtocolRow("release", "live", "no")),
    ("X1", ProtocolRow("cancel", "live own", "yes")),
    ("X1", ProtocolRow("cancel", "live own takeover", "yes")),
    ("X1", ProtocolRow("cancel", "indeterminate own", "yes")),
    ("X1", ProtocolRow("cancel", "released own", "yes")),
    ("X2", ProtocolRow("cancel", "live", "no")),
    ("A1", ProtocolRow("abandon", "live own", "yes")),
    ("A2", ProtocolRow("abandon", "abandoned own", "yes")),
    ("A3", ProtocolRow("abandon", "indeterminate own", "yes")),
    ("A4", ProtocolRow("abandon", "live", "no")),
    ("D1", ProtocolRow("bury", "live own", "yes")),
    ("D2", ProtocolRow("bury", "indeterminate own", "yes")),
    ("D4", ProtocolRow("bury", "indeterminate own takeover", "no")),
    ("D3", ProtocolRow("bury", "dead own", "yes")),
    ("D4", ProtocolRow("bury", "live", "no")),
    ("H1", ProtocolRow("hold", "lapsed own", "yes")),
    ("H1", ProtocolRow("hold", "abandoned own", "yes")),
    ("H2", ProtocolRow("hold", "indeterminate own", "yes")),
    ("H3", ProtocolRow("hold", "live own", "no")),
    ("V1", ProtocolRow("resolve done", "indeterminate own", "yes")),
    ("V3", ProtocolRow("resolve done", "completed", "yes")),
    ("V5", ProtocolRow("resolve done", "completed", "no")),
    ("V2", ProtocolRow("resolve not done", "indeterminate own", "yes")),
    ("V4", ProtocolRow("resolve not done", "released own", "yes")),
    ("V5", ProtocolRow("resolve not done", "live", "no")),
    ("O1", ProtocolRow("reopen", "dead own", "yes")),
    ("O2", ProtocolRow("reopen", "released", "yes")),
    ("O3", ProtocolRow("reopen", "live", "no")),
];

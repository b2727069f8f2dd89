//! The rows of the machine's table, as what was asked, what stood there, and what was replied.

use std::collections::BTreeSet;

use hapax_model::{Row, rows, settings};
use libtest_mimic::Failed;

/// Small settings that come to all of them.
const ENOUGH: &[&str] =
    &["hold", "own-words", "expiry-ledger", "late-owner", "bury", "retry-reopen", "clock-back", "retry", "payloads"];

pub(crate) fn is_walked_through() -> Result<(), Failed> {
    let chosen = settings().filter(|listed| ENOUGH.contains(&listed.name));
    let met: BTreeSet<Row> = chosen.flat_map(|listed| rows(listed.setting)).collect();
    let missing: Vec<_> = TABLE.iter().filter(|row| !met.contains(row)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("no setting comes to {missing:?}").into()) }
}

#[rustfmt::skip] // One a line, as in the table.
const TABLE: &[Row] = &[
    Row("begin", "nothing", "granted"),
    Row("begin", "expired", "granted"),
    Row("begin", "completed", "mismatch"),
    Row("begin", "live", "mismatch"),
    Row("begin", "released", "mismatch"),
    Row("begin", "indeterminate", "mismatch"),
    Row("begin", "completed", "replay"),
    Row("begin", "live own", "granted"),
    Row("begin", "lapsed own", "granted"),
    Row("begin", "live", "busy"),
    Row("begin", "overlong", "busy"),
    Row("begin", "lapsed", "taken over"),
    Row("begin", "abandoned", "taken over"),
    Row("begin", "lapsed", "indeterminate"),
    Row("begin", "abandoned", "indeterminate"),
    Row("begin", "indeterminate", "indeterminate"),
    Row("begin", "dead", "dead"),
    Row("begin", "released", "granted"),
    Row("renew", "live own", "yes"),
    Row("renew", "lapsed own", "yes"),
    Row("renew", "live", "no"),
    Row("renew", "completed", "no"),
    Row("renew", "nothing", "no"),
    Row("complete", "live own", "recorded"),
    Row("complete", "lapsed own", "recorded"),
    Row("complete", "indeterminate own", "recorded"),
    Row("complete", "released own", "recorded"),
    Row("complete", "nothing", "recorded"),
    Row("complete", "expired", "recorded"),
    Row("complete", "completed", "recorded"),
    Row("complete", "released", "recorded"),
    Row("complete", "dead", "recorded"),
    Row("complete", "indeterminate", "recorded"),
    Row("complete", "live", "recorded"),
    Row("complete", "completed", "lost"),
    Row("release", "live own", "yes"),
    Row("release", "live own takeover", "yes"),
    Row("release", "indeterminate own", "yes"),
    Row("release", "indeterminate own takeover", "yes"),
    Row("release", "released own", "yes"),
    Row("release", "live", "no"),
    Row("cancel", "live own", "yes"),
    Row("cancel", "live own takeover", "yes"),
    Row("cancel", "indeterminate own", "yes"),
    Row("cancel", "released own", "yes"),
    Row("cancel", "live", "no"),
    Row("abandon", "live own", "yes"),
    Row("abandon", "abandoned own", "yes"),
    Row("abandon", "indeterminate own", "yes"),
    Row("abandon", "live", "no"),
    Row("bury", "live own", "yes"),
    Row("bury", "indeterminate own", "yes"),
    Row("bury", "indeterminate own takeover", "no"),
    Row("bury", "dead own", "yes"),
    Row("bury", "live", "no"),
    Row("hold", "lapsed own", "yes"),
    Row("hold", "abandoned own", "yes"),
    Row("hold", "indeterminate own", "yes"),
    Row("hold", "live own", "no"),
    Row("resolve done", "indeterminate own", "yes"),
    Row("resolve done", "completed", "yes"),
    Row("resolve done", "completed", "no"),
    Row("resolve not done", "indeterminate own", "yes"),
    Row("resolve not done", "released own", "yes"),
    Row("resolve not done", "live", "no"),
    Row("reopen", "dead own", "yes"),
    Row("reopen", "released", "yes"),
    Row("reopen", "live", "no"),
];

//! Tests for one store only, which the conformance suite cannot cover.

#![expect(clippy::unwrap_used, reason = "a panic fails the test")]

mod disk;
mod groups;
mod ledger_behind_gate;
mod ledger_faults;
mod ledger_log;
mod ledger_sweep;
mod ledger_unavailable;
#[cfg(target_os = "linux")]
mod moved_files;
mod openings;
mod outbox;
mod queue;
mod redrive;
mod sink;
mod sqlite;
mod sqlx;
mod turns;
mod worker;

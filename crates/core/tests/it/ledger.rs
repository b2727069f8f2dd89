//! The ledger without a database: its decisions row by row, and its batches over rows in memory.

mod batch;
mod caught;
mod memory;
mod order;
mod random;
mod rows;
mod rules;
mod terms;

use bytes::Bytes;
use hapax_core::ledger::{Call, LedgerVerdict, Row, Terms, Work};
use hapax_core::{Fingerprint, OperationId, Rule};

const PAYLOAD: Fingerprint = Fingerprint::from_parts(Rule(2), [2; 12]);
const OTHER_PAYLOAD: Fingerprint = Fingerprint::from_parts(Rule(2), [3; 12]);

fn operation(n: u16) -> OperationId {
    let mut bytes = [7; 16];
    bytes[..2].copy_from_slice(&n.to_be_bytes());
    OperationId::from_bytes(bytes)
}

fn call(n: u16) -> Call {
    Call::new(operation(n)).fingerprint(PAYLOAD)
}

/// A call whose order does not matter.
fn work(n: u16) -> Work {
    Work { call: call(n), ordering_key: None, is_redelivered: false }
}

fn ordered(n: u16, key: &'static str) -> Work {
    Work { call: call(n), ordering_key: Some(Bytes::from_static(key.as_bytes())), is_redelivered: false }
}

fn terms() -> Terms {
    Terms::new("transfers").unwrap()
}

fn row(answer: &'static str, transaction: Option<u64>) -> Row {
    Row {
        fingerprint: PAYLOAD,
        verdict: LedgerVerdict::Applied,
        answer: Bytes::from_static(answer.as_bytes()),
        transaction,
    }
}

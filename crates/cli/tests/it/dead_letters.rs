//! Dead letters for the tests of `hapax dead`.

use std::sync::Arc;

use hapax::broker::{DeadCause, DeadLetter, DeadLetterId, DeadReason, Headers, Message};
use hapax::{Fingerprint, Timestamp};
use serde_json::Value;

pub(crate) const SOURCE: &str = "sqlite/0123456789abcdef/orders";

pub(crate) fn letter(n: u8, reason: DeadReason) -> DeadLetter {
    let mut headers = Headers::default();
    headers.push("Idempotency-Key", format!("order-{n}"));
    headers.push("binary", vec![0xff, n]);
    DeadLetter {
        id: DeadLetterId::from_bytes([n; 16]),
        reason,
        attempts: 8,
        cause: DeadCause::new("the target answered 503 Service Unavailable"),
        namespace: "billing".into(),
        source: SOURCE.into(),
        operation: None,
        fingerprint: Fingerprint::NONE,
        message: Arc::new(Message { payload: "top secret".into(), headers, ..Message::default() }),
        at: Timestamp(1_700_000_000_123_000 + u64::from(n) * 1_000_000),
    }
}

pub(crate) fn id(n: u8) -> String {
    DeadLetterId::from_bytes([n; 16]).to_string()
}

/// The objects of a printed list.
pub(crate) fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

//! Different keys never share a record.

use hapax_core::machine::Completed;
use hapax_core::{RecordKey, State};

use super::operation::*;
use crate::setup::Setup;

pub(super) async fn keys_differ_by_case(setup: &dyn Setup) {
    assert_separate(setup, ["Order", "order", "ORDER"].map(of_text)).await;
    assert_separate(setup, [[b'A'; 16], [b'a'; 16]].map(RecordKey::from_bytes)).await;
}

pub(super) async fn keys_differ_by_trailing_space(setup: &dyn Setup) {
    assert_separate(setup, ["order", "order ", "order  ", " order"].map(of_text)).await;
    let padded = |with| {
        let mut bytes = [with; 16];
        bytes[..8].copy_from_slice(b"order no");
        RecordKey::from_bytes(bytes)
    };
    assert_separate(setup, [padded(b' '), padded(0)]).await;
}

pub(super) async fn keys_differ_by_unicode_form(setup: &dyn Setup) {
    assert_separate(setup, ["caf\u{e9}", "cafe\u{301}", "cafe"].map(of_text)).await;
}

pub(super) async fn keys_differ_by_tenant(setup: &dyn Setup) {
    let tenants = [("acme", "1-order"), ("acme1", "-order"), ("emca", "1-order")];
    let of_tenant = |(tenant, key): (&str, &str)| scoped("conformance", tenant, key.as_bytes());
    assert_separate(setup, tenants.map(of_tenant)).await;
}

pub(super) async fn keys_with_nul_and_emoji(setup: &dyn Setup) {
    let keys = ["a", "a\0", "a\0b", "\0a", "\0", "\u{1F469}\u{200D}\u{1F680}", "\u{1F469}"];
    assert_separate(setup, keys.map(of_text)).await;
    // Record keys that begin or end with NUL, or are not text.
    let first = |byte| {
        let mut bytes = [0; 16];
        bytes[0] = byte;
        RecordKey::from_bytes(bytes)
    };
    let not_text = RecordKey::from_bytes([0xFF; 16]);
    assert_separate(setup, [first(0), first(1), first(0x80), not_text]).await;
}

pub(super) async fn key_255_bytes(setup: &dyn Setup) {
    let long = |last| {
        let mut key = [b'k'; 255];
        key[254] = last;
        record_key(&key)
    };
    assert_separate(setup, [long(b'a'), long(b'b'), record_key(&[b'k'; 254])]).await;
}

pub(super) async fn namespace_isolation(setup: &dyn Setup) {
    let namespaces = [("payments", "x-order"), ("paymentsx", "-order"), ("Payments", "x-order")];
    let of_namespace = |(namespace, key): (&str, &str)| scoped(namespace, "acme", key.as_bytes());
    assert_separate(setup, namespaces.map(of_namespace)).await;
}

fn of_text(key: &str) -> RecordKey {
    record_key(key.as_bytes())
}

/// Each key is granted while all others are in progress, and each replays its own answer.
async fn assert_separate<const N: usize>(setup: &dyn Setup, keys: [RecordKey; N]) {
    let operations = keys.map(|rk| SuiteOperation::with_key(setup, rk));
    let mut grants = Vec::new();
    for operation in &operations {
        grants.push(operation.grant(FIRST).await);
    }
    for (n, (operation, grant)) in operations.iter().zip(&grants).enumerate() {
        let done = operation.complete(grant, &format!("answer {n}")).await;
        assert_eq!(done, Completed::Done);
    }
    for (n, operation) in operations.iter().enumerate() {
        operation.assert_replays(&format!("answer {n}")).await;
        let State::Completed(completion) = operation.record().await.state else {
            panic!("expected a completed record");
        };
        assert_eq!(completion.answer, format!("answer {n}"));
    }
}

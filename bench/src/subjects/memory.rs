use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use hapax_core::machine::{Begin, Claim, Complete, Lapse};
use hapax_core::runtime::Tokio;
use hapax_core::store::{Inserted, Memory, MemorySettings};
use hapax_core::{Call, Millis, Owner, Seconds, Store, Timestamp};

use crate::harness::{Subject, per_second};
use crate::subjects::FreshCalls;

const OPERATIONS: usize = 400_000;

/// Begin and complete on the memory store, without a gate.
pub(crate) fn store_alone() -> Subject {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let clock = runtime.block_on(async { Tokio::current() });
    let mut calls = FreshCalls::new();
    let run = move || {
        let store = Memory::with(Arc::new(clock.clone()), MemorySettings::default());
        let calls = calls.take(OPERATIONS);
        let answer = Bytes::from_static(b"{\"charge\":\"ch_0123456789\",\"amount\":500,\"status\":\"paid\"}");
        per_second(OPERATIONS, || {
            calls.iter().for_each(|call| cycle(&store, call, Owner([7; 16]), &answer));
            Ok(())
        })
    };
    Subject {
        name: "memory store alone",
        what: "begin + complete of a new key, one core",
        run: Box::new(run),
        limit: None,
    }
}

/// Sends the two store calls of a new key: begin and complete.
pub(crate) fn cycle(store: &Memory, call: &Call, owner: Owner, answer: &Bytes) {
    let rk = call.record_key();
    let begin = Begin {
        call: *call,
        owner,
        lease: Millis(30_000),
        unknown_retention: Seconds(2_592_000),
        on_lapse: Lapse::Hold,
    };
    let Some(Ok(Inserted::Granted(grant))) = store.begin(&begin).now_or_never() else {
        panic!("the store did not grant a new key at once")
    };
    let complete = Complete {
        claim: Claim::from(&grant),
        fingerprint: grant.fingerprint,
        answer: answer.clone(),
        retention: Seconds(86_400),
        ended: Timestamp(0),
        age: std::time::Duration::ZERO,
    };
    store.complete(&rk, &complete).now_or_never().expect("at once").expect("the completion is recorded");
}

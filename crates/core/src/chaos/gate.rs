//! What known bugs of the gate do. A module of the gate.

use std::sync::Arc;
use std::time::Duration;

use crate::gate::Gate;
use crate::gate::coalesce::{Leader, LeaderOutcome};
use crate::gate::outcome::{Answer, Failure, Recorded};
use crate::key::RecordKey;
use crate::machine::Complete;

/// `twin_told_early`: the followers get the answer before it is recorded.
pub(super) fn end_early<A: Answer>(leader: &mut Option<Leader>, returned: &Result<A, Failure<A>>) {
    if let (Ok(answer), Some(leader)) = (returned, leader.take()) {
        leader.end(|| LeaderOutcome::Answer { answer: answer.encode(), recorded: Recorded::Yes, expiry: None });
    }
}

/// `answer_before_record`: the answer is recorded after the caller has it.
pub(super) fn complete_later(gate: &Gate, rk: RecordKey, request: Complete) {
    let leases = Arc::clone(&gate.shared.leases);
    gate.shared.leases.spawn_attempt(async move {
        leases.runtime().sleep(Duration::from_millis(20)).await;
        drop(leases.call_store(|protocol| protocol.complete(&rk, &request)).await);
    });
}

//! Every decision about the end of a job, pure. The rows are numbered in [`rows.md`](self#the-rows).
#![doc = include_str!("rows.md")]

use std::time::Duration;

use crate::broker::{Capability, DeadReason, Verdict};
use crate::chaos;
use crate::ledger::rules::backoff;

/// What a worker does with the delivery of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryAction {
    /// It is finished: acknowledge it.
    Finish,
    /// Write a dead letter, then acknowledge it.
    Bury {
        /// Why.
        reason: DeadReason,
        /// How many attempts failed.
        attempts: u32,
    },
    /// Give it back to the broker, which delivers it again after this time.
    GiveBack(Duration),
    /// Keep it here and run it again after this time.
    Hold(Duration),
    /// Keep it here, and start nothing before this time has passed.
    PauseAll(Duration),
    /// Run it again, in a batch of its own.
    Alone,
}

/// A job that ended.
#[derive(Clone, Copy, Debug)]
pub struct EndedJob {
    /// Its verdict. None if the batch panicked.
    pub verdict: Option<Verdict>,
    /// The number of jobs in its batch.
    pub jobs: usize,
    /// How often the job has panicked alone, this time included.
    pub panics: u32,
    /// Whether the message has an ordering key.
    pub has_order: bool,
}

/// Decides what happens to the delivery of a job.
pub fn action(ended: &EndedJob, capability: &Capability, max_panics: u32) -> DeliveryAction {
    let is_given_back = capability.redelivers && capability.delays && (!ended.has_order || capability.keeps_order);
    match ended.verdict {
        Some(Verdict::Done { .. }) => DeliveryAction::Finish, // A1
        Some(Verdict::DeadLetter { reason, attempts }) => DeliveryAction::Bury { reason, attempts }, // A2
        Some(Verdict::Busy { .. }) if chaos::on("acknowledge_busy") => DeliveryAction::Finish,
        Some(Verdict::Busy { after } | Verdict::Retry { after }) if is_given_back => {
            DeliveryAction::GiveBack(after) // A3
        }
        Some(Verdict::Busy { after } | Verdict::Retry { after }) => DeliveryAction::Hold(after), // A4
        Some(Verdict::Pause { after }) => DeliveryAction::PauseAll(after),                       // A5
        None if chaos::on("panic_drops_message") => DeliveryAction::Finish,
        None if ended.jobs > 1 => DeliveryAction::Alone, // A6
        None if ended.panics < max_panics => DeliveryAction::Hold(backoff(ended.panics)), // A7
        None => DeliveryAction::Bury { reason: DeadReason::OutcomeUnknown, attempts: ended.panics }, // A8
    }
}

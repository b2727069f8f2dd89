//! Every decision about a message and the end of its job, pure. The rows are numbered in [`rows.md`](self#the-rows).
#![doc = include_str!("rows.md")]

use std::time::Duration;

use crate::broker::{Capability, DeadReason, Verdict};
use crate::chaos::Mutant;
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
#[derive(Clone, Debug)]
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
    match &ended.verdict {
        Some(Verdict::Done { .. }) => DeliveryAction::Finish, // A1
        Some(Verdict::DeadLetter { reason, attempts, .. }) => {
            DeliveryAction::Bury { reason: *reason, attempts: *attempts } // A2
        }
        Some(Verdict::Busy { .. }) if Mutant::AcknowledgeBusy.is_on() => DeliveryAction::Finish,
        Some(Verdict::Busy { after } | Verdict::Retry { after }) if is_given_back => {
            DeliveryAction::GiveBack(*after) // A3
        }
        Some(Verdict::Busy { after } | Verdict::Retry { after }) => DeliveryAction::Hold(*after), // A4
        Some(Verdict::Pause { after }) => DeliveryAction::PauseAll(*after),                       // A5
        None if Mutant::PanicDropsMessage.is_on() => DeliveryAction::Finish,
        None if ended.jobs > 1 => DeliveryAction::Alone, // A6
        None if ended.panics < max_panics => DeliveryAction::Hold(backoff(ended.panics)), // A7
        None => DeliveryAction::Bury { reason: DeadReason::OutcomeUnknown, attempts: ended.panics }, // A8
    }
}

/// So many deliveries are left when a worker gives a message up. A crash while it writes the dead letter spends one.
const SPARE_DELIVERIES: u32 = 2;

/// Why a message whose turn has come becomes a dead letter instead of running. None: it runs. `unidentified` is why it
/// has no usable key.
pub fn refusal(unidentified: Option<DeadReason>, attempt: Option<u32>, capability: &Capability) -> Option<DeadReason> {
    let last = capability.delivery_limit.map(|limit| limit.saturating_sub(SPARE_DELIVERIES));
    let is_last = last.zip(attempt).is_some_and(|(last, attempt)| attempt >= last);
    match unidentified {
        Some(reason) => Some(reason),                             // D1
        None if is_last => Some(DeadReason::DeliveriesExhausted), // D2
        None => None,                                             // D3
    }
}

/// The record of the message of a marked letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterRecord {
    /// There is no live record, or the message has no usable key.
    Absent,
    /// It is about another payload.
    Other,
    /// An attempt is in progress.
    Running,
    /// An attempt did not end, and its lease has expired.
    Lapsed,
    /// Its outcome is unknown.
    Indeterminate,
    /// Nothing was applied.
    Released,
    /// Nothing was applied, after too many attempts.
    Dead,
    /// The message was processed.
    Processed,
    /// Another answer is recorded: the message was rejected.
    Answered,
}

/// What happens to a marked letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedriveAction {
    /// Deliver its message.
    Deliver,
    /// Reopen the record, then deliver the message.
    Reopen,
    /// Resolve the record as not done, then deliver the message.
    Release,
    /// Record the message as processed, then remove the letter.
    Record,
    /// Remove the letter: its message was processed.
    Remove,
    /// Write the letter again, without its mark: an operator has to find out.
    BuryAgain,
    /// Try again later.
    Wait,
}

/// Decides what happens to a marked letter. `repeats` is whether an expired lease lets the message run again.
pub fn redrive(reason: DeadReason, record: LetterRecord, repeats: bool) -> RedriveAction {
    use LetterRecord::{Absent, Answered, Dead, Indeterminate, Lapsed, Other, Processed, Released, Running};
    let is_unknown = reason.is_unknown();
    match (reason, record) {
        (DeadReason::Done, Running) => RedriveAction::Wait, // E1
        (DeadReason::Done, Other | Processed | Answered) => RedriveAction::Remove, // E2
        (DeadReason::Done, Absent | Lapsed | Indeterminate | Released | Dead) => RedriveAction::Record, // E3
        (_, Processed) => RedriveAction::Remove,            // E4
        (_, Dead) => RedriveAction::Reopen,                 // E5
        (DeadReason::NotDone, Absent | Lapsed | Indeterminate) => RedriveAction::Release, // E6
        (DeadReason::NotDone, Running) => RedriveAction::BuryAgain, // E7
        (_, Running) if is_unknown => RedriveAction::Wait,  // E8
        (_, Lapsed) if is_unknown && repeats => RedriveAction::Deliver, // E9
        (_, Absent) if is_unknown && Mutant::RedriveWithoutRecordRuns.is_on() => RedriveAction::Deliver,
        (_, Absent | Other | Lapsed | Indeterminate) if is_unknown => RedriveAction::BuryAgain, // E10
        (_, Absent | Other | Running | Lapsed | Indeterminate | Released | Answered) => RedriveAction::Deliver, // E11
    }
}

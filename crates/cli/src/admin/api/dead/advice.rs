//! The advice to an operator about a dead letter, by its reason.

use hapax::broker::DeadReason;

/// The next step for a letter with this reason.
pub(super) const fn advice(reason: DeadReason) -> &'static str {
    match reason {
        DeadReason::AttemptsExhausted => "Every attempt failed and none had an effect. Find the cause, then redrive.",
        DeadReason::Rejected => {
            "The handler gave a final answer, and a redrive gets the same one. Correct the data and send a new \
             message, then drop this letter."
        }
        DeadReason::KeyMissing | DeadReason::KeyMalformed => {
            "The message has no key that can be used. Correct the sender, send the message with a key, and drop this \
             letter."
        }
        DeadReason::CallerUnknown => {
            "The message does not name its tenant. Correct the sender, send the message with a tenant, and drop this \
             letter."
        }
        DeadReason::KeyReused => {
            "The key was used for another payload. Find out which of the two is right, and send the other one with a \
             key of its own."
        }
        DeadReason::OutcomeUnknown => {
            "An attempt may have had its effect. Look at the effect, then redrive with your word: done or not done."
        }
        DeadReason::NotDone => "An operator said that it had no effect. Wait for its redrive.",
        DeadReason::Done => "An operator said that it was processed. Wait for its redrive, which records that.",
        DeadReason::RecordDamaged => {
            "The record cannot be read, and the operation may have had its effect. Restore the record, then redrive; \
             without it, look at the effect and redrive with your word."
        }
        DeadReason::DeliveriesExhausted => {
            "The broker would soon have dropped the message. Find out why no delivery was acknowledged, then redrive."
        }
        DeadReason::Unreadable => {
            "The message cannot be read, and a redrive ends the same way. Correct the sender, send the message again, \
             and drop this letter."
        }
    }
}

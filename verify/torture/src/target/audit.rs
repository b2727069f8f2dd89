//! The audit: what the service did and what the dead letters say, against what the policy promises.

use std::collections::BTreeMap;
use std::fmt;

use crate::target::TargetResult;
use crate::target::attempts::ServiceAttempt;
use crate::target::options::{LapsePolicy, MessageSource};
use crate::target::source::{account, number};

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageDamage {
    /// It has no effect, and no dead letter.
    Lost,
    /// Under `hold` it had its effect more than once.
    SecondEffect,
    /// Under `hold` it was sent again after an attempt whose outcome nobody knows.
    SentAfterUnknown,
    /// It was sent again although the worker knew that nothing was left to do.
    SentAfterTheEnd,
    /// Under `hold` an attempt had an unknown outcome, and no dead letter says `outcome-unknown`.
    UnknownWithoutLetter,
    /// It was rejected for good, and no dead letter says so.
    RejectedWithoutLetter,
    /// It has a dead letter whose reason nothing in the journal explains, and no fault.
    LetterWithoutCause,
    /// The service got a message that nobody sent.
    Unsent,
    /// Of a source in order, the service got it after a later one of its account.
    OutOfOrder,
}

/// A damage, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundMessageDamage {
    /// What is wrong.
    pub damage: MessageDamage,
    /// Where.
    pub place: String,
}

impl fmt::Display for FoundMessageDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.damage, self.place)
    }
}

/// Everything that is wrong under this policy.
pub fn audit(result: &TargetResult, policy: LapsePolicy) -> Vec<FoundMessageDamage> {
    let mut found = Vec::new();
    for key in &result.keys {
        let (attempts, letters) = (result.journal.of(key), result.letters.get(key).map_or(&[][..], Vec::as_slice));
        let mut damages = damages(attempts, letters, policy);
        if letters.iter().any(|reason| !has_cause(reason, attempts, result.journal.has_faults())) {
            damages.push(MessageDamage::LetterWithoutCause);
        }
        for damage in damages {
            found.push(FoundMessageDamage { damage, place: format!("{key}: {attempts:?}, dead letters {letters:?}") });
        }
    }
    let unsent = result.journal.keys().filter(|key| !result.keys.contains(key));
    found.extend(unsent.map(|key| FoundMessageDamage { damage: MessageDamage::Unsent, place: key.clone() }));
    if result.source == MessageSource::NatsInOrder {
        let late = out_of_order(result.journal.began());
        found.extend(late.map(|place| FoundMessageDamage { damage: MessageDamage::OutOfOrder, place }));
    }
    found
}

/// The messages that came after a later one of their accounts.
fn out_of_order(began: &[String]) -> impl Iterator<Item = String> {
    let mut last = BTreeMap::new();
    began.iter().filter_map(move |key| {
        let number = number(key)?;
        let last = last.entry(account(number)).or_insert(number);
        let earlier = std::mem::replace(last, number.max(*last));
        (number < earlier).then(|| format!("{key} came after order-{earlier}"))
    })
}

fn damages(attempts: &[ServiceAttempt], letters: &[String], policy: LapsePolicy) -> Vec<MessageDamage> {
    let effects = attempts.iter().filter(|attempt| attempt.has_effect).count();
    let has_letter = |reason: &str| letters.iter().any(|letter| letter == reason);
    let is_before = |what: fn(&ServiceAttempt) -> bool| attempts.iter().rev().skip(1).any(what);
    let is_rejected = attempts.last().is_some_and(|last| last.is_surely_final() && !last.has_effect);
    let mut found = Vec::new();
    let mut check = |is_wrong: bool, damage| found.extend(is_wrong.then_some(damage));
    check(effects == 0 && letters.is_empty(), MessageDamage::Lost);
    check(is_before(ServiceAttempt::is_surely_final), MessageDamage::SentAfterTheEnd);
    check(is_rejected && !has_letter("rejected"), MessageDamage::RejectedWithoutLetter);
    if policy == LapsePolicy::Hold {
        let is_unknown = attempts.iter().any(ServiceAttempt::is_unknown);
        check(effects > 1, MessageDamage::SecondEffect);
        check(is_before(ServiceAttempt::is_unknown), MessageDamage::SentAfterUnknown);
        check(is_unknown && !has_letter("outcome-unknown"), MessageDamage::UnknownWithoutLetter);
    }
    found
}

/// Whether an attempt explains a dead letter with this reason. A fault may hide an attempt from the journal, but none
/// follows one after which the worker knew that nothing was left to do.
fn has_cause(reason: &str, attempts: &[ServiceAttempt], has_faults: bool) -> bool {
    let may_be_hidden = has_faults && !attempts.iter().any(ServiceAttempt::is_surely_final);
    let is_unsure = |attempt: &ServiceAttempt| attempt.is_unknown() || attempt.is_touched;
    match reason {
        "rejected" => attempts.iter().any(ServiceAttempt::is_rejected),
        "outcome-unknown" => may_be_hidden || attempts.iter().any(is_unsure),
        "attempts-exhausted" => attempts.iter().any(|attempt| attempt.is_refused() || is_unsure(attempt)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(has_effect: bool, status: Option<u16>) -> ServiceAttempt {
        ServiceAttempt { began: 1, has_effect, answer: status.map(|status| (2, status)), is_touched: false }
    }

    #[test]
    fn each_damage_is_found_and_nothing_else() {
        use LapsePolicy::{Hold, Retry};
        use MessageDamage as Damage;
        let (done, cut, refused) = (attempt(true, Some(201)), attempt(true, None), attempt(false, Some(429)));
        let touched = ServiceAttempt { is_touched: true, ..done.clone() };
        let rejected = attempt(false, Some(422));
        let unknown = ["outcome-unknown".to_owned()];
        for (attempts, letters, policy, expected) in [
            (vec![done.clone()], &[][..], Hold, vec![]),
            (vec![refused, done.clone()], &[], Hold, vec![]),
            (vec![], &[], Hold, vec![Damage::Lost]),
            (vec![cut.clone()], &unknown, Hold, vec![]),
            (vec![cut.clone()], &[], Hold, vec![Damage::UnknownWithoutLetter]),
            (vec![cut.clone(), done.clone()], &unknown, Hold, vec![Damage::SecondEffect, Damage::SentAfterUnknown]),
            (vec![cut, done.clone()], &[], Retry, vec![]),
            (vec![touched, done.clone()], &[], Retry, vec![]),
            (vec![done.clone(), done], &[], Retry, vec![Damage::SentAfterTheEnd]),
            (vec![rejected], &unknown, Retry, vec![Damage::RejectedWithoutLetter]),
        ] {
            assert_eq!(damages(&attempts, letters, policy), expected, "{attempts:?}");
        }
    }

    #[test]
    fn a_message_that_comes_after_a_later_one_of_its_account_is_found() {
        let began = |numbers: &[usize]| numbers.iter().map(|number| format!("order-{number}")).collect::<Vec<_>>();
        let found = |numbers: &[usize]| out_of_order(&began(numbers)).collect::<Vec<_>>();
        assert_eq!(found(&[0, 3, 1, 2, 2, 5, 4]), ["order-1 came after order-3"]);
        assert!(found(&[1, 0, 3, 3, 2, 5, 4]).is_empty());
    }

    #[test]
    fn a_letter_needs_an_attempt_or_a_fault_that_explains_it() {
        let (done, cut, failed) = (attempt(true, Some(201)), attempt(true, None), attempt(false, Some(500)));
        let (refused, rejected) = (attempt(false, Some(429)), attempt(false, Some(422)));
        let touched = ServiceAttempt { is_touched: true, ..done.clone() };
        for (reason, attempts, has_faults, expected) in [
            ("outcome-unknown", vec![refused.clone(), cut.clone()], false, true),
            ("outcome-unknown", vec![failed], false, true),
            ("outcome-unknown", vec![touched.clone()], true, true),
            ("outcome-unknown", vec![], true, true),
            ("outcome-unknown", vec![refused.clone()], true, true),
            ("outcome-unknown", vec![], false, false),
            ("outcome-unknown", vec![refused.clone()], false, false),
            ("outcome-unknown", vec![done.clone()], true, false),
            ("outcome-unknown", vec![rejected.clone()], true, false),
            ("rejected", vec![refused.clone(), rejected], false, true),
            ("rejected", vec![cut.clone()], true, false),
            ("rejected", vec![], true, false),
            ("attempts-exhausted", vec![refused], false, true),
            ("attempts-exhausted", vec![cut], false, true),
            ("attempts-exhausted", vec![done], true, false),
            ("attempts-exhausted", vec![], true, false),
            ("record-damaged", vec![touched], true, false),
        ] {
            assert_eq!(has_cause(reason, &attempts, has_faults), expected, "{reason} {has_faults} {attempts:?}");
        }
    }
}

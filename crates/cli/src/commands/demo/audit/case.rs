//! One payment before the audit.

use super::super::answer::{Answer, Told};
use super::super::note::{Exchange, Note};
use super::super::service::Charge;
use super::super::traffic::Asked;
use super::Damage;

/// A payment: what its client was told, and what was charged.
#[derive(Debug)]
pub(super) struct Case<'a> {
    pub(super) note: &'a Note,
    pub(super) charges: Vec<Charge>,
}

impl Case<'_> {
    /// The number of the payment.
    pub(super) fn number(&self) -> u32 {
        self.note.payment.number
    }

    /// The answer that settled the payment: all later ones must repeat it.
    pub(super) fn told(&self) -> Option<&Told> {
        self.settled().and_then(|exchange| exchange.answer.told())
    }

    /// Whether the client was told that nobody knows the outcome.
    pub(super) fn was_unknown(&self) -> bool {
        self.note.about(Asked::Order).any(|exchange| exchange.answer == Answer::OutcomeUnknown)
    }

    /// What is wrong with an answer to the order itself.
    pub(super) fn wrong(&self, exchange: &Exchange) -> Option<(Damage, String)> {
        let answer = &exchange.answer;
        match answer {
            Answer::Told(told) if self.is_first(exchange) => self.wrong_in_the_log(told),
            Answer::Told(told) => Some((Damage::Wrong, self.contradiction(told)?)),
            Answer::OutcomeUnknown if self.was_settled_before(exchange) => {
                let what = "told that the outcome is unknown, after it had been told the outcome";
                Some((Damage::Wrong, what.to_owned()))
            }
            Answer::KeyReused | Answer::Other(_) if answer.is_final() => {
                Some((Damage::Wrong, format!("answered {answer}")))
            }
            Answer::OutcomeUnknown
            | Answer::KeyReused
            | Answer::Other(_)
            | Answer::InProgress
            | Answer::HungUp
            | Answer::Broken
            | Answer::NotSent => None,
        }
    }

    fn settled(&self) -> Option<&Exchange> {
        self.note.about(Asked::Order).find(|exchange| exchange.answer.told().is_some())
    }

    fn is_first(&self, exchange: &Exchange) -> bool {
        self.settled().is_some_and(|first| std::ptr::eq(first, exchange))
    }

    /// A later moment of hearing proves nothing: the answer may have been given before. Only the request counts. Nor does an answer
    /// whose record is pending: it is recorded as soon as it can be, and no sooner.
    fn was_settled_before(&self, exchange: &Exchange) -> bool {
        let is_recorded = |settled: &Exchange| settled.answer.told().is_some_and(|told| !told.pending);
        let mut recorded = self.note.about(Asked::Order).filter(|settled| is_recorded(settled));
        recorded.any(|settled| settled.heard < exchange.sent)
    }

    fn contradiction(&self, told: &Told) -> Option<String> {
        let first = self.told()?;
        if (first.status, &first.body) == (told.status, &told.body) {
            return None;
        }
        Some(format!("told {}, and another time {}", text(first), text(told)))
    }

    fn wrong_in_the_log(&self, told: &Told) -> Option<(Damage, String)> {
        let text = text(told);
        if !told.is_charged() {
            let what = || (Damage::Wrong, format!("told {text}, but {} made", ids(&self.charges)));
            return (!self.charges.is_empty()).then(what);
        }
        if self.charges.is_empty() {
            return Some((Damage::Lost, format!("told {text}, and nothing was charged")));
        }
        let receipt = serde_json::from_slice(&told.body).ok();
        let is_true = |charge: &Charge| charge.order == self.note.payment.order && receipt == Some(charge.receipt());
        if self.charges.iter().any(is_true) {
            return None;
        }
        Some((Damage::Wrong, format!("told {text}, but {} made", ids(&self.charges))))
    }
}

/// The charges by their ids.
pub(super) fn ids(charges: &[Charge]) -> String {
    let ids: Vec<&str> = charges.iter().map(|charge| charge.id.as_str()).collect();
    ids.join(", ")
}

fn text(told: &Told) -> String {
    let body = String::from_utf8_lossy(&told.body);
    format!("{} {body}", told.status.as_u16())
}

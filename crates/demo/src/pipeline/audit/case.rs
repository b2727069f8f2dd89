//! The audit of one client.

use std::collections::HashMap;

use serde_json::Value;

use super::{Audit, Damage, UnknownReason};
use crate::client_log::{ClientLog, Exchange};
use crate::pipeline::rows::{ChargeRow, RequestRow};
use crate::response::{ReceivedResponse, SettlingResponse};
use crate::traffic::{OrderVersion, PaymentOrder};

/// A client, the charges of its payment, and all requests.
pub(super) struct ClientCase<'a> {
    pub(super) log: &'a ClientLog,
    pub(super) charges: Vec<&'a ChargeRow>,
    pub(super) requests: &'a HashMap<i64, &'a RequestRow>,
}

impl ClientCase<'_> {
    /// Adds what this client shows to the audit.
    pub(super) fn judge(&self, audit: &mut Audit) {
        self.judge_charges(audit);
        let settling = self.settling();
        match settling.map(|exchange| &exchange.response) {
            Some(ReceivedResponse::Settling(answer)) if answer.is_charged() => {
                audit.accepted += 1;
                // The loss of a message is found where the messages are compared with the charges.
                if self.charges.is_empty() && !self.has_message() {
                    self.find(audit, Damage::Lost, "accepted, and never charged");
                }
                self.judge_origin(answer, audit);
            }
            Some(_) => {
                audit.declined += 1;
                if !self.charges.is_empty() {
                    self.find(audit, Damage::Wrong, "declined, and charged");
                }
            }
            None => self.judge_unsettled(audit),
        }
        self.judge_answers(settling, audit);
        if self.log.gave_up {
            self.find(audit, Damage::Stuck, "the client retried without a final answer");
        }
    }

    /// Compares all answers with the one that settled the payment.
    fn judge_answers(&self, settling: Option<&Exchange>, audit: &mut Audit) {
        let mut replaced = false;
        for exchange in &self.log.exchanges {
            match exchange.response.settling() {
                Some(answer) if is_replaced(settling, exchange) => {
                    replaced = true;
                    self.judge_origin(answer, audit);
                }
                Some(_) | None => {}
            }
            if let Some(what) = self.contradiction(settling, exchange) {
                self.find(audit, Damage::Wrong, &what);
            }
        }
        audit.replaced += u64::from(replaced);
    }

    /// The first answer that settles the payment, and its record is confirmed. All others must be the same.
    fn settling(&self) -> Option<&Exchange> {
        let answers = || self.log.exchanges_of(OrderVersion::Original).filter(|exchange| is_settled(exchange));
        let is_recorded = |exchange: &&Exchange| exchange.response.settling().is_some_and(|answer| !answer.is_pending);
        answers().find(is_recorded).or_else(|| answers().next())
    }

    fn judge_charges(&self, audit: &mut Audit) {
        let payment = &self.log.payment;
        if let [_, extra @ ..] = &self.charges[..]
            && !extra.is_empty()
        {
            self.find(audit, Damage::Duplicate, &format!("charged {} times", self.charges.len()));
            audit.excess_cents += extra.iter().map(|charge| charge.order.amount_cents).sum::<u64>();
        }
        if self.charges.iter().any(|charge| charge.order == payment.changed) {
            self.find(audit, Damage::Wrong, "the changed order under the same key was charged");
        }
        if self.charges.iter().any(|charge| charge.order != payment.order && charge.order != payment.changed) {
            self.find(audit, Damage::Wrong, "an order was charged that no client sent");
        }
    }

    /// Compares an answer that accepted the payment with the request that it names.
    fn judge_origin(&self, answer: &SettlingResponse, audit: &mut Audit) {
        if !answer.is_charged() {
            return;
        }
        let json: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let request = json.get("request").and_then(Value::as_i64).and_then(|id| self.requests.get(&id));
        let order = &self.log.payment.order;
        let is_own = PaymentOrder::read(&json).as_ref() == Some(order);
        if !is_own || request.is_none_or(|request| !request.is_enqueued || request.order != *order) {
            self.find(audit, Damage::Wrong, "the answer is not that of its request");
        }
    }

    fn has_message(&self) -> bool {
        let payment = self.log.payment.number;
        self.requests.values().any(|request| request.order.payment == payment && request.is_enqueued)
    }

    fn judge_unsettled(&self, audit: &mut Audit) {
        let is_told = |exchange: &Exchange| exchange.response == ReceivedResponse::OutcomeUnknown;
        let reason = match self.log.payment.leaves {
            Some(_) => UnknownReason::Left,
            None if self.log.exchanges_of(OrderVersion::Original).any(is_told) => UnknownReason::Told,
            None => return self.find(audit, Damage::Stuck, "the client has no final answer"),
        };
        *audit.unknown.entry((reason, !self.charges.is_empty())).or_default() += 1;
    }

    /// What is wrong with this answer, compared with the one that settled the payment.
    fn contradiction(&self, settling: Option<&Exchange>, exchange: &Exchange) -> Option<String> {
        let response = &exchange.response;
        match (exchange.version, response) {
            (OrderVersion::Original, ReceivedResponse::Settling(answer)) => {
                let first = settling?.response.settling()?;
                let is_same = (first.status, &first.body) == (answer.status, &answer.body);
                (!is_same && !is_replaced(settling, exchange))
                    .then(|| format!("two different answers, {} and {}", named(first), named(answer)))
            }
            (OrderVersion::Original, ReceivedResponse::OutcomeUnknown) => {
                let settling = settling.filter(|settled| settled.received_at < exchange.sent_at);
                let recorded = settling?.response.settling().filter(|answer| !answer.is_pending);
                recorded.map(|answer| format!("the outcome was reported as unknown after {answer}"))
            }
            (OrderVersion::Original, ReceivedResponse::KeyReused | ReceivedResponse::Other(_))
                if response.is_final() =>
            {
                Some(format!("unexpected answer {response}"))
            }
            (OrderVersion::Changed, ReceivedResponse::Settling(_) | ReceivedResponse::Other(_))
                if response.is_final() =>
            {
                Some(format!("the answer to the changed order was {response}"))
            }
            (
                OrderVersion::Original | OrderVersion::Changed,
                ReceivedResponse::Settling(_)
                | ReceivedResponse::InProgress
                | ReceivedResponse::OutcomeUnknown
                | ReceivedResponse::KeyReused
                | ReceivedResponse::Other(_)
                | ReceivedResponse::HungUp
                | ReceivedResponse::Broken
                | ReceivedResponse::NotSent,
            ) => None,
        }
    }

    fn find(&self, audit: &mut Audit, damage: Damage, what: &str) {
        audit.find(damage, format!("payment {}: {what}", self.log.payment.number));
    }
}

/// An answer with the request that it names.
fn named(answer: &SettlingResponse) -> String {
    let json: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let request = json.get("request").map(|request| format!(" as request {request}"));
    format!("{answer}{}", request.unwrap_or_default())
}

fn is_settled(exchange: &Exchange) -> bool {
    exchange.response.settling().is_some()
}

/// Whether another answer took the place of this one. It said of itself that it was not recorded yet, and it was sent
/// before the client knew the other one.
fn is_replaced(settling: Option<&Exchange>, exchange: &Exchange) -> bool {
    let answers = settling.and_then(|other| Some((other, other.response.settling()?, exchange.response.settling()?)));
    answers.is_some_and(|(other, settled, answer)| {
        let is_in_time = answer.is_pending && exchange.sent_at < other.received_at;
        exchange.version == OrderVersion::Original
            && is_in_time
            && settled.status == answer.status
            && settled.body != answer.body
    })
}

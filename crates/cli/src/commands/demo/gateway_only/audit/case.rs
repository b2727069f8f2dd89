//! The audit of one payment.

use super::super::service::Charge;
use super::GatewayDamage;
use crate::commands::demo::client_log::{ClientLog, Exchange};
use crate::commands::demo::response::{ReceivedResponse, SettlingResponse};
use crate::commands::demo::traffic::OrderVersion;

/// A payment with the log of its client and its charges.
#[derive(Debug)]
pub(super) struct PaymentCase<'a> {
    pub(super) log: &'a ClientLog,
    pub(super) charges: Vec<Charge>,
}

impl PaymentCase<'_> {
    /// Returns the number of the payment.
    pub(super) fn number(&self) -> u32 {
        self.log.payment.number
    }

    /// Returns the first response that settles the payment. Every later one must be the same.
    pub(super) fn settling(&self) -> Option<&SettlingResponse> {
        self.settling_exchange().and_then(|exchange| exchange.response.settling())
    }

    /// Whether a response said that the outcome is unknown.
    pub(super) fn has_unknown(&self) -> bool {
        self.log
            .exchanges_of(OrderVersion::Original)
            .any(|exchange| exchange.response == ReceivedResponse::OutcomeUnknown)
    }

    /// Returns the damage that a response to the original order shows, if it shows any.
    pub(super) fn find_wrong(&self, exchange: &Exchange) -> Option<(GatewayDamage, String)> {
        let response = &exchange.response;
        match response {
            ReceivedResponse::Settling(settling) if self.is_first(exchange) => self.contradict_log(settling),
            ReceivedResponse::Settling(settling) => Some((GatewayDamage::Wrong, self.contradict_first(settling)?)),
            ReceivedResponse::OutcomeUnknown if self.is_settled_before(exchange) => {
                let description = "outcome reported as unknown after a response that settled the payment";
                Some((GatewayDamage::Wrong, description.to_owned()))
            }
            ReceivedResponse::KeyReused | ReceivedResponse::Other(_) if response.is_final() => {
                Some((GatewayDamage::Wrong, format!("unexpected response {response}")))
            }
            ReceivedResponse::OutcomeUnknown
            | ReceivedResponse::KeyReused
            | ReceivedResponse::Other(_)
            | ReceivedResponse::InProgress
            | ReceivedResponse::HungUp
            | ReceivedResponse::Broken
            | ReceivedResponse::NotSent => None,
        }
    }

    fn settling_exchange(&self) -> Option<&Exchange> {
        self.log.exchanges_of(OrderVersion::Original).find(|exchange| exchange.response.settling().is_some())
    }

    fn is_first(&self, exchange: &Exchange) -> bool {
        self.settling_exchange().is_some_and(|first| std::ptr::eq(first, exchange))
    }

    /// Whether a recorded response settled the payment before this request was sent. The time of the response does not
    /// count, since the gateway may have sent it earlier. A response whose record is pending does not count either,
    /// since it is recorded later.
    fn is_settled_before(&self, exchange: &Exchange) -> bool {
        let is_recorded = |settled: &Exchange| settled.response.settling().is_some_and(|response| !response.is_pending);
        let mut recorded = self.log.exchanges_of(OrderVersion::Original).filter(|settled| is_recorded(settled));
        recorded.any(|settled| settled.received_at < exchange.sent_at)
    }

    /// Compares a later response with the first one.
    fn contradict_first(&self, later: &SettlingResponse) -> Option<String> {
        let first = self.settling()?;
        if (first.status, &first.body) == (later.status, &later.body) {
            return None;
        }
        Some(format!("two different responses: {} and {}", text(first), text(later)))
    }

    /// Compares the first response with the log of the service.
    fn contradict_log(&self, first: &SettlingResponse) -> Option<(GatewayDamage, String)> {
        let text = text(first);
        let wrong =
            || (GatewayDamage::Wrong, format!("response {text}, but the charges are {}", charge_ids(&self.charges)));
        if !first.is_charged() {
            return (!self.charges.is_empty()).then(wrong);
        }
        if self.charges.is_empty() {
            return Some((GatewayDamage::Lost, format!("response {text}, but nothing was charged")));
        }
        let receipt = serde_json::from_slice(&first.body).ok();
        let is_true = |charge: &Charge| charge.order == self.log.payment.order && receipt == Some(charge.receipt());
        (!self.charges.iter().any(is_true)).then(wrong)
    }
}

/// Lists the ids of charges.
pub(super) fn charge_ids(charges: &[Charge]) -> String {
    let ids: Vec<&str> = charges.iter().map(|charge| charge.id.as_str()).collect();
    ids.join(", ")
}

fn text(response: &SettlingResponse) -> String {
    let body = String::from_utf8_lossy(&response.body);
    format!("{} {body}", response.status.as_u16())
}

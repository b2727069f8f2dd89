//! Compares the responses that clients received with the log of the payment service. It uses no other data.

mod case;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use super::service::Charge;
use crate::commands::demo::client_log::ClientLog;
use crate::commands::demo::response::ReceivedResponse;
use crate::commands::demo::traffic::OrderVersion;
use case::{PaymentCase, charge_ids};

/// The result of comparing all payments.
#[derive(Debug, Default)]
pub(super) struct GatewayAudit {
    /// The number of payments.
    pub(super) payments: u64,
    /// The number of requests that were sent.
    pub(super) requests: u64,
    /// The number of requests that could not be sent, because the connection was refused.
    pub(super) not_sent: u64,
    /// The number of responses of each kind.
    pub(super) responses: BTreeMap<String, u64>,
    /// The number of charges in the log.
    pub(super) charges: u64,
    /// The sum of all charges beyond the first of each payment, in cents.
    pub(super) excess_cents: u64,
    /// Payments that were charged once and confirmed to the client.
    pub(super) charged_once: u64,
    /// Payments that were declined and not charged.
    pub(super) declined: u64,
    /// Payments with an unknown outcome that were charged once.
    pub(super) unknown_charged: u64,
    /// Payments with an unknown outcome that were not charged.
    pub(super) unknown_not_charged: u64,
    /// Payments with an unknown outcome that were settled by a later response.
    pub(super) settled_late: u64,
    /// The damage that was found.
    pub(super) findings: Vec<GatewayFinding>,
}

/// One damage to one payment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GatewayFinding {
    pub(super) damage: GatewayDamage,
    /// The number of the payment.
    pub(super) payment: u32,
    pub(super) description: String,
}

/// The kinds of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GatewayDamage {
    /// A payment charged more than once.
    Duplicate,
    /// A confirmed payment that was never charged.
    Lost,
    /// A response or a charge that does not belong to the payment.
    Wrong,
    /// A payment with an unknown outcome although none of its requests was interrupted.
    Unexplained,
    /// A client without a final response.
    Stuck,
}

impl GatewayAudit {
    /// Compares the log of the payment service with the logs of the clients.
    pub(super) fn new(log: &str, client_logs: &[ClientLog]) -> Self {
        let mut audit = Self::default();
        let mut charges = audit.charges(log);
        for log in client_logs {
            let charges = charges.remove(&log.payment.number).unwrap_or_default();
            audit.count(log);
            audit.check(&PaymentCase { log, charges });
        }
        for (payment, charges) in charges {
            let description = format!("{} charged for a payment that no client made", charge_ids(&charges));
            audit.find(GatewayDamage::Wrong, payment, description);
        }
        audit.findings.sort_by_key(|finding| finding.payment);
        audit
    }

    /// Whether every payment was charged once, declined, or reported as unknown, and no response was wrong.
    pub(super) fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.damaged() == 0
    }

    /// Returns the number of payments with a finding.
    pub(super) fn damaged(&self) -> u64 {
        self.payments - self.charged_once - self.declined - self.unknown()
    }

    /// Returns the number of payments whose outcome was reported as unknown.
    pub(super) fn unknown(&self) -> u64 {
        self.unknown_charged + self.unknown_not_charged
    }

    /// Returns the findings of one kind.
    pub(super) fn findings_of(&self, damage: GatewayDamage) -> impl Iterator<Item = &GatewayFinding> {
        self.findings.iter().filter(move |finding| finding.damage == damage)
    }

    /// Groups the charges in the log by payment.
    fn charges(&mut self, log: &str) -> HashMap<u32, Vec<Charge>> {
        let mut charges: HashMap<u32, Vec<Charge>> = HashMap::new();
        for line in log.lines() {
            self.charges += 1;
            match Charge::read(line) {
                Some(charge) => charges.entry(charge.order.payment).or_default().push(charge),
                None => self.find(GatewayDamage::Wrong, 0, format!("the log has a malformed line: {line}")),
            }
        }
        charges
    }

    fn count(&mut self, log: &ClientLog) {
        self.payments += 1;
        for exchange in &log.exchanges {
            if exchange.response.is_sent() {
                self.requests += 1;
                *self.responses.entry(exchange.response.to_string()).or_default() += 1;
            } else {
                self.not_sent += 1;
            }
        }
    }

    fn check(&mut self, case: &PaymentCase<'_>) {
        let before = self.findings.len();
        self.find_duplicates(case);
        self.find_wrong_charges(case);
        self.find_wrong_responses(case);
        self.find_unexplained(case);
        self.find_stuck(case);
        if self.findings.len() == before {
            self.count_undamaged(case);
        }
    }

    /// Counts a payment without a finding.
    fn count_undamaged(&mut self, case: &PaymentCase<'_>) {
        match (case.settling(), case.charges.len()) {
            (Some(response), _) if response.is_charged() => self.charged_once += 1,
            (Some(_), _) => self.declined += 1,
            (None, 0) => self.unknown_not_charged += 1,
            (None, _) => self.unknown_charged += 1,
        }
        if case.settling().is_some() && case.has_unknown() {
            self.settled_late += 1;
        }
    }

    fn find_duplicates(&mut self, case: &PaymentCase<'_>) {
        let Some((_, extra)) = case.charges.split_first() else {
            return;
        };
        if !extra.is_empty() {
            let description = format!("charged {} times: {}", case.charges.len(), charge_ids(&case.charges));
            self.find(GatewayDamage::Duplicate, case.number(), description);
        }
        self.excess_cents += extra.iter().map(|charge| charge.order.amount_cents).sum::<u64>();
    }

    fn find_wrong_charges(&mut self, case: &PaymentCase<'_>) {
        let payment = &case.log.payment;
        for charge in case.charges.iter().filter(|charge| charge.order != payment.order) {
            let which = if charge.order == payment.changed {
                "the changed order under the same key"
            } else {
                "an order that no client sent"
            };
            self.find(GatewayDamage::Wrong, case.number(), format!("{} charged {which}", charge.id));
        }
    }

    fn find_wrong_responses(&mut self, case: &PaymentCase<'_>) {
        for exchange in case.log.exchanges_of(OrderVersion::Original) {
            if let Some((damage, description)) = case.find_wrong(exchange) {
                self.find(damage, case.number(), description);
            }
        }
        for exchange in case.log.exchanges_of(OrderVersion::Changed) {
            let allowed = [ReceivedResponse::KeyReused, ReceivedResponse::OutcomeUnknown];
            if exchange.response.is_final() && !allowed.contains(&exchange.response) {
                let description = format!("the response to the changed order was {}", exchange.response);
                self.find(GatewayDamage::Wrong, case.number(), description);
            }
        }
    }

    /// Finds unknown outcomes without a crash, a server error or a closed connection: there the gateway knows the
    /// outcome.
    fn find_unexplained(&mut self, case: &PaymentCase<'_>) {
        let explains = |response: &ReceivedResponse| match response {
            ReceivedResponse::Broken | ReceivedResponse::HungUp => true,
            ReceivedResponse::Other(other) => other.status.is_server_error(),
            ReceivedResponse::Settling(_)
            | ReceivedResponse::InProgress
            | ReceivedResponse::OutcomeUnknown
            | ReceivedResponse::KeyReused => false,
            ReceivedResponse::NotSent => false,
        };
        let is_explained = case.log.exchanges.iter().any(|exchange| explains(&exchange.response));
        if case.settling().is_none() && case.has_unknown() && !is_explained {
            let description = "outcome reported as unknown, although no request was interrupted".into();
            self.find(GatewayDamage::Unexplained, case.number(), description);
        }
    }

    fn find_stuck(&mut self, case: &PaymentCase<'_>) {
        let is_settled = case.settling().is_some() || case.has_unknown();
        if case.log.gave_up || !is_settled {
            let requests = case.log.requests();
            let description = format!("{requests} requests without a final response");
            self.find(GatewayDamage::Stuck, case.number(), description);
        }
    }

    fn find(&mut self, damage: GatewayDamage, payment: u32, description: String) {
        self.findings.push(GatewayFinding { damage, payment, description });
    }
}

//! Compares what the clients were told with the charges and receipts, and each of them with the next one.

mod case;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};

use self::case::ClientCase;
use super::collected::Collected;
use super::rows::{ChargeRow, ReceiptRow, RequestRow};

/// The result of an audit.
#[derive(Debug, Default)]
pub(super) struct Audit {
    /// Payments that the client was told are accepted.
    pub(super) accepted: u64,
    /// Payments that were declined.
    pub(super) declined: u64,
    /// Payments whose outcome the client does not know, by the reason and by whether it was charged.
    pub(super) unknown: BTreeMap<(UnknownReason, bool), u64>,
    /// Payments with an answer that was given before it was recorded, and another one that was recorded.
    pub(super) replaced: u64,
    /// The sum of all charges beyond the first of each payment, in cents.
    pub(super) excess_cents: u64,
    /// The damage that was found.
    pub(super) findings: Vec<AuditFinding>,
}

/// Why a client does not know the outcome of its payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum UnknownReason {
    /// It closed its connection and never asked again.
    Left,
    /// It was told that the outcome is unknown.
    Told,
}

/// One damage.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AuditFinding {
    pub(super) damage: Damage,
    pub(super) description: String,
}

/// The kinds of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    /// A payment charged more than once, or a charge with more than one receipt.
    Duplicate,
    /// An accepted payment or a message without a charge, or a charge without a receipt.
    Lost,
    /// An answer, a charge or a receipt of another payment or amount.
    Wrong,
    /// A client without a final answer, or a message or event that never arrived.
    Stuck,
    /// A receipt of an account before that of an earlier charge.
    OutOfOrder,
}

impl Audit {
    /// Audits a run.
    pub(super) fn new(collected: &Collected) -> Self {
        let mut audit = Self::default();
        audit.compare_answers(collected);
        audit.find_lost_messages(collected);
        audit.compare_receipts(&collected.charges, &collected.receipts);
        audit.find_disorder(&collected.receipts);
        audit.find_stuck(collected);
        audit
    }

    /// Whether nothing was found.
    pub(super) fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// The findings of one kind.
    pub(super) fn findings_of(&self, damage: Damage) -> impl Iterator<Item = &AuditFinding> {
        self.findings.iter().filter(move |finding| finding.damage == damage)
    }

    /// The number of payments whose client does not know the outcome.
    pub(super) fn unknown(&self) -> u64 {
        self.unknown.values().sum()
    }

    /// Compares what each client was told with the charges of its payment.
    fn compare_answers(&mut self, collected: &Collected) {
        let requests: HashMap<i64, &RequestRow> = collected.requests.iter().map(|row| (row.id, row)).collect();
        let mut charges: HashMap<u32, Vec<&ChargeRow>> = HashMap::new();
        for charge in &collected.charges {
            charges.entry(charge.order.payment).or_default().push(charge);
        }
        for log in &collected.clients {
            let charges = charges.remove(&log.payment.number).unwrap_or_default();
            ClientCase { log, charges, requests: &requests }.judge(self);
        }
        for (payment, _) in charges {
            self.find(Damage::Wrong, format!("payment {payment}: charged, and no client made it"));
        }
    }

    /// Every message that was put into the queue has its charge, also if its client does not know the outcome.
    fn find_lost_messages(&mut self, collected: &Collected) {
        let mut charged: HashSet<&str> = collected.charges.iter().map(|charge| &*charge.operation).collect();
        for request in collected.requests.iter().filter(|request| request.is_enqueued) {
            // An operation is reported once, however many requests it had.
            if charged.insert(&request.operation) {
                let (payment, id) = (request.order.payment, request.id);
                self.find(Damage::Lost, format!("payment {payment}: the message of request {id} was never charged"));
            }
        }
    }

    /// Compares the charges with the receipts.
    fn compare_receipts(&mut self, charges: &[ChargeRow], receipts: &[ReceiptRow]) {
        let mut sent: HashMap<i64, Vec<&ReceiptRow>> = HashMap::new();
        for receipt in receipts {
            sent.entry(receipt.charge).or_default().push(receipt);
        }
        for charge in charges {
            let (id, payment) = (charge.id, charge.order.payment);
            let receipts = sent.remove(&id).unwrap_or_default();
            match receipts.len() {
                0 => self.find(Damage::Lost, format!("payment {payment}: no receipt for charge {id}")),
                1 => {}
                n => self.find(Damage::Duplicate, format!("payment {payment}: {n} receipts for charge {id}")),
            }
            if receipts.iter().any(|receipt| receipt.order != charge.order) {
                self.find(Damage::Wrong, format!("payment {payment}: the receipt for charge {id} is of another order"));
            }
        }
        for (charge, receipts) in sent {
            let payment = receipts[0].order.payment;
            self.find(Damage::Wrong, format!("payment {payment}: a receipt for charge {charge}, which does not exist"));
        }
    }

    /// The first receipts of an account's charges are in the order of the charges.
    fn find_disorder(&mut self, receipts: &[ReceiptRow]) {
        let mut newest: HashMap<&str, i64> = HashMap::new();
        for receipt in receipts {
            let newest = newest.entry(&receipt.account).or_insert(receipt.charge);
            if receipt.charge < *newest {
                let (account, charge) = (&receipt.account, receipt.charge);
                let description =
                    format!("{account}: the receipt for charge {charge} follows that for charge {newest}");
                self.find(Damage::OutOfOrder, description);
            }
            *newest = receipt.charge.max(*newest);
        }
    }

    fn find_stuck(&mut self, collected: &Collected) {
        let backlog = collected.backlog;
        let stuck = [
            (backlog.queue, "messages are in the queue of the workers"),
            (backlog.outbox, "events are in the outbox"),
            (backlog.broker, "events are in the queue of the consumers"),
            (collected.dead, "messages are dead letters"),
            (collected.parked, "ordering keys wait for an operator"),
        ];
        for (count, what) in stuck.into_iter().filter(|(count, _)| *count > 0) {
            self.find(Damage::Stuck, format!("{count} {what}"));
        }
    }

    fn find(&mut self, damage: Damage, description: String) {
        self.findings.push(AuditFinding { damage, description });
    }
}

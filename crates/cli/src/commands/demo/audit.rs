//! Holds what the clients were told against what the payment service wrote into its log. It asks nobody else.

mod case;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use super::answer::Answer;
use super::note::Note;
use super::service::Charge;
use super::traffic::Asked;
use case::{Case, ids};

/// What came of all payments.
#[derive(Debug, Default)]
pub(super) struct Audit {
    /// How many payments were to be made.
    pub(super) payments: u64,
    /// How many requests were sent for them.
    pub(super) requests: u64,
    /// How many requests could not even be sent.
    pub(super) not_sent: u64,
    /// The answers by kind.
    pub(super) answers: BTreeMap<String, u64>,
    /// How many charges the service made.
    pub(super) charges: u64,
    /// What was charged beyond one charge for each payment, in hundredths.
    pub(super) charged_too_much: u64,
    /// Payments charged once, whose client knows it.
    pub(super) charged_once: u64,
    /// Payments declined and not charged.
    pub(super) declined: u64,
    /// Payments reported as unknown that were charged once.
    pub(super) unknown_charged: u64,
    /// Payments reported as unknown that were not charged.
    pub(super) unknown_not_charged: u64,
    /// Payments first reported as unknown, whose client was told more later.
    pub(super) settled_late: u64,
    /// What must not be.
    pub(super) findings: Vec<Finding>,
}

/// Something that must not be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Of what kind.
    pub(super) damage: Damage,
    /// Which payment it happened to.
    pub(super) payment: u32,
    /// What happened.
    pub(super) what: String,
}

/// The kinds of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    /// A payment charged more than once.
    Duplicate,
    /// A client told of a charge that was never made.
    Lost,
    /// An answer, or a charge, that is not the one of the payment.
    Wrong,
    /// A payment reported as unknown although nothing had happened to it.
    Unexplained,
    /// A client left without an answer that settles its payment.
    Stuck,
}

impl Audit {
    /// Compares the log of the payment service with the notes of the clients.
    pub(super) fn new(log: &str, notes: &[Note]) -> Self {
        let mut audit = Self::default();
        let mut charges = audit.charges(log);
        for note in notes {
            let charges = charges.remove(&note.payment.number).unwrap_or_default();
            audit.count(note);
            audit.judge(&Case { note, charges });
        }
        for (payment, charges) in charges {
            let what = format!("{} made for a payment that nobody wanted", ids(&charges));
            audit.find(Damage::Wrong, payment, what);
        }
        audit.findings.sort_by_key(|finding| finding.payment);
        audit
    }

    /// Whether every payment was charged once, declined, or reported as unknown, and nobody was told anything wrong.
    pub(super) fn holds(&self) -> bool {
        self.findings.is_empty() && self.damaged() == 0
    }

    /// How many payments are neither charged once, nor declined, nor reported as unknown, or have more wrong with them.
    pub(super) fn damaged(&self) -> u64 {
        self.payments - self.charged_once - self.declined - self.unknown()
    }

    /// How many payments were reported as unknown.
    pub(super) fn unknown(&self) -> u64 {
        self.unknown_charged + self.unknown_not_charged
    }

    /// The findings of one kind.
    pub(super) fn found(&self, damage: Damage) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.damage == damage)
    }

    fn charges(&mut self, log: &str) -> HashMap<u32, Vec<Charge>> {
        let mut charges: HashMap<u32, Vec<Charge>> = HashMap::new();
        for line in log.lines() {
            self.charges += 1;
            match Charge::read(line) {
                Some(charge) => charges.entry(charge.order.payment).or_default().push(charge),
                None => self.find(Damage::Wrong, 0, format!("the log says: {line}")),
            }
        }
        charges
    }

    fn count(&mut self, note: &Note) {
        self.payments += 1;
        for exchange in &note.exchanges {
            if exchange.answer.was_sent() {
                self.requests += 1;
                *self.answers.entry(exchange.answer.to_string()).or_default() += 1;
            } else {
                self.not_sent += 1;
            }
        }
    }

    fn judge(&mut self, case: &Case<'_>) {
        let before = self.findings.len();
        self.find_duplicates(case);
        self.find_wrong_charges(case);
        self.find_wrong_answers(case);
        self.find_unexplained(case);
        self.find_stuck(case);
        if self.findings.len() == before {
            self.settle(case);
        }
    }

    /// Counts a payment to which nothing bad has happened.
    fn settle(&mut self, case: &Case<'_>) {
        match (case.told(), case.charges.len()) {
            (Some(told), _) if told.is_charged() => self.charged_once += 1,
            (Some(_), _) => self.declined += 1,
            (None, 0) => self.unknown_not_charged += 1,
            (None, _) => self.unknown_charged += 1,
        }
        if case.told().is_some() && case.was_unknown() {
            self.settled_late += 1;
        }
    }

    fn find_duplicates(&mut self, case: &Case<'_>) {
        let Some((_, extra)) = case.charges.split_first() else {
            return;
        };
        if !extra.is_empty() {
            let what = format!("charged {} times: {}", case.charges.len(), ids(&case.charges));
            self.find(Damage::Duplicate, case.number(), what);
        }
        self.charged_too_much += extra.iter().map(|charge| charge.order.amount_cents).sum::<u64>();
    }

    fn find_wrong_charges(&mut self, case: &Case<'_>) {
        let payment = &case.note.payment;
        for charge in case.charges.iter().filter(|charge| charge.order != payment.order) {
            let which = if charge.order == payment.changed {
                "the changed order under the same key"
            } else {
                "something that nobody ordered"
            };
            self.find(Damage::Wrong, case.number(), format!("{} charged {which}", charge.id));
        }
    }

    fn find_wrong_answers(&mut self, case: &Case<'_>) {
        for exchange in case.note.about(Asked::Order) {
            if let Some((damage, what)) = case.wrong(exchange) {
                self.find(damage, case.number(), what);
            }
        }
        for exchange in case.note.about(Asked::Changed) {
            let may_be = [Answer::KeyReused, Answer::OutcomeUnknown];
            if exchange.answer.is_final() && !may_be.contains(&exchange.answer) {
                let what = format!("the changed order was answered {}", exchange.answer);
                self.find(Damage::Wrong, case.number(), what);
            }
        }
    }

    /// A crash, an answer of the service that says nothing, or a client that went away: without one of them a gateway knows.
    fn find_unexplained(&mut self, case: &Case<'_>) {
        let explains = |answer: &Answer| match answer {
            Answer::Broken | Answer::HungUp => true,
            Answer::Other(other) => other.status.is_server_error(),
            Answer::Told(_) | Answer::InProgress | Answer::OutcomeUnknown | Answer::KeyReused => false,
            Answer::NotSent => false,
        };
        let explained = case.note.exchanges.iter().any(|exchange| explains(&exchange.answer));
        if case.told().is_none() && case.was_unknown() && !explained {
            let what = "reported as unknown, though no request for it was cut short".into();
            self.find(Damage::Unexplained, case.number(), what);
        }
    }

    fn find_stuck(&mut self, case: &Case<'_>) {
        let is_settled = case.told().is_some() || case.was_unknown();
        if case.note.gave_up || !is_settled {
            let requests = case.note.requests();
            let what = format!("{requests} requests, and none had an answer that settles it");
            self.find(Damage::Stuck, case.number(), what);
        }
    }

    fn find(&mut self, damage: Damage, payment: u32, what: String) {
        self.findings.push(Finding { damage, payment, what });
    }
}

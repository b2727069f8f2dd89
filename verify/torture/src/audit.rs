//! The audit: compares the journal of the client with the rows of the database. It shares the derivation of ids with
//! the engine, and nothing else.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use crate::bank::{BankEffect, BankRows};
use crate::journal::{DefiniteAnswer, Payload};
use crate::order::{FIRST_BALANCE, NAMESPACE, TransferOrder};

/// What is wrong with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TransferDamage {
    /// A transfer moved its money more than once.
    Duplicate,
    /// A transfer never got an answer that tells how it ended.
    Lost,
    /// A transfer still ran when the lease of every killed gateway had expired.
    Stuck,
    /// A transfer was answered, and its outcome is unknown to a later copy.
    Forgotten,
    /// A transfer was answered as done, and its money did not move.
    NoEffect,
    /// Money moved for nothing that was ordered.
    WrongEffect,
    /// A transfer was refused for good, though nothing was wrong with it.
    Refused,
    /// The answers of one transfer differ, or the answer is that of another one.
    WrongAnswer,
    /// A request with another payload under a used key got another answer than 422.
    PayloadAccepted,
    /// An account has another balance than the answers say.
    WrongBalance,
    /// The outbox lacks the event of an effect, or has one too many.
    WrongEvents,
    /// The ledger lacks the row of an effect, has one too many, or one with another answer.
    WrongEntries,
}

/// A damage, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDamage {
    /// What is wrong.
    pub damage: TransferDamage,
    /// Where.
    pub place: String,
}

impl fmt::Display for FoundDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.damage, self.place)
    }
}

/// What the audit compares.
#[derive(Debug)]
pub(crate) struct TransferAudit<'a> {
    pub(crate) orders: &'a [TransferOrder],
    /// The definite answers of each order.
    pub(crate) answers: &'a [Vec<DefiniteAnswer>],
    /// The numbers of the orders that still ran when every lease had expired.
    pub(crate) stuck: &'a BTreeSet<u32>,
    pub(crate) rows: &'a BankRows,
    /// Whether the service has a ledger.
    pub(crate) has_ledger: bool,
    /// Whether the gateways hold an operation whose outcome is unknown. It may then have its effect or not.
    pub(crate) is_held: bool,
}

/// What one operation left in the database.
#[derive(Debug, Default)]
struct OperationRows<'a> {
    effects: Vec<&'a BankEffect>,
    /// The answers of its finished rows in the ledger.
    entries: Vec<&'a str>,
    /// The ids and payloads of its events.
    events: Vec<(&'a str, &'a str)>,
}

impl TransferAudit<'_> {
    /// Everything that is wrong.
    pub(crate) fn run(&self) -> Vec<FoundDamage> {
        let mut found = Vec::new();
        let mut by_operation = self.rows_by_operation(&mut found);
        for (order, answers) in self.orders.iter().zip(self.answers) {
            let rows = by_operation.remove(&*order.operation().to_string()).unwrap_or_default();
            let mut damages = BTreeSet::new();
            self.check_answers(order, answers, &mut damages);
            self.check_rows(order, answers.iter().any(DefiniteAnswer::is_success), &rows, &mut damages);
            found.extend(damages.into_iter().map(|damage| FoundDamage { damage, place: describe(order, &rows) }));
        }
        for operation in by_operation.into_keys() {
            found.push(FoundDamage { damage: TransferDamage::WrongEffect, place: format!("operation {operation}") });
        }
        self.check_balances(&mut found);
        found
    }

    fn rows_by_operation(&self, found: &mut Vec<FoundDamage>) -> HashMap<&str, OperationRows<'_>> {
        let mut rows: HashMap<&str, OperationRows<'_>> = HashMap::new();
        for effect in &self.rows.effects {
            rows.entry(&effect.operation).or_default().effects.push(effect);
        }
        for entry in &self.rows.entries {
            if !entry.is_finished || entry.namespace != NAMESPACE {
                found.push(FoundDamage { damage: TransferDamage::WrongEntries, place: format!("{entry:?}") });
            }
            rows.entry(&entry.operation).or_default().entries.push(&entry.answer);
        }
        for event in &self.rows.events {
            rows.entry(&event.operation).or_default().events.push((&event.event, &event.payload));
        }
        rows
    }

    fn check_answers(&self, order: &TransferOrder, answers: &[DefiniteAnswer], damages: &mut BTreeSet<TransferDamage>) {
        let own = || answers.iter().filter(|answer| answer.payload == Payload::Own);
        if own().next().is_none() {
            damages.insert(TransferDamage::Lost);
        }
        if own().any(|answer| !(answer.is_success() || self.is_held && answer.is_unknown())) {
            damages.insert(TransferDamage::Refused);
        }
        if self.stuck.contains(&order.number) {
            damages.insert(TransferDamage::Stuck);
        }
        // A completion that waited in a journal may come after `outcome-unknown`, and the last copy after both.
        if own().any(DefiniteAnswer::is_success) && own().next_back().is_some_and(DefiniteAnswer::is_unknown) {
            damages.insert(TransferDamage::Forgotten);
        }
        // Every answer equals the only right one, so all are equal.
        if own().any(|answer| answer.is_success() && (answer.status != 201 || answer.body != order.answer())) {
            damages.insert(TransferDamage::WrongAnswer);
        }
        if answers.iter().any(|answer| answer.payload == Payload::Other && answer.status != 422) {
            damages.insert(TransferDamage::PayloadAccepted);
        }
    }

    fn check_rows(
        &self,
        order: &TransferOrder,
        is_answered: bool,
        rows: &OperationRows<'_>,
        damages: &mut BTreeSet<TransferDamage>,
    ) {
        let effects = rows.effects.len();
        if effects > 1 {
            damages.insert(TransferDamage::Duplicate);
        }
        if is_answered && effects == 0 {
            damages.insert(TransferDamage::NoEffect);
        }
        let ordered = (&order.payer, &order.payee, order.amount);
        if rows.effects.iter().any(|effect| (&effect.payer, &effect.payee, effect.amount) != ordered) {
            damages.insert(TransferDamage::WrongEffect);
        }
        if rows.events.len() != effects || rows.events.iter().any(|(_, payload)| *payload != order.answer()) {
            damages.insert(TransferDamage::WrongEvents);
        }
        if !self.has_ledger {
            return;
        }
        let event = order.operation().event(NAMESPACE, 0).to_string();
        if rows.events.iter().any(|(id, _)| *id != event) {
            damages.insert(TransferDamage::WrongEvents);
        }
        if rows.entries.len() != effects || rows.entries.iter().any(|answer| *answer != order.answer()) {
            damages.insert(TransferDamage::WrongEntries);
        }
    }

    /// Every account has the balance that the answered orders give it. Where the gateways hold orders, an order with an
    /// effect counts, too.
    fn check_balances(&self, found: &mut Vec<FoundDamage>) {
        let mut expected: BTreeMap<&str, i64> = BTreeMap::new();
        let effects: HashSet<&str> = self.rows.effects.iter().map(|effect| &*effect.operation).collect();
        for (order, answers) in self.orders.iter().zip(self.answers) {
            let has_effect = self.is_held && effects.contains(&*order.operation().to_string());
            if has_effect || answers.iter().any(DefiniteAnswer::is_success) {
                *expected.entry(&order.payer).or_insert(FIRST_BALANCE) -= order.amount;
                *expected.entry(&order.payee).or_insert(FIRST_BALANCE) += order.amount;
            }
        }
        for (account, expected) in expected {
            let balance = self.rows.balances.get(account);
            if balance != Some(&expected) {
                let place = format!("{account} has {balance:?} instead of {expected}");
                found.push(FoundDamage { damage: TransferDamage::WrongBalance, place });
            }
        }
    }
}

fn describe(order: &TransferOrder, rows: &OperationRows<'_>) -> String {
    let (effects, entries, events) = (rows.effects.len(), rows.entries.len(), rows.events.len());
    format!(
        "{} of {} ({}), operation {}: {effects} effects, {entries} entries, {events} events",
        order.key,
        order.caller,
        order.body(),
        order.operation()
    )
}

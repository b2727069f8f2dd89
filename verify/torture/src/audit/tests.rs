//! The audit finds every damage that is planted.

use super::*;
use crate::bank::{BankEntry, BankEvent};

/// A run without damage.
struct CleanRun {
    orders: Vec<TransferOrder>,
    answers: Vec<Vec<DefiniteAnswer>>,
    rows: BankRows,
}

impl CleanRun {
    fn new() -> Self {
        let orders: Vec<_> = (0..3).map(|number| TransferOrder::draw(7, number)).collect();
        let (mut rows, mut answers) = (BankRows::default(), Vec::new());
        for order in &orders {
            let (operation, answer) = (order.operation().to_string(), order.answer());
            *rows.balances.entry(order.payer.clone()).or_insert(FIRST_BALANCE) -= order.amount;
            *rows.balances.entry(order.payee.clone()).or_insert(FIRST_BALANCE) += order.amount;
            let (payer, payee) = (order.payer.clone(), order.payee.clone());
            rows.effects.push(BankEffect { operation: operation.clone(), payer, payee, amount: order.amount });
            let (namespace, event) = (NAMESPACE.to_owned(), order.operation().event(NAMESPACE, 0).to_string());
            rows.events.push(BankEvent { operation: operation.clone(), event, payload: answer.clone() });
            rows.entries.push(BankEntry { operation, namespace, is_finished: true, answer: answer.clone() });
            let answered = DefiniteAnswer { payload: Payload::Own, status: 201, body: answer };
            let refused = DefiniteAnswer { payload: Payload::Other, status: 422, body: "key-reused".into() };
            answers.push(vec![answered.clone(), answered, refused]);
        }
        Self { orders, answers, rows }
    }

    fn damages(&self) -> Vec<TransferDamage> {
        self.damages_of(&BTreeSet::new(), false)
    }

    fn damages_of(&self, stuck: &BTreeSet<u32>, is_held: bool) -> Vec<TransferDamage> {
        let (orders, answers, rows) = (&self.orders[..], &self.answers[..], &self.rows);
        let audit = TransferAudit { orders, answers, stuck, rows, has_ledger: true, is_held };
        audit.run().into_iter().map(|found| found.damage).collect()
    }
}

#[test]
fn a_run_without_damage_is_clean() {
    assert_eq!(CleanRun::new().damages(), []);
}

#[test]
fn the_audit_finds_every_planted_damage() {
    type Plant = fn(&mut CleanRun);
    let planted: &[(Plant, TransferDamage)] = &[
        (|run| run.rows.effects.push(run.rows.effects[1].clone()), TransferDamage::Duplicate),
        (|run| run.answers[1].retain(|answer| answer.payload == Payload::Other), TransferDamage::Lost),
        (|run| drop(run.rows.effects.remove(1)), TransferDamage::NoEffect),
        (|run| run.rows.effects[1].amount += 1, TransferDamage::WrongEffect),
        (|run| run.rows.effects[1].operation = "another".into(), TransferDamage::WrongEffect),
        (|run| run.answers[1][1].status = 422, TransferDamage::Refused),
        (|run| run.answers[1][1].status = 200, TransferDamage::WrongAnswer),
        (|run| run.answers[1][1].body.push(' '), TransferDamage::WrongAnswer),
        (|run| run.answers[1][0].body = run.orders[2].answer(), TransferDamage::WrongAnswer),
        (|run| run.answers[1][2].status = 201, TransferDamage::PayloadAccepted),
        (|run| *run.rows.balances.values_mut().next().expect("an account") += 1, TransferDamage::WrongBalance),
        (|run| drop(run.rows.events.remove(1)), TransferDamage::WrongEvents),
        (|run| run.rows.events.push(run.rows.events[1].clone()), TransferDamage::WrongEvents),
        (|run| run.rows.events[1].payload.clear(), TransferDamage::WrongEvents),
        (|run| run.rows.events[1].event = run.rows.events[2].event.clone(), TransferDamage::WrongEvents),
        (|run| drop(run.rows.entries.remove(1)), TransferDamage::WrongEntries),
        (|run| run.rows.entries[1].answer.clear(), TransferDamage::WrongEntries),
        (|run| run.rows.entries[1].is_finished = false, TransferDamage::WrongEntries),
        (|run| run.rows.entries[1].namespace = "other".into(), TransferDamage::WrongEntries),
    ];
    for (number, (plant, damage)) in planted.iter().enumerate() {
        let mut run = CleanRun::new();
        plant(&mut run);
        assert!(run.damages().contains(damage), "{number}: {damage:?} is not among {:?}", run.damages());
    }
}

#[test]
fn an_order_that_still_runs_after_every_lease_is_found() {
    assert_eq!(CleanRun::new().damages_of(&BTreeSet::from([1]), false), [TransferDamage::Stuck]);
}

/// The effect of such an order may be there or not, and its answer may come later.
#[test]
fn an_unknown_outcome_is_one_only_where_orders_are_held() {
    let is_own = |answer: &DefiniteAnswer| answer.payload == Payload::Own;
    let unknown = DefiniteAnswer { payload: Payload::Own, status: 409, body: "outcome-unknown".into() };
    let nothing_stuck = BTreeSet::new();
    let mut run = CleanRun::new();
    run.answers[1].retain(|answer| !is_own(answer));
    run.answers[1].push(unknown.clone());
    assert_eq!(run.damages_of(&nothing_stuck, true), []);
    assert!(run.damages_of(&nothing_stuck, false).contains(&TransferDamage::Refused));
    run.answers[1].push(CleanRun::new().answers[1][0].clone());
    assert_eq!(run.damages_of(&nothing_stuck, true), []);
    run.answers[1].push(unknown);
    assert_eq!(run.damages_of(&nothing_stuck, true), [TransferDamage::Forgotten]);
}

use bytes::Bytes;
use http::StatusCode;

use super::*;
use crate::client_log::{ClientLog, Exchange};
use crate::pipeline::books::Backlog;
use crate::pipeline::delivery::Cause;
use crate::response::{ReceivedResponse, SettlingResponse};
use crate::traffic::{HangUp, OrderVersion, Payment, PaymentOrder, SentPart};

/// What a run without damage leaves behind: two payments of one account, each with an answer that came twice.
fn run() -> Collected {
    let mut run = Collected::default();
    for (number, id) in [(7, 1), (39, 2)] {
        let payment = Payment::new(1, number);
        let order = payment.order.clone();
        let (operation, account) = (format!("operation-{id}"), "account-7".to_owned());
        run.requests.push(RequestRow { id, operation: operation.clone(), order: order.clone(), is_enqueued: true });
        let cause = Cause::Sent;
        run.charges.push(ChargeRow { id, operation, order: order.clone(), account: account.clone(), cause });
        run.receipts.push(ReceiptRow { id, charge: id, order: order.clone(), account, cause });
        let mut log = ClientLog::new(payment);
        receive(&mut log, accepted(id, &order));
        receive(&mut log, accepted(id, &order));
        run.clients.push(log);
    }
    run
}

fn accepted(request: i64, order: &PaymentOrder) -> ReceivedResponse {
    settling(StatusCode::ACCEPTED, order.json("request", request).to_string())
}

fn settling(status: StatusCode, body: String) -> ReceivedResponse {
    let body = Bytes::from(body);
    ReceivedResponse::Settling(SettlingResponse { status, body, is_replayed: false, is_pending: false })
}

fn receive(log: &mut ClientLog, response: ReceivedResponse) {
    exchange(log, OrderVersion::Original, response);
}

fn exchange(log: &mut ClientLog, version: OrderVersion, response: ReceivedResponse) {
    let sent_at = 2 * log.exchanges.len() as u64;
    log.exchanges.push(Exchange { version, response, sent_at, received_at: sent_at + 1 });
}

/// The damage that the audit finds after this change.
fn damage(plant: impl FnOnce(&mut Collected)) -> Vec<Damage> {
    let mut run = run();
    plant(&mut run);
    let audit = Audit::new(&run);
    assert_eq!(audit.is_clean(), audit.findings.is_empty());
    audit.findings.iter().map(|finding| finding.damage).collect()
}

#[test]
fn a_run_without_damage_is_clean() {
    let audit = Audit::new(&run());
    assert!(audit.is_clean(), "{audit:?}");
    assert_eq!((audit.accepted, audit.declined, audit.unknown()), (2, 0, 0));
}

#[test]
fn a_planted_duplicate_is_found() {
    let charged_twice = |run: &mut Collected| {
        let (charge, receipt) = (run.charges[0].clone(), run.receipts[0].clone());
        run.charges.push(ChargeRow { id: 3, ..charge });
        run.receipts.push(ReceiptRow { id: 3, charge: 3, ..receipt });
    };
    assert_eq!(damage(charged_twice), [Damage::Duplicate]);
    let mut run = run();
    charged_twice(&mut run);
    assert_eq!(Audit::new(&run).excess_cents, run.charges[0].order.amount_cents);
    let receipt_twice = |run: &mut Collected| run.receipts.push(ReceiptRow { id: 3, ..run.receipts[1].clone() });
    assert_eq!(damage(receipt_twice), [Damage::Duplicate]);
}

#[test]
fn a_planted_loss_is_found() {
    let never_charged = |run: &mut Collected| {
        run.charges.remove(0);
        run.receipts.remove(0);
    };
    assert_eq!(damage(never_charged), [Damage::Lost]);
    assert_eq!(damage(|run| drop(run.receipts.remove(1))), [Damage::Lost]);
}

#[test]
fn a_lost_message_is_found_although_its_client_does_not_know_its_outcome() {
    let leave = |run: &mut Collected| {
        let log = &mut run.clients[0];
        log.payment.leaves = Some(HangUp { part: SentPart::Whole, pause: std::time::Duration::ZERO });
        log.exchanges.truncate(1);
        log.exchanges[0].response = ReceivedResponse::HungUp;
        run.charges.remove(0);
        run.receipts.remove(0);
    };
    assert_eq!(damage(leave), [Damage::Lost]);
    let never_arrived = |run: &mut Collected| {
        leave(run);
        run.requests[0].is_enqueued = false;
    };
    assert_eq!(damage(never_arrived), []);
    // Another attempt of the same operation: its message is no other one.
    let repeated = |run: &mut Collected| {
        leave(run);
        run.requests.push(RequestRow { id: 3, ..run.requests[0].clone() });
    };
    assert_eq!(damage(repeated), [Damage::Lost]);
    let one_of_two = |run: &mut Collected| {
        let request = RequestRow { id: 3, operation: "operation-3".to_owned(), ..run.requests[0].clone() };
        run.requests.push(request);
    };
    assert_eq!(damage(one_of_two), [Damage::Lost]);
}

#[test]
fn a_swapped_answer_is_found() {
    let swapped = |run: &mut Collected| {
        let other = run.clients[1].exchanges[0].response.clone();
        run.clients[0].exchanges[1].response = other;
    };
    assert_eq!(damage(swapped), [Damage::Wrong]);
    let swapped_everywhere = |run: &mut Collected| {
        let other = run.clients[1].exchanges.clone();
        run.clients[0].exchanges = other;
    };
    assert_eq!(damage(swapped_everywhere), [Damage::Wrong]);
    let of_another_request = |run: &mut Collected| {
        let order = run.clients[0].payment.order.clone();
        run.clients[0].exchanges.iter_mut().for_each(|exchange| exchange.response = accepted(2, &order));
    };
    assert_eq!(damage(of_another_request), [Damage::Wrong]);
}

#[test]
fn only_an_answer_that_is_not_recorded_yet_may_be_replaced() {
    let other_request = |run: &mut Collected| {
        let (id, order) = (3, run.clients[0].payment.order.clone());
        run.requests.push(RequestRow { id, order: order.clone(), ..run.requests[0].clone() });
        run.clients[0].exchanges[0].response = accepted(id, &order);
    };
    assert_eq!(damage(other_request), [Damage::Wrong]);
    let mark = |exchange: &mut Exchange| {
        if let ReceivedResponse::Settling(answer) = &mut exchange.response {
            answer.is_pending = true;
        }
    };
    let not_recorded = |run: &mut Collected| {
        other_request(run);
        mark(&mut run.clients[0].exchanges[0]);
    };
    assert_eq!(damage(not_recorded), []);
    let mut run = run();
    not_recorded(&mut run);
    assert_eq!(Audit::new(&run).replaced, 1);
    let after_the_recorded_one = |run: &mut Collected| {
        not_recorded(run);
        run.clients[0].exchanges.swap(0, 1);
        run.clients[0].exchanges[1].sent_at = 100;
    };
    assert_eq!(damage(after_the_recorded_one), [Damage::Wrong]);
    let of_a_foreign_request = |run: &mut Collected| {
        let order = run.clients[0].payment.order.clone();
        run.clients[0].exchanges[0].response = accepted(2, &order);
        mark(&mut run.clients[0].exchanges[0]);
    };
    assert_eq!(damage(of_a_foreign_request), [Damage::Wrong]);
}

#[test]
fn reordered_events_are_found() {
    let reordered = |run: &mut Collected| {
        run.receipts.swap(0, 1);
        (run.receipts[0].id, run.receipts[1].id) = (1, 2);
    };
    assert_eq!(damage(reordered), [Damage::OutOfOrder]);
    let of_two_accounts = |run: &mut Collected| {
        reordered(run);
        run.receipts[0].account = "account-8".to_owned();
    };
    assert_eq!(damage(of_two_accounts), []);
}

#[test]
fn a_changed_order_that_is_charged_is_found() {
    let changed = |run: &mut Collected| {
        let order = run.clients[0].payment.changed.clone();
        run.charges.push(ChargeRow { id: 3, order: order.clone(), ..run.charges[0].clone() });
        run.receipts.push(ReceiptRow { id: 3, charge: 3, order, ..run.receipts[0].clone() });
    };
    assert_eq!(damage(changed), [Damage::Duplicate, Damage::Wrong]);
    let accepted_as_well = |run: &mut Collected| {
        let order = run.clients[0].payment.changed.clone();
        exchange(&mut run.clients[0], OrderVersion::Changed, accepted(1, &order));
    };
    assert_eq!(damage(accepted_as_well), [Damage::Wrong]);
}

#[test]
fn what_nobody_ordered_is_found() {
    let stranger = |run: &mut Collected| {
        let order = Payment::new(1, 500).order;
        run.charges.push(ChargeRow { id: 3, order: order.clone(), ..run.charges[1].clone() });
        run.receipts.push(ReceiptRow { id: 3, charge: 3, order, ..run.receipts[1].clone() });
    };
    assert_eq!(damage(stranger), [Damage::Wrong]);
    let of_no_charge = |run: &mut Collected| run.receipts.push(ReceiptRow { charge: 3, ..run.receipts[1].clone() });
    assert_eq!(damage(of_no_charge), [Damage::Wrong]);
    let of_another_order = |run: &mut Collected| run.receipts[1].order.amount_cents += 1;
    assert_eq!(damage(of_another_order), [Damage::Wrong]);
}

#[test]
fn what_never_arrives_is_found() {
    assert_eq!(damage(|run| run.backlog = Backlog { queue: 1, ..Backlog::default() }), [Damage::Stuck]);
    assert_eq!(damage(|run| run.backlog = Backlog { outbox: 1, ..Backlog::default() }), [Damage::Stuck]);
    assert_eq!(damage(|run| run.backlog = Backlog { broker: 1, ..Backlog::default() }), [Damage::Stuck]);
    assert_eq!(damage(|run| run.dead = 1), [Damage::Stuck]);
    assert_eq!(damage(|run| run.parked = 1), [Damage::Stuck]);
    assert_eq!(damage(|run| run.clients[0].gave_up = true), [Damage::Stuck]);
    let silent = |run: &mut Collected| {
        let log = &mut run.clients[0];
        log.exchanges.iter_mut().for_each(|exchange| exchange.response = ReceivedResponse::Broken);
    };
    assert_eq!(damage(silent), [Damage::Stuck]);
}

#[test]
fn an_unknown_outcome_has_its_reason() {
    let mut run = run();
    let log = &mut run.clients[0];
    log.payment.leaves = Some(HangUp { part: SentPart::Whole, pause: std::time::Duration::ZERO });
    log.exchanges.truncate(1);
    log.exchanges[0].response = ReceivedResponse::HungUp;
    let told = &mut run.clients[1];
    told.exchanges.iter_mut().for_each(|exchange| exchange.response = ReceivedResponse::OutcomeUnknown);
    let audit = Audit::new(&run);
    assert!(audit.is_clean(), "{audit:?}");
    let expected = [((UnknownReason::Left, true), 1), ((UnknownReason::Told, true), 1)];
    assert_eq!(audit.unknown, BTreeMap::from(expected));
}

#[test]
fn a_declined_payment_is_not_charged() {
    let declined = |run: &mut Collected| {
        let answer = settling(StatusCode::PAYMENT_REQUIRED, r#"{"declined":"no_1"}"#.to_owned());
        run.clients[0].exchanges.iter_mut().for_each(|exchange| exchange.response = answer.clone());
        run.requests[0].is_enqueued = false;
    };
    assert_eq!(damage(declined), [Damage::Wrong]);
    let not_charged = |run: &mut Collected| {
        declined(run);
        run.charges.remove(0);
        run.receipts.remove(0);
    };
    assert_eq!(damage(not_charged), []);
}

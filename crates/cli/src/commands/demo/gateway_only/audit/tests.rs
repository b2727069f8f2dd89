use bytes::Bytes;
use http::StatusCode;

use super::*;
use crate::commands::demo::client_log::Exchange;
use crate::commands::demo::response::{OtherResponse, SettlingResponse};
use crate::commands::demo::traffic::{Payment, PaymentOrder};

/// The log of one client and the log of the service. By default they agree on one charge.
struct Scene {
    client: ClientLog,
    charges: Vec<Charge>,
}

impl Scene {
    fn new() -> Self {
        let mut scene = Self::unconfirmed();
        scene.receive(settling(201, &scene.charges[0]));
        scene.receive(settling(201, &scene.charges[0]));
        scene
    }

    /// A charge without a response to the client.
    fn unconfirmed() -> Self {
        let payment = Payment::new(1, 7);
        Self { charges: vec![charge("ch_1", &payment.order)], client: ClientLog::new(payment) }
    }

    fn receive(&mut self, response: ReceivedResponse) {
        self.exchange(OrderVersion::Original, response);
    }

    fn exchange(&mut self, version: OrderVersion, response: ReceivedResponse) {
        let sent_at = 2 * self.client.exchanges.len() as u64;
        self.client.exchanges.push(Exchange { version, response, sent_at, received_at: sent_at + 1 });
    }

    fn audit(&self) -> GatewayAudit {
        let lines: Vec<String> = self.charges.iter().map(|charge| charge.line().to_string()).collect();
        GatewayAudit::new(&lines.join("\n"), std::slice::from_ref(&self.client))
    }

    /// Returns the kinds of damage that the audit finds.
    fn damage(&self) -> Vec<GatewayDamage> {
        let audit = self.audit();
        assert_eq!(audit.is_clean(), audit.findings.is_empty());
        audit.findings.iter().map(|finding| finding.damage).collect()
    }
}

fn charge(id: &str, order: &PaymentOrder) -> Charge {
    Charge { id: id.to_owned(), order: order.clone(), operation: None }
}

fn settling(status: u16, charge: &Charge) -> ReceivedResponse {
    ReceivedResponse::Settling(SettlingResponse {
        status: StatusCode::from_u16(status).unwrap(),
        body: Bytes::from(charge.receipt().to_string()),
        is_replayed: false,
        is_pending: false,
    })
}

/// Returns the same response, sent before its record was confirmed.
fn pending(response: ReceivedResponse) -> ReceivedResponse {
    let ReceivedResponse::Settling(settling) = response else { panic!("{response} settles nothing") };
    ReceivedResponse::Settling(SettlingResponse { is_pending: true, ..settling })
}

fn other(status: u16) -> ReceivedResponse {
    ReceivedResponse::Other(OtherResponse { status: StatusCode::from_u16(status).unwrap(), problem: None })
}

#[test]
fn one_charge_with_equal_responses_is_clean() {
    let audit = Scene::new().audit();
    assert!(audit.is_clean());
    assert_eq!((audit.payments, audit.requests, audit.charges), (1, 2, 1));
    assert_eq!(audit.charged_once, 1);
}

#[test]
fn an_unknown_outcome_is_clean_with_and_without_a_charge() {
    let mut scene = Scene::unconfirmed();
    scene.receive(other(500));
    scene.receive(ReceivedResponse::OutcomeUnknown);
    assert!(scene.audit().is_clean());
    assert_eq!(scene.audit().unknown_charged, 1);
    scene.charges.clear();
    assert!(scene.audit().is_clean());
    assert_eq!(scene.audit().unknown_not_charged, 1);
}

#[test]
fn a_declined_card_is_clean() {
    let mut scene = Scene::unconfirmed();
    scene.receive(settling(402, &scene.charges[0]));
    scene.charges.clear();
    assert!(scene.audit().is_clean());
    assert_eq!(scene.audit().declined, 1);
}

#[test]
fn an_outcome_that_becomes_known_is_clean_and_counted() {
    let mut scene = Scene::unconfirmed();
    scene.receive(ReceivedResponse::OutcomeUnknown);
    scene.receive(settling(201, &scene.charges[0]));
    assert!(scene.audit().is_clean());
    assert_eq!(scene.audit().settled_late, 1);
}

#[test]
fn responses_that_settle_nothing_are_clean() {
    let mut scene = Scene::unconfirmed();
    for response in [
        ReceivedResponse::NotSent,
        ReceivedResponse::HungUp,
        ReceivedResponse::Broken,
        ReceivedResponse::InProgress,
        other(503),
    ] {
        scene.receive(response);
    }
    scene.receive(settling(201, &scene.charges[0]));
    scene.exchange(OrderVersion::Changed, ReceivedResponse::KeyReused);
    scene.exchange(OrderVersion::Changed, ReceivedResponse::OutcomeUnknown);
    assert_eq!(scene.damage(), []);
    let audit = scene.audit();
    assert_eq!((audit.requests, audit.not_sent), (7, 1));
}

#[test]
fn a_second_charge_is_found_without_a_second_response() {
    let mut scene = Scene::new();
    scene.charges.push(charge("ch_2", &scene.client.payment.order));
    assert_eq!(scene.damage(), [GatewayDamage::Duplicate]);
    assert_eq!(scene.audit().excess_cents, scene.client.payment.order.amount_cents);
}

#[test]
fn a_second_charge_after_an_unknown_outcome_is_found() {
    let mut scene = Scene::unconfirmed();
    scene.receive(ReceivedResponse::Broken);
    scene.receive(ReceivedResponse::OutcomeUnknown);
    scene.charges.push(charge("ch_2", &scene.client.payment.order));
    assert_eq!(scene.damage(), [GatewayDamage::Duplicate]);
}

#[test]
fn a_confirmed_charge_that_is_missing_is_found() {
    let mut scene = Scene::new();
    scene.charges.clear();
    assert_eq!(scene.damage(), [GatewayDamage::Lost]);
}

#[test]
fn a_charge_id_that_is_not_in_the_log_is_found() {
    let mut scene = Scene::new();
    scene.charges[0].id = "ch_2".to_owned();
    assert_eq!(scene.damage(), [GatewayDamage::Wrong]);
}

#[test]
fn another_amount_is_found_as_a_wrong_charge_and_a_wrong_response() {
    let mut scene = Scene::new();
    scene.charges[0].order.amount_cents += 1;
    assert_eq!(scene.damage(), [GatewayDamage::Wrong, GatewayDamage::Wrong]);
}

#[test]
fn the_receipt_of_another_payment_is_found() {
    let mut scene = Scene::unconfirmed();
    let others = charge("ch_1", &Payment::new(1, 8).order);
    scene.receive(settling(201, &others));
    assert_eq!(scene.damage(), [GatewayDamage::Wrong]);
}

#[test]
fn two_different_responses_are_found() {
    let mut scene = Scene::new();
    scene.receive(settling(201, &charge("ch_2", &scene.client.payment.order)));
    assert_eq!(scene.damage(), [GatewayDamage::Wrong]);
}

#[test]
fn the_same_body_under_another_status_is_found() {
    let mut scene = Scene::new();
    scene.receive(settling(200, &scene.charges[0]));
    assert_eq!(scene.damage(), [GatewayDamage::Wrong]);
}

#[test]
fn a_declined_card_that_was_charged_is_found() {
    let mut scene = Scene::unconfirmed();
    scene.receive(settling(402, &scene.charges[0]));
    assert_eq!(scene.damage(), [GatewayDamage::Wrong]);
}

#[test]
fn an_unknown_outcome_after_a_settling_response_is_found() {
    let mut scene = Scene::new();
    scene.receive(ReceivedResponse::OutcomeUnknown);
    assert_eq!(scene.damage(), [GatewayDamage::Wrong]);
}

#[test]
fn an_unknown_outcome_of_an_earlier_request_is_clean() {
    let mut scene = Scene::unconfirmed();
    scene.receive(settling(201, &scene.charges[0]));
    scene.receive(ReceivedResponse::OutcomeUnknown);
    scene.client.exchanges[1].sent_at = 0;
    assert_eq!(scene.damage(), []);
}

#[test]
fn the_outcome_may_be_unknown_while_the_record_is_pending() {
    let mut scene = Scene::unconfirmed();
    scene.receive(pending(settling(201, &scene.charges[0])));
    scene.receive(ReceivedResponse::OutcomeUnknown);
    scene.receive(settling(201, &scene.charges[0]));
    let audit = scene.audit();
    assert!(audit.is_clean() && audit.charged_once == 1, "{audit:?}");
    scene.receive(ReceivedResponse::OutcomeUnknown);
    assert_eq!(scene.damage(), [GatewayDamage::Wrong]);
}

#[test]
fn a_pending_response_must_be_true_and_repeated() {
    let mut scene = Scene::unconfirmed();
    scene.receive(pending(settling(201, &scene.charges[0])));
    scene.receive(settling(201, &charge("ch_2", &scene.client.payment.order)));
    assert_eq!(scene.damage(), [GatewayDamage::Wrong]);
    scene.charges.clear();
    assert!(scene.damage().contains(&GatewayDamage::Lost));
}

#[test]
fn a_refusal_of_the_original_order_is_found() {
    for response in [ReceivedResponse::KeyReused, other(400)] {
        let mut scene = Scene::new();
        scene.receive(response);
        assert_eq!(scene.damage(), [GatewayDamage::Wrong]);
    }
}

#[test]
fn a_confirmed_changed_order_is_found() {
    let mut scene = Scene::new();
    scene.exchange(OrderVersion::Changed, settling(201, &scene.charges[0]));
    assert_eq!(scene.damage(), [GatewayDamage::Wrong]);
}

#[test]
fn a_charged_changed_order_is_found() {
    let mut scene = Scene::new();
    scene.charges.push(charge("ch_2", &scene.client.payment.changed));
    assert_eq!(scene.damage(), [GatewayDamage::Duplicate, GatewayDamage::Wrong]);
}

#[test]
fn an_unknown_outcome_without_a_reason_is_found() {
    let mut scene = Scene::unconfirmed();
    scene.receive(ReceivedResponse::InProgress);
    scene.receive(ReceivedResponse::OutcomeUnknown);
    assert_eq!(scene.damage(), [GatewayDamage::Unexplained]);
    for reason in [ReceivedResponse::Broken, ReceivedResponse::HungUp, other(500)] {
        let mut scene = Scene::unconfirmed();
        scene.receive(reason);
        scene.receive(ReceivedResponse::OutcomeUnknown);
        assert_eq!(scene.damage(), []);
    }
}

#[test]
fn a_client_without_a_final_response_is_found() {
    let mut scene = Scene::unconfirmed();
    scene.receive(other(503));
    assert_eq!(scene.damage(), [GatewayDamage::Stuck]);
}

#[test]
fn a_client_that_gave_up_is_found() {
    let mut scene = Scene::new();
    scene.receive(ReceivedResponse::InProgress);
    scene.client.gave_up = true;
    assert_eq!(scene.damage(), [GatewayDamage::Stuck]);
}

#[test]
fn a_charge_without_a_payment_is_found() {
    let mut scene = Scene::new();
    scene.charges.push(charge("ch_2", &Payment::new(1, 8).order));
    assert_eq!(scene.damage(), [GatewayDamage::Wrong]);
}

#[test]
fn a_malformed_log_is_found() {
    let client = Scene::new().client;
    let audit = GatewayAudit::new("half a li", &[client]);
    assert!(audit.findings_of(GatewayDamage::Wrong).next().is_some());
    assert!(audit.findings_of(GatewayDamage::Lost).next().is_some());
}

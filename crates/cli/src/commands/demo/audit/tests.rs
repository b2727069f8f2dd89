use bytes::Bytes;
use http::StatusCode;

use super::super::answer::{Other, Told};
use super::super::note::Exchange;
use super::super::traffic::{Order, Payment};
use super::*;

/// A client that was told the truth about a payment charged once, and the log that says so.
struct Scene {
    note: Note,
    log: Vec<Charge>,
}

impl Scene {
    fn new() -> Self {
        let mut scene = Self::untold();
        scene.hear(told(201, &scene.log[0]));
        scene.hear(told(201, &scene.log[0]));
        scene
    }

    /// Charged, but not told so.
    fn untold() -> Self {
        let payment = Payment::new(1, 7);
        Self { log: vec![charge("ch_1", &payment.order)], note: Note::new(payment) }
    }

    fn hear(&mut self, answer: Answer) {
        self.exchange(Asked::Order, answer);
    }

    fn exchange(&mut self, asked: Asked, answer: Answer) {
        let sent = 2 * self.note.exchanges.len() as u64;
        self.note.exchanges.push(Exchange { asked, answer, sent, heard: sent + 1 });
    }

    fn audit(&self) -> Audit {
        let lines: Vec<String> = self.log.iter().map(|charge| charge.line().to_string()).collect();
        Audit::new(&lines.join("\n"), std::slice::from_ref(&self.note))
    }

    /// The kinds of damage that the audit finds.
    fn damage(&self) -> Vec<Damage> {
        let audit = self.audit();
        assert_eq!(audit.holds(), audit.findings.is_empty());
        audit.findings.iter().map(|finding| finding.damage).collect()
    }
}

fn charge(id: &str, order: &Order) -> Charge {
    Charge { id: id.to_owned(), order: order.clone(), operation: None }
}

fn told(status: u16, charge: &Charge) -> Answer {
    Answer::Told(Told {
        status: StatusCode::from_u16(status).unwrap(),
        body: Bytes::from(charge.receipt().to_string()),
        replayed: false,
        pending: false,
    })
}

/// The same, given before its record was confirmed.
fn pending(answer: Answer) -> Answer {
    let Answer::Told(told) = answer else { panic!("nothing was told: {answer}") };
    Answer::Told(Told { pending: true, ..told })
}

fn other(status: u16) -> Answer {
    Answer::Other(Other { status: StatusCode::from_u16(status).unwrap(), problem: None })
}

#[test]
fn one_charge_and_one_answer_hold() {
    let audit = Scene::new().audit();
    assert!(audit.holds());
    assert_eq!((audit.payments, audit.requests, audit.charges), (1, 2, 1));
    assert_eq!(audit.charged_once, 1);
}

#[test]
fn an_unknown_outcome_holds_whether_it_was_charged_or_not() {
    let mut scene = Scene::untold();
    scene.hear(other(500));
    scene.hear(Answer::OutcomeUnknown);
    assert!(scene.audit().holds());
    assert_eq!(scene.audit().unknown_charged, 1);
    scene.log.clear();
    assert!(scene.audit().holds());
    assert_eq!(scene.audit().unknown_not_charged, 1);
}

#[test]
fn a_declined_card_holds() {
    let mut scene = Scene::untold();
    scene.hear(told(402, &scene.log[0]));
    scene.log.clear();
    assert!(scene.audit().holds());
    assert_eq!(scene.audit().declined, 1);
}

#[test]
fn an_outcome_that_becomes_known_holds_and_is_counted() {
    let mut scene = Scene::untold();
    scene.hear(Answer::OutcomeUnknown);
    scene.hear(told(201, &scene.log[0]));
    assert!(scene.audit().holds());
    assert_eq!(scene.audit().settled_late, 1);
}

#[test]
fn answers_that_settle_nothing_do_no_harm() {
    let mut scene = Scene::untold();
    for answer in [Answer::NotSent, Answer::HungUp, Answer::Broken, Answer::InProgress, other(503)] {
        scene.hear(answer);
    }
    scene.hear(told(201, &scene.log[0]));
    scene.exchange(Asked::Changed, Answer::KeyReused);
    scene.exchange(Asked::Changed, Answer::OutcomeUnknown);
    assert_eq!(scene.damage(), []);
    let audit = scene.audit();
    assert_eq!((audit.requests, audit.not_sent), (7, 1));
}

#[test]
fn a_second_charge_is_found_also_when_nobody_was_told_of_it() {
    let mut scene = Scene::new();
    scene.log.push(charge("ch_2", &scene.note.payment.order));
    assert_eq!(scene.damage(), [Damage::Duplicate]);
    assert_eq!(scene.audit().charged_too_much, scene.note.payment.order.amount_cents);
}

#[test]
fn a_second_charge_of_an_unknown_outcome_is_found() {
    let mut scene = Scene::untold();
    scene.hear(Answer::Broken);
    scene.hear(Answer::OutcomeUnknown);
    scene.log.push(charge("ch_2", &scene.note.payment.order));
    assert_eq!(scene.damage(), [Damage::Duplicate]);
}

#[test]
fn a_charge_that_was_told_but_not_made_is_found() {
    let mut scene = Scene::new();
    scene.log.clear();
    assert_eq!(scene.damage(), [Damage::Lost]);
}

#[test]
fn a_charge_id_that_is_not_in_the_log_is_found() {
    let mut scene = Scene::new();
    scene.log[0].id = "ch_2".to_owned();
    assert_eq!(scene.damage(), [Damage::Wrong]);
}

#[test]
fn another_amount_in_the_log_is_found_as_a_wrong_charge_and_a_wrong_answer() {
    let mut scene = Scene::new();
    scene.log[0].order.amount_cents += 1;
    assert_eq!(scene.damage(), [Damage::Wrong, Damage::Wrong]);
}

#[test]
fn the_receipt_of_another_payment_is_found() {
    let mut scene = Scene::untold();
    let others = charge("ch_1", &Payment::new(1, 8).order);
    scene.hear(told(201, &others));
    assert_eq!(scene.damage(), [Damage::Wrong]);
}

#[test]
fn two_different_answers_are_found() {
    let mut scene = Scene::new();
    scene.hear(told(201, &charge("ch_2", &scene.note.payment.order)));
    assert_eq!(scene.damage(), [Damage::Wrong]);
}

#[test]
fn the_same_body_under_another_status_is_found() {
    let mut scene = Scene::new();
    scene.hear(told(200, &scene.log[0]));
    assert_eq!(scene.damage(), [Damage::Wrong]);
}

#[test]
fn a_declined_card_that_was_charged_is_found() {
    let mut scene = Scene::untold();
    scene.hear(told(402, &scene.log[0]));
    assert_eq!(scene.damage(), [Damage::Wrong]);
}

#[test]
fn an_answer_that_is_forgotten_is_found() {
    let mut scene = Scene::new();
    scene.hear(Answer::OutcomeUnknown);
    assert_eq!(scene.damage(), [Damage::Wrong]);
}

#[test]
fn an_unknown_outcome_that_was_only_heard_later_is_none_that_was_forgotten() {
    let mut scene = Scene::untold();
    scene.hear(told(201, &scene.log[0]));
    scene.hear(Answer::OutcomeUnknown);
    scene.note.exchanges[1].sent = 0;
    assert_eq!(scene.damage(), []);
}

#[test]
fn an_answer_whose_record_is_pending_may_be_unknown_until_it_is_recorded() {
    let mut scene = Scene::untold();
    scene.hear(pending(told(201, &scene.log[0])));
    scene.hear(Answer::OutcomeUnknown);
    scene.hear(told(201, &scene.log[0]));
    let audit = scene.audit();
    assert!(audit.holds() && audit.charged_once == 1, "{audit:?}");
    scene.hear(Answer::OutcomeUnknown);
    assert_eq!(scene.damage(), [Damage::Wrong]);
}

#[test]
fn an_answer_whose_record_is_pending_must_be_repeated_and_true_all_the_same() {
    let mut scene = Scene::untold();
    scene.hear(pending(told(201, &scene.log[0])));
    scene.hear(told(201, &charge("ch_2", &scene.note.payment.order)));
    assert_eq!(scene.damage(), [Damage::Wrong]);
    scene.log.clear();
    assert!(scene.damage().contains(&Damage::Lost));
}

#[test]
fn a_refusal_of_the_order_itself_is_found() {
    for answer in [Answer::KeyReused, other(400)] {
        let mut scene = Scene::new();
        scene.hear(answer);
        assert_eq!(scene.damage(), [Damage::Wrong]);
    }
}

#[test]
fn a_changed_order_that_is_answered_is_found() {
    let mut scene = Scene::new();
    scene.exchange(Asked::Changed, told(201, &scene.log[0]));
    assert_eq!(scene.damage(), [Damage::Wrong]);
}

#[test]
fn a_changed_order_that_is_charged_is_found() {
    let mut scene = Scene::new();
    scene.log.push(charge("ch_2", &scene.note.payment.changed));
    assert_eq!(scene.damage(), [Damage::Duplicate, Damage::Wrong]);
}

#[test]
fn an_unknown_outcome_without_a_reason_is_found() {
    let mut scene = Scene::untold();
    scene.hear(Answer::InProgress);
    scene.hear(Answer::OutcomeUnknown);
    assert_eq!(scene.damage(), [Damage::Unexplained]);
    for reason in [Answer::Broken, Answer::HungUp, other(500)] {
        let mut scene = Scene::untold();
        scene.hear(reason);
        scene.hear(Answer::OutcomeUnknown);
        assert_eq!(scene.damage(), []);
    }
}

#[test]
fn a_client_without_an_answer_is_found() {
    let mut scene = Scene::untold();
    scene.hear(other(503));
    assert_eq!(scene.damage(), [Damage::Stuck]);
}

#[test]
fn a_client_that_gave_up_at_the_end_is_found() {
    let mut scene = Scene::new();
    scene.hear(Answer::InProgress);
    scene.note.gave_up = true;
    assert_eq!(scene.damage(), [Damage::Stuck]);
}

#[test]
fn a_charge_that_belongs_to_no_payment_is_found() {
    let mut scene = Scene::new();
    scene.log.push(charge("ch_2", &Payment::new(1, 8).order));
    assert_eq!(scene.damage(), [Damage::Wrong]);
}

#[test]
fn a_log_that_cannot_be_read_is_found() {
    let note = Scene::new().note;
    let audit = Audit::new("half a li", &[note]);
    assert!(audit.found(Damage::Wrong).next().is_some());
    assert!(audit.found(Damage::Lost).next().is_some());
}

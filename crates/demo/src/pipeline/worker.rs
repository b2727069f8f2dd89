//! The worker: charges the card of each order, and emits the event of the charge.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use hapax::broker::{Job, Process, Verdict};
use hapax::ledger::{Entry, Event, HandlerFailure, Terms};
use hapax::outbox::{OutgoingEvent, Published, Sink};
use hapax::stores::{SqliteLedger, SqliteOutbox};
use parking_lot::Mutex;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use serde_json::json;
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::database::{self, RECEIPTS};
use super::delivery::Cause;
use super::service::DemoServiceArgs;
use crate::traffic::PaymentOrder;
use crate::{OmittedLayer, Systems};

/// The namespace of the worker's ledger and events.
pub(super) const NAMESPACE: &str = "payments";

/// What the worker does with messages.
pub(super) async fn process(args: &DemoServiceArgs, systems: &dyn Systems) -> Result<Arc<dyn Process>> {
    let Some(file) = args.file() else {
        return super::servers::charge_messages(&args.database);
    };
    let shop = database::open_shop(file)?;
    match args.without {
        Some(OmittedLayer::Ledger) => Ok(Arc::new(WithoutLedger { shop: Mutex::new(shop) })),
        Some(OmittedLayer::Outbox) => Ok(Arc::new(WithoutOutbox::new(shop, systems.sink(&args.sink).await?)?)),
        None | Some(OmittedLayer::Gate) => {
            let ledger = SqliteLedger::new(Terms::new(NAMESPACE)?);
            Ok(Arc::new(ledger.process(shop, charge_and_emit)))
        }
    }
}

/// Charges the cards of the new messages. The ledger commits its rows, the charges and their events together.
fn charge_and_emit(
    shop: &Transaction<'_>,
    jobs: &[Job],
    new: &mut [Entry],
) -> Result<Vec<String>, HandlerFailure<String>> {
    let mut answers = Vec::new();
    for entry in new {
        entry.emit(charge(shop, &jobs[entry.index()])?)?;
        answers.push("charged".to_owned());
    }
    Ok(answers)
}

/// Charges the card of one order. Returns the event that tells of it.
fn charge(shop: &Transaction<'_>, job: &Job) -> Result<Event> {
    let order = order(job)?;
    let charge = database::insert_charge(shop, &key(job), &order, Cause::of(job))?;
    Ok(event(RECEIPTS, charge, &order))
}

/// The order in a message.
pub(super) fn order(job: &Job) -> Result<PaymentOrder> {
    let json = serde_json::from_slice(&job.message.payload)?;
    PaymentOrder::read(&json).context("the message is no order")
}

/// The event that tells of a charge.
pub(super) fn event(topic: &str, charge: i64, order: &PaymentOrder) -> Event {
    let PaymentOrder { payment, amount_cents, nonce } = order;
    let event = json!({ "charge": charge, "payment": payment, "amount_cents": amount_cents, "nonce": nonce });
    Event::new(topic, event.to_string()).ordered_by(database::account(order))
}

/// Layer 2 is missing: every message is charged. Charge and event commit together.
struct WithoutLedger {
    shop: Mutex<Connection>,
}

impl WithoutLedger {
    fn charge(&self, job: &Job) -> Result<()> {
        let mut shop = self.shop.lock();
        let transaction = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let event = charge(&transaction, job)?;
        SqliteOutbox::emit(&transaction, NAMESPACE, None, event)?;
        Ok(transaction.commit()?)
    }
}

impl fmt::Debug for WithoutLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithoutLedger").finish_non_exhaustive()
    }
}

#[async_trait]
impl Process for WithoutLedger {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let verdict = |job: &Job| match block_in_place(|| self.charge(job)) {
            Ok(()) => Verdict::Done { caught: false },
            Err(_) => Verdict::Retry { after: Duration::from_millis(50) },
        };
        jobs.iter().map(verdict).collect()
    }
}

/// Layer 3 is missing: the worker publishes events itself, after the commit of the ledger.
struct WithoutOutbox {
    ledger: Arc<dyn Process>,
    /// The events of charges that are about to commit, by the keys of their messages.
    unpublished: Arc<Mutex<HashMap<String, Event>>>,
    sink: Arc<dyn Sink>,
}

impl WithoutOutbox {
    fn new(shop: Connection, sink: Arc<dyn Sink>) -> Result<Self> {
        let unpublished: Arc<Mutex<HashMap<String, Event>>> = Arc::default();
        let charged = Arc::clone(&unpublished);
        let handler = move |shop: &Transaction<'_>, jobs: &[Job], new: &mut [Entry]| {
            let mut answers = Vec::new();
            for entry in new {
                let job = &jobs[entry.index()];
                let event = charge(shop, job)?;
                charged.lock().insert(key(job), event);
                answers.push("charged".to_owned());
            }
            Ok::<_, HandlerFailure<String>>(answers)
        };
        let ledger = SqliteLedger::new(Terms::new(NAMESPACE)?);
        Ok(Self { ledger: Arc::new(ledger.process(shop, handler)), unpublished, sink })
    }

    async fn publish(&self, event: OutgoingEvent) {
        let event = Arc::new(event);
        sleep(ROUND_TRIP).await;
        while !matches!(self.sink.publish(&event).await, Published::Yes { .. }) {
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// How long a broker on another host takes for an event.
const ROUND_TRIP: Duration = Duration::from_millis(20);

/// The key of a message, as text.
pub(super) fn key(job: &Job) -> String {
    String::from_utf8_lossy(job.key.as_bytes()).into_owned()
}

impl fmt::Debug for WithoutOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithoutOutbox").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

#[async_trait]
impl Process for WithoutOutbox {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let verdicts = self.ledger.process(jobs.clone()).await;
        for (job, verdict) in jobs.iter().zip(&verdicts) {
            let event = self.unpublished.lock().remove(&key(job));
            let (Some(event), Verdict::Done { caught: false }) = (event, verdict) else {
                continue;
            };
            if let Ok(event) = event.into_outgoing(job.call.operation().event(NAMESPACE, 0)) {
                self.publish(event).await;
            }
        }
        verdicts
    }
}

//! The worker: charges the card of each order, and emits the event of the charge.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use hapax::broker::{Job, Process, Verdict};
use hapax::ledger::{Entry, Event, HandlerFailure, Terms};
use hapax::outbox::{OutgoingEvent, Published, Sink};
use hapax::stores::{SqliteLedger, SqliteOutbox};
use parking_lot::Mutex;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::database;
use crate::pipeline::delivery::Cause;
use crate::pipeline::messages::{PAYMENTS, RECEIPTS, event, key, order};

/// Charges the orders of the messages once each.
pub(super) fn charge_once(file: &Path) -> Result<Arc<dyn Process>> {
    let ledger = SqliteLedger::new(Terms::new(PAYMENTS)?);
    Ok(Arc::new(ledger.process(database::open_shop(file)?, charge_and_emit)))
}

/// Charges for every message.
pub(super) fn without_ledger(file: &Path) -> Result<Arc<dyn Process>> {
    Ok(Arc::new(WithoutLedger { shop: Mutex::new(database::open_shop(file)?) }))
}

/// Publishes to the sink after the transaction.
pub(super) fn without_outbox(file: &Path, sink: Arc<dyn Sink>) -> Result<Arc<dyn Process>> {
    Ok(Arc::new(WithoutOutbox::new(database::open_shop(file)?, sink)?))
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

/// Layer 2 is missing: every message is charged. Charge and event commit together.
struct WithoutLedger {
    shop: Mutex<Connection>,
}

impl WithoutLedger {
    fn charge(&self, job: &Job) -> Result<()> {
        let mut shop = self.shop.lock();
        let transaction = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let event = charge(&transaction, job)?;
        SqliteOutbox::emit(&transaction, PAYMENTS, None, event)?;
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
        let ledger = SqliteLedger::new(Terms::new(PAYMENTS)?);
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
            if let Ok(event) = event.into_outgoing(job.call.operation().event(PAYMENTS, 0)) {
                self.publish(event).await;
            }
        }
        verdicts
    }
}

use std::sync::Arc;

use anyhow::{Result, bail};
use async_trait::async_trait;
use hapax::ledger::Event;
use hapax::outbox::{OutgoingEvent, Published, Sink};

use super::link::ServerLink;
use crate::pipeline::delivery::REDELIVERED;
use crate::pipeline::ingest::{Intake, result};
use crate::pipeline::messages::CHARGES;
use crate::pipeline::rows::{ENQUEUED, account};
use crate::traffic::{PaymentOrder, ServiceBehavior};

/// Publishes the messages of the ingest service, and writes its requests down.
#[derive(Debug)]
pub(in super::super) struct ServerIntake {
    seed: u64,
    link: ServerLink,
    sink: Arc<dyn Sink>,
}

impl ServerIntake {
    /// Writes to the database at this URL, and publishes to this sink.
    pub(in super::super) fn open(database: &str, sink: Arc<dyn Sink>, seed: u64) -> Result<Self> {
        Ok(Self { seed, link: ServerLink::new(database)?, sink })
    }

    /// Publishes a message with this key. A broker that recognizes repeated ids does so for a moment only.
    pub(super) async fn publish(&self, order: &PaymentOrder, operation: &str, is_redelivered: bool) -> Result<()> {
        let message = outgoing(order, operation, is_redelivered)?;
        match self.sink.publish(&Arc::new(message)).await {
            Published::Yes { .. } => Ok(()),
            Published::NotPublished { cause, .. } | Published::Unknown(cause) => Err(cause.into()),
            Published::Refused(why) => bail!(why),
        }
    }
}

fn outgoing(order: &PaymentOrder, operation: &str, is_redelivered: bool) -> Result<OutgoingEvent> {
    let event = Event::new(CHARGES, order.body()).ordered_by(account(order));
    let event = if is_redelivered { event.header(REDELIVERED, "1") } else { event };
    Ok(event.into_outgoing(operation.parse()?)?)
}

#[async_trait]
impl Intake for ServerIntake {
    async fn take(&self, order: &PaymentOrder, operation: &str) -> Result<(i64, ServiceBehavior)> {
        let payment = i64::from(order.payment);
        let arrived = self.link.number("select count(*) from request where payment = $1", &[&payment]).await?;
        let behavior = ServiceBehavior::new(self.seed, order.payment, arrived.try_into()?);
        let result = result(behavior);
        if result == ENQUEUED {
            self.publish(order, operation, false).await?;
        }
        let sql = "insert into request (operation, payment, amount_cents, nonce, result) \
                   values ($1, $2, $3, $4, $5) returning id";
        let cents = i64::try_from(order.amount_cents)?;
        let request = self.link.number(sql, &[&operation, &payment, &cents, &order.nonce, &result]).await?;
        Ok((request, behavior))
    }
}

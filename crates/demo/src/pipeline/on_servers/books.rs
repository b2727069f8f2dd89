use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use hapax_systems::BrokerUrl;
use tokio_postgres::Row;

use super::intake::ServerIntake;
use super::link::ServerLink;
use crate::pipeline::books::{Backlog, BookRows, ShopBooks};
use crate::pipeline::delivery::Cause;
use crate::pipeline::rows::{ChargeRow, ENQUEUED, ReceiptRow, RequestRow};
use crate::random::{RandomStream, RandomTopic};
use crate::traffic::PaymentOrder;

/// The tables of a run in PostgreSQL, and the broker of its messages.
#[derive(Debug)]
pub(in super::super) struct ServerBooks {
    link: ServerLink,
    intake: ServerIntake,
    /// The broker, and the names of the topics.
    topics: (BrokerUrl, [String; 2]),
    schema: String,
}

/// Messages without a charge. A copy that is still under way is not counted.
const QUEUE: &str = "select count(*) from (select distinct operation from request where result = $1) message \
                     where not exists (select from charge where charge.operation = message.operation)";

const OUTBOX: &str = "select count(*) from hapax_outbox where state = 0";

/// Charges without a receipt.
const BROKER: &str = "select count(*) from charge \
                      where not exists (select from receipt where receipt.charge = charge.id)";

impl ServerBooks {
    /// The tables of a schema behind this connection. Earlier messages are published again by this intake.
    pub(super) fn new(
        schema: String,
        link: ServerLink,
        intake: ServerIntake,
        topics: (BrokerUrl, [String; 2]),
    ) -> Self {
        Self { link, intake, topics, schema }
    }

    async fn count(&self, sql: &str) -> Result<u64> {
        Ok(self.link.number(sql, &[]).await?.unsigned_abs())
    }

    async fn list<T>(&self, table: &str, read: fn(&Row) -> Result<T>) -> Result<Vec<T>> {
        let rows = self.link.query(&format!("select * from {table} order by id"), &[]).await?;
        rows.iter().map(read).collect()
    }

    /// Where the messages and events lie that had an effect.
    async fn places(&self) -> Result<HashSet<String>> {
        let rows = self.link.query("select place from charge union all select place from receipt", &[]).await?;
        Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
    }

    /// A request whose message was published, from a random place on.
    async fn earlier_request(&self, random: u64) -> Result<Option<RequestRow>> {
        let newest = self.link.number("select coalesce(max(id), 0) from request", &[]).await?;
        let from = 1 + i64::try_from(random % newest.unsigned_abs().max(1))?;
        let sql = "select * from request where id >= $1 and result = $2 order by id limit 1";
        self.link.query(sql, &[&from, &ENQUEUED]).await?.first().map(request).transpose()
    }
}

#[async_trait]
impl ShopBooks for ServerBooks {
    async fn backlog(&self) -> Result<Backlog> {
        Ok(Backlog {
            queue: self.link.number(QUEUE, &[&ENQUEUED]).await?.unsigned_abs(),
            outbox: self.count(OUTBOX).await?,
            broker: self.count(BROKER).await?,
        })
    }

    async fn counts(&self) -> Result<(u64, u64)> {
        Ok((self.count("select count(*) from charge").await?, self.count("select count(*) from receipt").await?))
    }

    async fn is_all_published(&self) -> Result<bool> {
        Ok(self.count(OUTBOX).await? == 0)
    }

    async fn has_request(&self, payment: u32) -> Result<bool> {
        let sql = "select count(*) from request where payment = $1";
        Ok(self.link.number(sql, &[&i64::from(payment)]).await? > 0)
    }

    async fn redeliver(&self, (seed, round): (u64, u32), copies: u32) -> Result<()> {
        let mut random = RandomStream::new(seed, RandomTopic::Redelivery, &[round.into()]);
        for _ in 0..copies {
            let Some(request) = self.earlier_request(random.next_number()).await? else { break };
            // A broker that is down gets fewer copies.
            let _ = self.intake.publish(&request.order, &request.operation, true).await;
        }
        Ok(())
    }

    async fn forget(&self) -> Result<()> {
        // The window of the streams is short, and Kafka has none.
        Ok(())
    }

    async fn rows(&self) -> Result<BookRows> {
        Ok(BookRows {
            requests: self.list("request", request).await?,
            charges: self.list("charge", charge).await?,
            receipts: self.list("receipt", receipt).await?,
            events: self.count("select count(*) from hapax_outbox").await?,
            dead: self.count("select count(*) from hapax_dead").await?,
            parked: self.count("select count(*) from hapax_parked").await?,
            places: self.places().await?,
        })
    }

    async fn remove(&self) -> Result<()> {
        let (broker, topics) = &self.topics;
        let mut removed = Ok(());
        for topic in topics {
            removed = removed.and(broker.remove(topic).await);
        }
        let dropped = self.link.query(&format!("drop schema {} cascade", self.schema), &[]).await;
        removed.and(dropped.map(drop))
    }

    fn pauses(&self) -> (Duration, Duration) {
        // The copies at the broker: a delivery that nobody acknowledged comes again after 2 s.
        (Duration::from_millis(50), Duration::from_secs(4))
    }
}

fn request(row: &Row) -> Result<RequestRow> {
    let is_enqueued = row.try_get::<_, String>("result")? == ENQUEUED;
    Ok(RequestRow { id: row.try_get("id")?, operation: row.try_get("operation")?, order: order(row)?, is_enqueued })
}

fn charge(row: &Row) -> Result<ChargeRow> {
    let (id, operation, account) = (row.try_get("id")?, row.try_get("operation")?, row.try_get("account")?);
    Ok(ChargeRow { id, operation, order: order(row)?, account, cause: cause(row)? })
}

fn receipt(row: &Row) -> Result<ReceiptRow> {
    let (id, charge, account) = (row.try_get("id")?, row.try_get("charge")?, row.try_get("account")?);
    Ok(ReceiptRow { id, charge, order: order(row)?, account, cause: cause(row)? })
}

fn order(row: &Row) -> Result<PaymentOrder> {
    let (payment, cents): (i64, i64) = (row.try_get("payment")?, row.try_get("amount_cents")?);
    let payment = payment.try_into().context("a payment out of range")?;
    Ok(PaymentOrder { payment, amount_cents: cents.unsigned_abs(), nonce: row.try_get("nonce")? })
}

fn cause(row: &Row) -> Result<Cause> {
    Ok(Cause::from_name(row.try_get("cause")?))
}

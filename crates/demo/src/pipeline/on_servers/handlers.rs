use std::sync::Arc;

use anyhow::Result;
use hapax::broker::{Job, Process};
use hapax::ledger::{Entry, HandlerFailure, Terms};
use hapax::stores::{HandleJobs, PostgresLedger, PostgresTransaction};

use super::link::schema_of;
use crate::pipeline::delivery::{Cause, place};
use crate::pipeline::messages::{self, PAYMENTS, RECEIPTS};
use crate::pipeline::rows::account;

/// What the workers do with messages.
pub(in super::super) fn charge_messages(database: &str) -> Result<Arc<dyn Process>> {
    let ledger = PostgresLedger::connect(&database.parse()?, Terms::new(PAYMENTS)?)?;
    Ok(Arc::new(ledger.process(Charging { schema: schema_of(database)?.1.to_owned() })))
}

/// What the consumers do with events.
pub(in super::super) fn send_receipts(database: &str) -> Result<Arc<dyn Process>> {
    let inbox = PostgresLedger::connect(&database.parse()?, Terms::new(RECEIPTS)?)?;
    Ok(Arc::new(inbox.process(Sending { schema: schema_of(database)?.1.to_owned() })))
}

/// Charges cards.
struct Charging {
    schema: String,
}

impl HandleJobs<String> for Charging {
    async fn handle(
        &self,
        transaction: &PostgresTransaction<'_>,
        jobs: &[Job],
        entries: &mut [Entry],
    ) -> Result<Vec<String>, HandlerFailure<String>> {
        let orders = entries.iter().map(|entry| messages::order(&jobs[entry.index()])).collect::<Result<Vec<_>>>()?;
        let mut accounts: Vec<String> = orders.iter().map(account).collect();
        accounts.sort_unstable();
        accounts.dedup();
        // Charges of one account exclude each other, so that their events have the order of their commits.
        let lock = "select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext($1 || name)) \
                    from pg_catalog.unnest($2::pg_catalog.text[]) name";
        transaction.query(lock, &[&self.schema, &accounts]).await?;
        let sql = format!(
            "insert into {}.charge (operation, payment, amount_cents, nonce, account, cause, place) \
             values ($1, $2, $3, $4, $5, $6, $7) returning id",
            self.schema
        );
        let insert = transaction.prepare(&sql).await?;
        for (entry, order) in entries.iter_mut().zip(&orders) {
            let job = &jobs[entry.index()];
            let (payment, cents) = (i64::from(order.payment), i64::try_from(order.amount_cents)?);
            let (account, cause, place) = (account(order), Cause::of(job).name(), place(&job.message));
            let row = transaction
                .query_one(&insert, &[&messages::key(job), &payment, &cents, &order.nonce, &account, &cause, &place])
                .await?;
            // A consumer of NATS has the accounts of one subject: two cannot share the messages and keep their order.
            let topic = format!("{RECEIPTS}.{}", order.payment % 2);
            entry.emit(messages::event(&topic, row.try_get(0)?, order))?;
        }
        Ok(vec!["charged".to_owned(); orders.len()])
    }
}

/// Sends receipts.
struct Sending {
    schema: String,
}

impl HandleJobs<String> for Sending {
    async fn handle(
        &self,
        transaction: &PostgresTransaction<'_>,
        jobs: &[Job],
        entries: &mut [Entry],
    ) -> Result<Vec<String>, HandlerFailure<String>> {
        let sql = format!(
            "insert into {}.receipt (charge, payment, amount_cents, nonce, account, cause, place) \
             values ($1, $2, $3, $4, $5, $6, $7)",
            self.schema
        );
        let insert = transaction.prepare(&sql).await?;
        for entry in entries.iter() {
            let job = &jobs[entry.index()];
            let (charge, order) = messages::charge(job)?;
            let (payment, cents) = (i64::from(order.payment), i64::try_from(order.amount_cents)?);
            let (account, cause, place) = (account(&order), Cause::of(job).name(), place(&job.message));
            transaction.execute(&insert, &[&charge, &payment, &cents, &order.nonce, &account, &cause, &place]).await?;
        }
        Ok(vec!["sent".to_owned(); entries.len()])
    }
}

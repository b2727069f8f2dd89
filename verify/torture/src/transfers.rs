//! The writes of one transfer, which the services of a run share: with an entry of the ledger, and without.

use anyhow::Context;
use deadpool_postgres::Pool;
use hapax::gate::Failure;
use hapax::ledger::{Entry, Event};
use tokio_postgres::Client;

/// The table of the effects. It has no unique constraint, so that a second effect shows.
pub const TABLES: &str = "
    create table if not exists transfer (operation text, payer text, payee text, amount bigint)";

/// Writes a transfer in the transaction of a ledger, and emits its event.
///
/// # Errors
/// If the order cannot be read, or a statement fails.
pub async fn transfer_with_entry(client: &Client, entry: &mut Entry, order: &str) -> Result<String, Failure<String>> {
    let [from, to, amount] = order.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err(Failure::finally(String::from("send: FROM TO AMOUNT\n")));
    };
    let amount: i64 = amount.parse()?;
    let operation = entry.operation().to_string();
    let answer = format!("{from} gave {to} {amount}: {operation}\n");
    client.execute("update account set balance = balance - $2 where name = $1", &[&from, &amount]).await?;
    client.execute("update account set balance = balance + $2 where name = $1", &[&to, &amount]).await?;
    client.execute("insert into transfer values ($1, $2, $3, $4)", &[&operation, &from, &to, &amount]).await?;
    entry.emit(Event::new("transfers", answer.clone()).ordered_by(from.to_owned()))?;
    Ok(answer)
}

/// Writes a transfer and its event in a transaction without a ledger.
///
/// # Errors
/// If the order cannot be read, or a statement fails. After a COMMIT without a reply the outcome is unknown.
pub async fn transfer_without_ledger(pool: &Pool, operation: &str, order: &str) -> anyhow::Result<String> {
    let mut words = order.split_whitespace();
    let (from, to) = (words.next().context("no payer")?, words.next().context("no payee")?);
    let amount: i64 = words.next().context("no amount")?.parse()?;
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    let answer = format!("{from} gave {to} {amount}: {operation}\n");
    transaction.execute("update account set balance = balance - $2 where name = $1", &[&from, &amount]).await?;
    transaction.execute("update account set balance = balance + $2 where name = $1", &[&to, &amount]).await?;
    transaction.execute("insert into transfer values ($1, $2, $3, $4)", &[&operation, &from, &to, &amount]).await?;
    // An id of its own for each attempt: the derived one would be refused the second time.
    let emit = "insert into hapax_outbox (event_id, operation, namespace, topic, payload)
                values (gen_random_uuid(), $1::text::uuid, 'transfers', 'transfers', $2)";
    transaction.execute(emit, &[&operation, &answer.as_bytes()]).await?;
    transaction.commit().await?;
    Ok(answer)
}

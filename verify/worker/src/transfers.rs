//! What the workers of this package write for their messages, with and without a ledger.

use anyhow::Context;
use hapax::broker::Job;
use tokio_postgres::GenericClient;

/// A transfer, as a message orders it.
#[derive(Clone, Copy)]
pub(crate) struct OrderedTransfer<'m> {
    pub(crate) payer: &'m str,
    payee: &'m str,
    amount: i64,
}

impl<'m> OrderedTransfer<'m> {
    /// Reads `PAYER PAYEE AMOUNT`.
    pub(crate) fn read(job: &'m Job) -> anyhow::Result<Self> {
        let words = str::from_utf8(&job.message.payload)?.split(' ').collect::<Vec<_>>();
        let [payer, payee, amount] = words[..] else { anyhow::bail!("a message is no transfer") };
        Ok(Self { payer, payee, amount: amount.parse().context("a transfer has no amount")? })
    }
}

/// Moves the money. Each transfer stands beside its operation.
pub(crate) async fn apply(
    client: &impl GenericClient,
    transfers: &[(String, OrderedTransfer<'_>)],
) -> Result<(), tokio_postgres::Error> {
    // In one order: otherwise two batches could wait for each other.
    let names: Vec<&str> = transfers.iter().flat_map(|(_, order)| [order.payer, order.payee]).collect();
    let lock = "select from account where name = any($1) order by name for update";
    client.execute(lock, &[&names]).await?;
    let give = "update account set balance = balance + $2 where name = $1";
    let note = "insert into transfer (operation, payer, payee, amount) values ($1, $2, $3, $4)";
    for (operation, OrderedTransfer { payer, payee, amount }) in transfers {
        client.execute(give, &[payer, &-amount]).await?;
        client.execute(give, &[payee, amount]).await?;
        client.execute(note, &[operation, payer, payee, amount]).await?;
    }
    Ok(())
}

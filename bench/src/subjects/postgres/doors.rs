//! The ledger in transactions of the caller, through the functions in SQL and through `PostgresLedger`.

use anyhow::{bail, ensure};
use futures_util::future::try_join_all;
use hapax_core::Call;
use hapax_core::ledger::{Claimed, Terms};
use hapax_stores::PostgresLedger;
use tokio_postgres::{Client, Statement};

use super::SINGLE_CALLS;
use super::server::BenchDatabase;
use crate::harness::{Limit, MeasuredBatch, Subject, per_second};
use crate::subjects::ANSWER;

/// The functions beside the ledger in Rust, with one client and with eight.
pub(super) fn all(database: &BenchDatabase) -> Vec<Subject> {
    let subject = |name, clients| Subject {
        name,
        what: "hapax_once, an insert and hapax_done in a transaction, durable, prepared",
        run: transactions(database, LedgerDoor::Sql, clients),
        limit: Some(Limit {
            what: "claim and finish of PostgresLedger with the same insert in a transaction of the driver",
            run: transactions(database, LedgerDoor::Rust, clients),
            at_least: Some(0.8),
        }),
    };
    vec![subject("ledger in SQL, 1 client", 1), subject("ledger in SQL, 8 clients", 8)]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LedgerDoor {
    Sql,
    Rust,
}

fn transactions(database: &BenchDatabase, door: LedgerDoor, clients: usize) -> MeasuredBatch {
    let database = database.clone();
    Box::new(move || {
        let (calls, ledger) = (database.take(SINGLE_CALLS), database.ledger(Terms::new("bench")?)?);
        let connections = database.block_on(try_join_all((0..clients).map(|_| database.client())))?;
        per_second(calls.len(), || {
            let shares = calls.chunks(calls.len().div_ceil(clients));
            let runs = connections.into_iter().zip(shares).map(|(client, calls)| run(&ledger, client, calls, door));
            database.block_on(try_join_all(runs)).map(drop)
        })
    })
}

async fn run(ledger: &PostgresLedger, mut client: Client, calls: &[Call], door: LedgerDoor) -> anyhow::Result<()> {
    let statements = PreparedLedger::prepare(&client).await?;
    for call in calls {
        let transaction = client.transaction().await?;
        let operation = call.record_key().operation().to_string();
        match door {
            LedgerDoor::Sql => {
                let row = transaction.query_one(&statements.once, &[&operation]).await?;
                ensure!(row.get::<_, &str>("outcome") == "fresh", "an operation is not new");
                transaction.execute(&statements.effect, &[&operation]).await?;
                transaction.query_one(&statements.done, &[&operation, &ANSWER]).await?;
            }
            LedgerDoor::Rust => {
                let claimed = ledger.claim::<bytes::Bytes>(&transaction, &(*call).into()).await?;
                let Claimed::Fresh(entry) = claimed else { bail!("an operation is not new") };
                transaction.execute(&statements.effect, &[&operation]).await?;
                entry.finish(&transaction, &bytes::Bytes::from_static(ANSWER)).await?;
            }
        }
        transaction.commit().await?;
    }
    Ok(())
}

/// The statements of a service, prepared as a driver does.
struct PreparedLedger {
    once: Statement,
    effect: Statement,
    done: Statement,
}

impl PreparedLedger {
    async fn prepare(client: &Client) -> anyhow::Result<Self> {
        Ok(Self {
            once: client.prepare("select outcome, answer from hapax_once('bench', $1::text::uuid, null)").await?,
            effect: client.prepare("insert into effect (operation, amount) values ($1::text::uuid, 5)").await?,
            done: client.prepare("select hapax_done('bench', $1::text::uuid, $2)").await?,
        })
    }
}

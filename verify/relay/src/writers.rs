use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use hapax::ledger::{Call, Claimed, Event, Terms};
use hapax::stores::PostgresLedger;
use hapax::{Identity, Key, Scope};
use tokio::time::sleep;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls, Transaction};

use crate::sale::Sale;

/// The number of connections that write.
const WRITERS: usize = 12;

/// A database that refuses a writer for so long has failed.
const DEADLINE: Duration = Duration::from_secs(120);

const TABLES: &str = "
    create table shop (id integer primary key, sales bigint not null);
    create table sale (number integer primary key, shop integer, place bigint not null);
    create table effect (number integer not null);
    create table inbox (event_id text primary key)";

/// Writes sales, each in a transaction of its own.
pub(crate) struct SaleWriters {
    url: String,
    ledger: PostgresLedger,
}

impl SaleWriters {
    /// Creates the tables.
    pub(crate) async fn create(url: String, shops: u32) -> Result<Self> {
        let ledger = PostgresLedger::connect(&url.parse()?, Terms::new("sales")?)?;
        ledger.create_tables().await?;
        let client = connect(&url).await?;
        client.batch_execute(TABLES).await?;
        let open = "insert into shop select n, 0 from generate_series(0, $1::bigint - 1) n";
        client.execute(open, &[&i64::from(shops)]).await?;
        Ok(Self { url, ledger })
    }

    /// Writes these sales in about this time. Returns when all of them are committed, or rolled back on purpose.
    pub(crate) async fn write(&self, sales: &[Sale], within: Duration) -> Result<()> {
        let next = AtomicU32::default();
        let each = within.mul_f64(WRITERS as f64 / sales.len().max(1) as f64);
        let writer = async || {
            let mut client = connect(&self.url).await?;
            while let Some(sale) = sales.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                sleep(each.mul_f64(sale.begins_after)).await;
                self.write_until_done(&mut client, sale).await?;
            }
            anyhow::Ok(())
        };
        try_join_all((0..WRITERS).map(|_| writer())).await?;
        Ok(())
    }

    /// Writes a sale again until it is known to be committed, through restarts of the database.
    async fn write_until_done(&self, client: &mut Client, sale: &Sale) -> Result<()> {
        let begun = Instant::now();
        loop {
            let Err(error) = self.try_write(client, sale).await else { return Ok(()) };
            let code = error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code);
            // An earlier COMMIT without a reply was carried out.
            if code == Some(&SqlState::UNIQUE_VIOLATION) {
                return Ok(());
            }
            ensure!(begun.elapsed() < DEADLINE, "sale {}: {error:#}", sale.number);
            sleep(Duration::from_millis(50)).await;
            if client.is_closed()
                && let Ok(connected) = connect(&self.url).await
            {
                *client = connected;
            }
        }
    }

    async fn try_write(&self, client: &mut Client, sale: &Sale) -> Result<()> {
        let transaction = client.transaction().await?;
        match sale.has_ledger {
            true => self.sell_with_ledger(&transaction, sale).await?,
            false => sell(&transaction, sale).await?,
        }
        sleep(sale.pause).await;
        match sale.is_rolled_back {
            true => transaction.rollback().await?,
            false => transaction.commit().await?,
        }
        Ok(())
    }

    async fn sell_with_ledger(&self, transaction: &Transaction<'_>, sale: &Sale) -> Result<()> {
        let key = Key::new(format!("sale-{}", sale.number))?;
        let call = Call::from(Identity::plain().call(&Scope::tenant("sales", "torture")?, &key));
        let mut entry = match self.ledger.claim::<String>(transaction, &call).await? {
            Claimed::Fresh(entry) => entry,
            // An earlier COMMIT without a reply was carried out, or its backend still runs.
            Claimed::Replay(_) => return Ok(()),
            Claimed::Busy | Claimed::Mismatch | Claimed::Dead => anyhow::bail!("another transaction has the claim"),
        };
        let place = note(transaction, sale).await?;
        let event = Event::new("sales", payload(sale, place));
        let event = match sale.shop {
            Some(shop) => event.ordered_by(shop.to_string()),
            None => event,
        };
        entry.emit(event)?;
        entry.finish(transaction, &String::from("sold")).await?;
        Ok(())
    }
}

async fn sell(transaction: &Transaction<'_>, sale: &Sale) -> Result<()> {
    let place = note(transaction, sale).await?;
    let emit = "select hapax_emit('sales', null, null, 'sales', $1::bytea, okey => $2::bytea)";
    let shop = sale.shop.map(|shop| shop.to_string().into_bytes());
    transaction.query_one(emit, &[&payload(sale, place).as_bytes(), &shop]).await?;
    Ok(())
}

/// Notes the sale. Returns its place among the sales of its shop: the lock of the shop's row makes it the order of
/// the commits.
async fn note(transaction: &Transaction<'_>, sale: &Sale) -> Result<i64> {
    let shop = sale.shop.map(i32::try_from).transpose()?;
    let count = "update shop set sales = sales + 1 where id = $1 returning sales";
    let place = match shop {
        Some(shop) => transaction.query_one(count, &[&shop]).await?.get(0),
        None => 0,
    };
    let insert = "insert into sale (number, shop, place) values ($1, $2, $3)";
    transaction.execute(insert, &[&i32::try_from(sale.number)?, &shop, &place]).await?;
    Ok(place)
}

fn payload(sale: &Sale, place: i64) -> String {
    let shop = sale.shop.map_or_else(|| "-".to_owned(), |shop| shop.to_string());
    format!("{} {shop} {place}", sale.number)
}

async fn connect(url: &str) -> Result<Client> {
    let begun = Instant::now();
    loop {
        match tokio_postgres::connect(url, NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                return Ok(client);
            }
            Err(error) => ensure!(begun.elapsed() < DEADLINE, "{error}"),
        }
        sleep(Duration::from_millis(100)).await;
    }
}

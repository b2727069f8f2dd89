use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use hapax_testkit::servers::PostgresServer;
use hapax_torture::SplitMix;

use crate::broker::{EventCopy, StreamArrivals};
use crate::run::RelayTortureOptions;
use crate::sale::REDELIVERIES;

/// How many events the consumer handles in one transaction.
const BATCH: usize = 200;

/// What an audit found.
#[derive(Debug, Default)]
pub(crate) struct RelayAudit {
    /// Everything that was found, as text.
    pub(crate) damages: Vec<String>,
    /// The number of committed events.
    pub(crate) committed: usize,
    /// Copies beyond the first of an event.
    pub(crate) repeated: usize,
    /// Effects beyond the first of an event.
    pub(crate) duplicates: usize,
}

/// A committed sale: its shop, and its place among the sales of the shop.
#[derive(Debug, PartialEq, Eq)]
struct CommittedSale {
    shop: Option<i32>,
    place: i64,
}

/// The first arrival of an event.
struct FirstArrival<'a> {
    id: &'a str,
}

impl RelayAudit {
    /// Compares what the broker has with what was committed, and lets the consumer handle it.
    pub(crate) async fn run(
        options: &RelayTortureOptions,
        database: &PostgresServer,
        arrivals: &StreamArrivals,
    ) -> Result<Self> {
        let mut audit = Self::default();
        let sales = committed(database).await?;
        audit.committed = sales.len();
        audit.check_arrivals(&sales, &arrivals.copies)?;
        audit.check_republications(arrivals);
        let effects = consume(options, database, &arrivals.copies).await?;
        for number in sales.keys() {
            let count = effects.get(number).copied().unwrap_or_default();
            audit.duplicates += count.saturating_sub(1);
            if count != 1 {
                audit.damages.push(format!("the event of sale {number} has {count} effects"));
            }
        }
        audit.check_outbox(database).await?;
        Ok(audit)
    }

    /// Every committed event arrives, and no other; copies have one id; the first arrivals of a shop are in order.
    fn check_arrivals(&mut self, sales: &BTreeMap<i32, CommittedSale>, arrived: &[EventCopy]) -> Result<()> {
        let mut first: BTreeMap<i32, FirstArrival<'_>> = BTreeMap::new();
        let mut places: BTreeMap<i32, i64> = BTreeMap::new();
        for event in arrived {
            let (number, sale) = read(&event.payload).with_context(|| event.payload.clone())?;
            if sales.get(&number) != Some(&sale) {
                self.damages.push(format!("the event of sale {number} arrived, which was never committed so"));
                continue;
            }
            if let Some(first) = first.get(&number) {
                self.repeated += 1;
                if first.id != event.id {
                    self.damages.push(format!("the event of sale {number} has the ids {} and {}", first.id, event.id));
                }
                continue;
            }
            first.insert(number, FirstArrival { id: &event.id });
            let Some(shop) = sale.shop else { continue };
            let last = places.insert(shop, sale.place).unwrap_or_default();
            if sale.place != last + 1 {
                self.damages.push(format!("shop {shop}: place {} arrived after place {last}", sale.place));
            }
        }
        let missing = sales.keys().filter(|number| !first.contains_key(number));
        self.damages.extend(missing.map(|number| format!("the event of sale {number} never arrived")));
        Ok(())
    }

    /// Everything that a purge removed arrives again.
    fn check_republications(&mut self, arrivals: &StreamArrivals) {
        for (purge, read) in arrivals.purged.iter().enumerate() {
            let (before, after) = arrivals.copies.split_at(*read);
            let after: BTreeSet<&str> = after.iter().map(|event| event.id.as_str()).collect();
            let lost: BTreeSet<&str> = before.iter().map(|event| event.id.as_str()).collect();
            let lost = lost.difference(&after).count();
            if lost > 0 {
                self.damages.push(format!("purge {purge} removed {lost} events that were not published again"));
            }
        }
    }

    /// Each committed sale has one row of the outbox, which is published, and no key is parked.
    async fn check_outbox(&mut self, database: &PostgresServer) -> Result<()> {
        let count = "select count(*), count(*) filter (where state = 1), (select count(*) from hapax_parked) \
                     from hapax_outbox";
        let row = database.client().await?.query_one(count, &[]).await?;
        let (rows, published, parked): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        if usize::try_from(rows)? != self.committed || published != rows || parked != 0 {
            let committed = self.committed;
            self.damages.push(format!(
                "{committed} sales have {rows} rows, {published} of them published, and {parked} keys are parked"
            ));
        }
        Ok(())
    }
}

async fn committed(database: &PostgresServer) -> Result<BTreeMap<i32, CommittedSale>> {
    let rows = database.client().await?.query("select number, shop, place from sale", &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), CommittedSale { shop: row.get(1), place: row.get(2) })).collect())
}

fn read(payload: &str) -> Option<(i32, CommittedSale)> {
    let mut words = payload.split(' ');
    let number = words.next()?.parse().ok()?;
    let shop = words.next()?.parse().ok();
    Some((number, CommittedSale { shop, place: words.next()?.parse().ok()? }))
}

/// Handles what arrived as a consumer does: batch after batch, some of them twice, because their acknowledgement got
/// lost. Returns the number of effects of each sale.
async fn consume(
    options: &RelayTortureOptions,
    database: &PostgresServer,
    arrived: &[EventCopy],
) -> Result<BTreeMap<i32, usize>> {
    const WITH_INBOX: &str = "
        with fresh as (
            insert into inbox (event_id) select distinct unnest($1::text[]) on conflict do nothing returning event_id
        )
        insert into effect (number)
        select distinct e.number
          from unnest($1::text[], $2::integer[]) e (event_id, number) join fresh using (event_id)";
    const WITHOUT_INBOX: &str = "
        insert into effect (number) select e.number from unnest($1::text[], $2::integer[]) e (event_id, number)";
    let client = database.client().await?;
    let statement = if options.has_inbox { WITH_INBOX } else { WITHOUT_INBOX };
    let mut random = SplitMix::new(options.seed, REDELIVERIES, 0);
    for batch in arrived.chunks(BATCH) {
        let ids: Vec<&str> = batch.iter().map(|event| event.id.as_str()).collect();
        let numbers: Vec<i32> = batch.iter().filter_map(|event| Some(read(&event.payload)?.0)).collect();
        client.execute(statement, &[&ids, &numbers]).await?;
        if options.has_inbox && random.percent(20) {
            client.execute(statement, &[&ids, &numbers]).await?;
        }
    }
    let rows = client.query("select number, count(*) from effect group by number", &[]).await?;
    rows.iter().map(|row| Ok((row.get(0), usize::try_from(row.get::<_, i64>(1))?))).collect()
}

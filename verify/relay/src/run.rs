use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hapax_testkit::servers::{PostgresServer, PostgresServerOptions};
use hapax_torture::{SplitMix, built};
use tokio::process::Command;
use tokio::time::sleep;
use tokio::try_join;

use crate::audit::RelayAudit;
use crate::broker::{SinkBroker, TorturedBroker};
use crate::faults::{self, RelayFault};
use crate::relays::Relays;
use crate::sale::{FAULTS, Sale};
use crate::writers::SaleWriters;

/// A run whose number of open rows stands still for so long has failed.
const STALLED: Duration = Duration::from_secs(60);

/// About how long a fault takes. The writers go on meanwhile.
const FAULT_TIME: Duration = Duration::from_secs(4);

/// The options of a run.
#[derive(Clone, Debug)]
pub struct RelayTortureOptions {
    /// The number of transactions with an event.
    pub events: u32,
    /// The number of ordering keys.
    pub keys: u32,
    /// Decides the transactions and the faults.
    pub seed: u64,
    /// The kind of the broker.
    pub broker: SinkBroker,
    /// Which faults happen.
    pub faults: Vec<RelayFault>,
    /// Whether the consumer remembers the ids of events. Without that the audit must fail.
    pub has_inbox: bool,
    /// A known bug of the relays, which the audit must find. They need the feature `chaos`.
    pub mutant: Option<String>,
}

/// What a run gave.
#[derive(Debug)]
pub struct RelayTortureResult {
    /// How often each fault happened.
    pub faults: BTreeMap<RelayFault, u32>,
    /// The number of committed events.
    pub committed: usize,
    /// Copies beyond the first of an event, in the broker.
    pub repeated: usize,
    /// Relays that ended by themselves, and were started again.
    pub ended: u32,
    /// Relays that did not end with 0 at SIGTERM.
    pub ended_badly: u32,
    /// Effects beyond the first of an event.
    pub duplicates: usize,
    /// Everything that was found.
    pub damages: Vec<String>,
    /// How long it took.
    pub took: Duration,
}

/// A running world. Everything ends when it is dropped.
pub(crate) struct RelayWorld {
    pub(crate) relays: Relays,
    pub(crate) broker: TorturedBroker,
    pub(crate) database: PostgresServer,
    /// The file with the events of republications.
    audit: PathBuf,
}

/// Runs the options, with the log of the relays in a folder.
///
/// # Errors
/// If a process or a server does not start, or if nothing is published for a minute.
pub async fn run(options: &RelayTortureOptions, folder: &Path) -> Result<RelayTortureResult> {
    let begun = Instant::now();
    let sales: Vec<Sale> = (0..options.events).map(|number| Sale::draw(options, number)).collect();
    let database = PostgresServer::start(PostgresServerOptions::new()).await?;
    let broker = TorturedBroker::start(options.broker).await?;
    let writers = SaleWriters::create(database.url(), options.keys).await?;
    let relays = Relays::start(&broker, database.address(), folder, options.mutant.clone()).await?;
    let audit = folder.join("audit.jsonl");
    let mut world = RelayWorld { relays, broker, database, audit };
    let mut random = SplitMix::new(options.seed, FAULTS, 1);
    let plan = faults::plan(options);
    let mut faults = BTreeMap::new();
    // The first ones are published before anything happens.
    let (first, sales) = sales.split_at(sales.len() / 20);
    writers.write(first, Duration::from_secs(1)).await?;
    world.wait_until_published().await?;
    let share = sales.len().div_ceil(plan.len());
    for (number, (fault, sales)) in (1..).zip(plan.iter().zip(sales.chunks(share))) {
        try_join!(writers.write(sales, FAULT_TIME), faults::happen(*fault, &mut world, &mut random))?;
        world.relays.revive()?;
        *faults.entry(*fault).or_default() += 1;
        println!("  {number} of {} faults, {:.0} s", plan.len(), begun.elapsed().as_secs_f64());
    }
    world.wait_until_published().await?;
    let ended_badly = world.relays.end().await?;
    let arrivals = world.broker.into_arrivals().await?;
    let RelayAudit { mut damages, committed, repeated, duplicates } =
        RelayAudit::run(options, &world.database, &arrivals).await?;
    let (ended, took) = (world.relays.ended, begun.elapsed());
    damages.extend(ends(ended, ended_badly));
    Ok(RelayTortureResult { faults, committed, repeated, ended, ended_badly, duplicates, damages, took })
}

/// What is wrong with the ends of the relays. No fault may make one end by itself, not even at its start.
fn ends(by_themselves: u32, badly: u32) -> impl Iterator<Item = String> {
    let ends = [(by_themselves, "ended by themselves"), (badly, "did not end with 0 at SIGTERM")];
    ends.into_iter().filter(|(count, _)| *count > 0).map(|(count, how)| format!("{count} relays {how}"))
}

impl RelayWorld {
    /// Publishes everything again.
    pub(crate) async fn republish(&mut self) -> Result<()> {
        let mut republish = Command::new(built("hapax")?);
        republish.args(["outbox", "republish", "--since", "1d", "--database", &self.database.url()]);
        republish.arg("--audit-file").arg(&self.audit);
        let output = republish.output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Waits until no row is open of those that there are now. The writers go on.
    pub(crate) async fn catch_up(&mut self) -> Result<()> {
        let last = "select coalesce(max(id), 0) from hapax_outbox";
        let last = self.database.client().await?.query_one(last, &[]).await?.get(0);
        self.wait_until_published_up_to(last).await
    }

    /// Waits until no row is open. A row that was set aside is found by the audit.
    async fn wait_until_published(&mut self) -> Result<()> {
        self.wait_until_published_up_to(i64::MAX).await
    }

    async fn wait_until_published_up_to(&mut self, row: i64) -> Result<()> {
        let (mut last, mut changed) = (-1, Instant::now());
        let client = self.database.client().await?;
        loop {
            let count = "select count(*) from hapax_outbox where state = 0 and id <= $1";
            let open: i64 = client.query_one(count, &[&row]).await?.get(0);
            if open == 0 {
                return Ok(());
            }
            if open != last {
                (last, changed) = (open, Instant::now());
            }
            ensure!(changed.elapsed() < STALLED, "nothing is published for {STALLED:?}; {open} rows are open");
            self.relays.revive()?;
            sleep(Duration::from_millis(100)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_that_ends_by_itself_or_badly_is_a_finding() {
        let found = |by_themselves, badly| ends(by_themselves, badly).collect::<Vec<_>>();
        assert!(found(0, 0).is_empty());
        assert_eq!(found(2, 0), ["2 relays ended by themselves"]);
        assert_eq!(found(0, 1), ["1 relays did not end with 0 at SIGTERM"]);
    }
}

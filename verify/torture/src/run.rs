//! One run, from the start of the servers to the audit.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::audit::{FoundDamage, TransferAudit, TransferDamage};
use crate::bank;
use crate::client::HostileClient;
use crate::faults;
use crate::journal::{DefiniteAnswer, TransferJournal};
use crate::options::{FaultSelection, RecordHome, TortureFault, TortureOptions};
use crate::order::TransferOrder;
use crate::process::RestartableProcess;
use crate::world::TortureWorld;

/// How many orders are open at the same time.
const OPEN_ORDERS: usize = 96;

/// A run in which nothing is settled for so long has failed.
const STALLED: Duration = Duration::from_secs(180);

/// What a run gave.
#[derive(Debug)]
pub struct TortureResult {
    /// How often each fault happened.
    pub faults: BTreeMap<TortureFault, u32>,
    /// Connections that the proxies have cut.
    pub cuts: u64,
    /// What the client has sent and got, by name.
    pub counts: BTreeMap<String, u64>,
    /// Effects beyond the first of an operation, before the records were removed for the last time.
    pub duplicates_in_run: u64,
    /// Copies that were answered after all records had been removed: from the ledger alone.
    pub from_the_ledger: u64,
    /// Transfers whose last copy was answered with `outcome-unknown`.
    pub unknown: usize,
    /// Everything that the audit found.
    pub damages: Vec<FoundDamage>,
    /// How long it took.
    pub took: Duration,
}

impl TortureResult {
    /// How often the audit found this.
    pub fn count(&self, damage: TransferDamage) -> usize {
        self.damages.iter().filter(|found| found.damage == damage).count()
    }
}

/// Runs the options, with the files of the run in a folder.
///
/// # Errors
/// If a process or a server does not start, or ends by itself, or if nothing is settled for three minutes.
pub async fn run(options: TortureOptions, folder: &Path) -> Result<TortureResult> {
    let begun = Instant::now();
    let world = Arc::new(TortureWorld::start(folder, options.service).await?);
    let orders: Vec<_> = (0..options.transfers).map(|number| TransferOrder::draw(options.seed, number)).collect();
    let is_held = options.service.is_held();
    let journal = TransferJournal::create(&folder.join("journal"), options.transfers, is_held)?;
    let gateways = world.gateways.iter().map(RestartableProcess::address).collect();
    let client = HostileClient { gateways, journal, seed: options.seed };
    let faults = order_everything(&options, &world, &client, &orders).await?;
    let cuts = world.database_proxy.counts().cuts;
    if let FaultSelection::CutCommits(planned) = options.faults {
        ensure!(cuts == u64::from(planned), "only {cuts} of {planned} connections were cut");
    }
    world.heal().await?;
    // Completions that wait for a store are recorded by then, and every lease of a killed gateway has expired.
    sleep(Duration::from_secs(4)).await;
    let duplicates_in_run = bank::duplicates(&world.database).await?;
    if options.service.record_home() == RecordHome::Database {
        ask_once(&client, &orders).await?;
    }
    if !is_held {
        world.forget_records().await?;
    }
    let let_through = client.journal.let_through();
    ask_again(&client, &orders).await?;
    world.check().await?;
    let rows = bank::read(&world.database).await?;
    let answers: Vec<_> = orders.iter().map(|order| client.journal.answers(order.number)).collect();
    let stuck = client.journal.stuck();
    let has_ledger = options.service.has_ledger();
    let audit = TransferAudit { orders: &orders, answers: &answers, stuck: &stuck, rows: &rows, has_ledger, is_held };
    Ok(TortureResult {
        faults,
        cuts: world.cuts(),
        counts: client.journal.counts()?,
        duplicates_in_run,
        from_the_ledger: client.journal.let_through() - let_through,
        unknown: answers.iter().filter(|answers| answers.last().is_some_and(DefiniteAnswer::is_unknown)).count(),
        damages: audit.run(),
        took: begun.elapsed(),
    })
}

/// Lets the client order everything while the faults happen. Returns how often each fault happened.
async fn order_everything(
    options: &TortureOptions,
    world: &Arc<TortureWorld>,
    client: &HostileClient,
    orders: &[TransferOrder],
) -> Result<BTreeMap<TortureFault, u32>> {
    let (progress, settled) = watch::channel(0);
    let mut faults = JoinSet::new();
    for fault in faults::plan(options) {
        let (world, settled) = (Arc::clone(world), settled.clone());
        faults.spawn(async move { fault.happen(&world, settled).await });
    }
    let happened = async {
        let mut happened = BTreeMap::new();
        while let Some(fault) = faults.join_next().await {
            *happened.entry(fault??).or_default() += 1;
        }
        anyhow::Ok(happened)
    };
    let ordered = async {
        let ordered = stream::iter(orders).map(|order| async {
            client.order(order).await?;
            client.copy_one(&orders[..=order.number as usize]).await?;
            progress.send_modify(|settled| *settled += 1);
            anyhow::Ok(())
        });
        ordered.buffer_unordered(OPEN_ORDERS).try_collect::<()>().await
    };
    tokio::select! {
        done = async { tokio::try_join!(happened, ordered) } => Ok(done?.0),
        stalled = report_progress("settled", options.transfers, settled) => stalled,
    }
}

/// Sends one copy of every order, after every lease has expired.
async fn ask_once(client: &HostileClient, orders: &[TransferOrder]) -> Result<()> {
    let all = stream::iter(orders).map(|order| client.ask_once(order));
    Ok(all.buffer_unordered(OPEN_ORDERS).try_collect::<()>().await?)
}

/// Asks for every order once more.
async fn ask_again(client: &HostileClient, orders: &[TransferOrder]) -> Result<()> {
    let asked = AtomicU32::new(0);
    let (progress, settled) = watch::channel(0);
    let all = stream::iter(orders).map(|order| async {
        client.ask_again(order).await?;
        progress.send_replace(asked.fetch_add(1, Ordering::Relaxed) + 1);
        anyhow::Ok(())
    });
    let count = u32::try_from(orders.len())?;
    tokio::select! {
        asked = all.buffer_unordered(OPEN_ORDERS).try_collect::<()>() => asked,
        stalled = report_progress("asked again", count, settled) => stalled,
    }
}

/// Prints a line every ten seconds. Returns only if nothing happens for too long.
async fn report_progress<T>(what: &str, of: u32, settled: watch::Receiver<u32>) -> Result<T> {
    let (begun, mut last, mut changed) = (Instant::now(), 0, Instant::now());
    loop {
        sleep(Duration::from_secs(10)).await;
        let now = *settled.borrow();
        if now != last {
            (last, changed) = (now, Instant::now());
        }
        if changed.elapsed() > STALLED {
            bail!("nothing is {what} for {STALLED:?}, after {now} of {of}");
        }
        println!("  {now} of {of} transfers {what}, {:.0} s", begun.elapsed().as_secs_f64());
    }
}

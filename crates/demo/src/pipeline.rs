//! The whole pipeline: three layers between hostile clients and a consumer, each part in a process of its own.
//!
//! ```text
//!            layer 1                         layer 2                  layer 3
//! clients ──► gateway ──► ingest ──► queue ──► worker ──► outbox ──► relay ──► queue ──► consumer
//!    │      gateway.db    └───────────── shop.db ────────────┘                └─── post.db ───┘
//!    └── answers ──────────────────────────► audit ◄── requests, charges, receipts
//! ```
//!
//! With servers, the three files are a store, one database and a broker.
//!
//! `ingest.rs`, `in_files/` and `on_servers/` are the services, `system.rs` starts all processes, `faults.rs` kills and
//! pauses them, `collected.rs` gathers what is left, and `audit.rs` and `table.rs` judge it.

mod audit;
mod books;
mod collected;
mod delivery;
mod faults;
mod in_files;
mod ingest;
mod member;
mod messages;
#[cfg(feature = "postgres")]
mod on_servers;
#[cfg(not(feature = "postgres"))]
#[path = "pipeline/without_servers.rs"]
mod on_servers;
mod places;
mod report;
mod rows;
pub(super) mod service;
mod shop;
mod system;
mod table;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use hapax_systems::StoreUrl;

use self::audit::Audit;
use self::collected::Collected;
use self::faults::Faults;
pub(super) use self::ingest::Ingest;
pub(super) use self::shop::Shop;
use self::system::System;
use super::client::PaymentClient;
use super::client_log;
use super::customer::{CustomerContext, Customers};
use super::progress::Progress;
use super::random::fresh_seed;
use super::{DemoArgs, OmittedLayer};
use crate::DemoError;

/// What a run of the pipeline does.
#[derive(Debug)]
pub(super) struct Scenario {
    seed: u64,
    payments: u32,
    /// How often each process is killed or paused.
    rounds: u32,
    /// The store of the gateways. None for a file of the run.
    store: Option<String>,
    /// None for files of the run.
    servers: Option<ServerUrls>,
    keep: bool,
    pub(super) without: Option<OmittedLayer>,
}

/// The servers of a run, as the user names them.
#[derive(Clone)]
pub(super) struct ServerUrls {
    pub(super) store: String,
    pub(super) database: String,
    pub(super) broker: String,
}

impl Scenario {
    /// Refuses more faults than payments: each round of faults waits for a payment of its own.
    pub(super) fn new(args: &DemoArgs) -> Result<Self> {
        let (payments, rounds) = (args.payments, args.crashes.unwrap_or(args.payments.div_ceil(100)));
        if rounds > payments {
            bail!("--crashes: {rounds} is more than --payments {payments}; kill the processes less often");
        }
        if let Some(store) = &args.store {
            check_store(store).context("--store")?;
        }
        let (seed, store) = (args.seed.unwrap_or_else(fresh_seed), args.store.clone());
        let servers = match (&store, &args.database, &args.broker) {
            (Some(store), Some(database), Some(broker)) => {
                let [store, database, broker] = [store, database, broker].map(String::clone);
                let urls = ServerUrls { store, database, broker };
                on_servers::check(&urls)?;
                Some(urls)
            }
            _ => None,
        };
        Ok(Self { seed, payments, rounds, store, servers, keep: args.keep, without: args.without })
    }

    fn has(&self, layer: OmittedLayer) -> bool {
        self.without != Some(layer)
    }
}

/// Refuses a store that two gateways cannot share.
fn check_store(url: &str) -> Result<()> {
    let store: StoreUrl = url.parse()?;
    if store.ends_with_process() {
        bail!("two gateways cannot share {}; name another store", store.place());
    }
    Ok(())
}

/// Runs the scenario and returns whether the audit holds.
pub(super) async fn play(scenario: &Scenario, folder: &Path) -> Result<bool, DemoError> {
    report::introduce(scenario);
    let (places, shop) = places::create(scenario, folder).await.map_err(DemoError::CannotStart)?;
    let system = System::start(scenario, places, folder).await.map_err(DemoError::CannotStart)?;
    perform(scenario, (system, Arc::new(shop)), folder).await.map_err(DemoError::Failed)
}

async fn perform(scenario: &Scenario, (system, shop): (System, Arc<Shop>), folder: &Path) -> Result<bool> {
    let progress = Arc::new(Progress::new(scenario.payments, scenario.rounds));
    let client = PaymentClient::new(system.entrances());
    let context = CustomerContext::new(client, Arc::clone(&shop), Arc::clone(&progress));
    let customers = Customers::new(scenario.seed, scenario.payments, &context);
    let mut faults = Faults::new(scenario, system, Arc::clone(&shop));

    let drained = tokio::select! {
        drained = pay_and_drain(&customers, &progress, &shop) => drained?,
        error = faults.repeat(&progress) => return Err(error),
        never = shop.show(&progress) => match never {},
    };
    let clients = customers.logs();
    client_log::save(&clients, &folder.join("answers.log"))?;
    let collected = Collected::gather(scenario, clients, (faults.end().await?, &shop)).await?;
    let audit = Audit::new(&collected);
    report::show(&audit, &collected, &progress);
    let holds = audit.is_clean() && drained;
    report::conclude(&audit, &collected, drained);
    // What a failed run leaves on the servers shows why.
    if holds
        && !scenario.keep
        && let Err(error) = shop.books.remove().await
    {
        report::left_behind(&error);
    }
    Ok(holds)
}

/// Makes all payments, repeats them after the last fault, and waits until every message and event has arrived. Returns
/// whether they have.
async fn pay_and_drain(customers: &Customers, progress: &Progress, shop: &Arc<Shop>) -> Result<bool> {
    customers.pay().await?;
    progress.wait_for_crashes().await;
    customers.repeat().await?;
    shop.drain().await
}

impl fmt::Debug for ServerUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerUrls").finish_non_exhaustive()
    }
}

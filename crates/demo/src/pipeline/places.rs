//! Where the parts of a run keep their data: in three files of the run, or on servers. No other module knows both.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use hapax::broker::Process;
use hapax_systems::{SinkUrl, StoreUrl};

use super::Scenario;
use super::ingest::Intake;
use super::service::DemoServiceArgs;
use super::shop::Shop;
use super::{in_files, on_servers};
use crate::runtime;

/// The number of processes of each role, except the ingest service. Where one of them dies or stands still, the other
/// one takes over.
pub(super) const EACH: usize = 2;

/// URLs. They may contain passwords.
pub(super) struct Places {
    /// The records of the gateways.
    pub(super) store: String,
    /// The database of the service and its workers: ledger, outbox and charges.
    pub(super) shop: String,
    /// The database of the consumers: inbox and receipts.
    pub(super) post: String,
    /// Where the service publishes its messages. Empty: in a queue of its database.
    pub(super) charges: String,
    /// Where each worker gets them.
    pub(super) to_workers: [String; EACH],
    /// Where the relays publish.
    pub(super) receipts: String,
    /// Where each consumer gets events.
    pub(super) to_consumers: [String; EACH],
}

/// Creates the places of a run, and opens the books.
pub(super) async fn create(scenario: &Scenario, folder: &Path) -> Result<(Places, Shop)> {
    let (places, books) = match &scenario.servers {
        Some(servers) => on_servers::create(servers).await?,
        None => in_files::create(scenario.store.clone(), folder)?,
    };
    let outbox = places.shop.parse::<StoreUrl>()?.outbox(runtime(), false)?;
    Ok((places, Shop::new(books, outbox.upkeep)))
}

/// What the ingest service does with requests.
pub(super) async fn intake(args: &DemoServiceArgs) -> Result<Box<dyn Intake>> {
    match file(args)? {
        Some(file) => in_files::intake(args, &file),
        None => on_servers::intake(args, args.sink.parse::<SinkUrl>()?.open(runtime()).await?),
    }
}

/// What the workers do with messages.
pub(super) async fn charge_messages(args: &DemoServiceArgs) -> Result<Arc<dyn Process>> {
    match file(args)? {
        Some(file) => in_files::charge_messages(args, &file).await,
        None => on_servers::charge_messages(&args.database),
    }
}

/// What the consumers do with events.
pub(super) fn send_receipts(args: &DemoServiceArgs) -> Result<Arc<dyn Process>> {
    match file(args)? {
        Some(file) => in_files::send_receipts(&file),
        None => on_servers::send_receipts(&args.database),
    }
}

/// The file of a service, unless it is on servers.
fn file(args: &DemoServiceArgs) -> Result<Option<PathBuf>> {
    Ok(args.database.parse::<StoreUrl>()?.file().map(Path::to_owned))
}

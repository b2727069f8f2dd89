//! Where the parts of a run keep their data: in three files of the run, or on servers.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

use super::Scenario;
use super::books::FileBooks;
use super::database::{CHARGES, RECEIPTS};
use super::shop::Shop;
use crate::Systems;

/// The number of processes of each role, except the ingest service. Where one of them dies or stands still, the other
/// one takes over.
pub(super) const EACH: usize = 2;

/// URLs. They may contain passwords.
#[derive(Clone)]
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

impl Places {
    /// The files of a run.
    pub(super) fn files(folder: &Path, store: Option<String>) -> Self {
        let file = |name: &str| format!("sqlite://{}", folder.join(name).display());
        let (shop, post) = (file("shop.db"), file("post.db"));
        let (charges, receipts) = (format!("{shop}?queue={CHARGES}"), format!("{post}?queue={RECEIPTS}"));
        Self {
            store: store.unwrap_or_else(|| file("gateway.db")),
            charges: String::new(),
            to_workers: [charges.clone(), charges],
            to_consumers: [receipts.clone(), receipts.clone()],
            receipts,
            shop,
            post,
        }
    }
}

/// Creates the places of a run, and opens the books.
pub(super) async fn create(scenario: &Scenario, systems: &dyn Systems, folder: &Path) -> Result<(Places, Shop)> {
    if let Some(servers) = &scenario.servers {
        let (places, books) = super::servers::create(servers, systems).await?;
        let shop = Shop::new(books, systems.outbox(&places.shop)?);
        return Ok((places, shop));
    }
    let places = Places::files(folder, scenario.store.clone());
    let books = FileBooks::create(&folder.join("shop.db"), &folder.join("post.db"))?;
    let shop = Shop::new(Arc::new(books), systems.outbox(&places.shop)?);
    Ok((places, shop))
}

//! All that a run leaves behind. The audit and the table of the layers read nothing else.

use anyhow::Result;

use super::Scenario;
use super::books::Backlog;
use super::delivery::CaughtCopies;
use super::member::Suffered;
use super::rows::{ChargeRow, ReceiptRow, RequestRow};
use super::shop::Shop;
use super::system::Remains;
use crate::OmittedLayer;
use crate::client_log::ClientLog;

/// What clients, services and queues have at the end of a run.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) without: Option<OmittedLayer>,
    pub(super) clients: Vec<ClientLog>,
    /// Every list of rows is in the order of the ids.
    pub(super) requests: Vec<RequestRow>,
    pub(super) charges: Vec<ChargeRow>,
    pub(super) receipts: Vec<ReceiptRow>,
    /// The number of events in the outbox. None without one.
    pub(super) events: Option<u64>,
    /// What has not arrived.
    pub(super) backlog: Backlog,
    /// Messages and events that nobody could process, and keys that wait for an operator.
    pub(super) dead: u64,
    pub(super) parked: u64,
    /// What workers and consumers caught.
    pub(super) by_ledger: CaughtCopies,
    pub(super) by_inbox: CaughtCopies,
    /// The number of events that the demo published again.
    pub(super) replayed: u64,
    /// The faults of each process.
    pub(super) suffered: Vec<(String, Suffered)>,
}

impl Collected {
    /// Reads everything. No process runs any more.
    pub(super) async fn gather(
        scenario: &Scenario,
        clients: Vec<ClientLog>,
        (remains, shop): (Remains, &Shop),
    ) -> Result<Self> {
        let rows = shop.books.rows().await?;
        Ok(Self {
            without: scenario.without,
            clients,
            requests: rows.requests,
            charges: rows.charges,
            receipts: rows.receipts,
            events: scenario.has(OmittedLayer::Outbox).then_some(rows.events),
            backlog: shop.books.backlog().await?,
            dead: rows.dead,
            parked: rows.parked,
            by_ledger: CaughtCopies::read(&remains.notes.workers, &rows.places),
            by_inbox: CaughtCopies::read(&remains.notes.consumers, &rows.places),
            replayed: shop.replayed(),
            suffered: remains.suffered,
        })
    }
}

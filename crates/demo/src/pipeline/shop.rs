//! What the demo itself does while the services work: it looks how far they have come, delivers messages again, and
//! publishes old events again.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use hapax::Timestamp;
use hapax::outbox::{OutboxUpkeep, RowId};
use parking_lot::Mutex;
use tokio::time::sleep;

use super::books::{Backlog, ShopBooks};
use crate::number_format::grouped;
use crate::progress::Progress;

/// The books and the outbox of a run.
#[derive(Debug)]
pub(in super::super) struct Shop {
    pub(super) books: Arc<dyn ShopBooks>,
    outbox: Arc<dyn OutboxUpkeep>,
    replayed: AtomicU64,
}

/// How long a fault waits for something to interrupt.
const WORK: Duration = Duration::from_millis(500);

/// How long the last messages and events may take, without any progress.
const DRAIN: Duration = Duration::from_secs(60);

impl Shop {
    /// The services write these books, and the workers emit events into this outbox.
    pub(super) fn new(books: Arc<dyn ShopBooks>, outbox: Arc<dyn OutboxUpkeep>) -> Self {
        Self { books, outbox, replayed: AtomicU64::new(0) }
    }

    /// The number of events that the demo published again.
    pub(super) fn replayed(&self) -> u64 {
        self.replayed.load(Ordering::Relaxed)
    }

    /// Waits until nothing is under way. Returns false if something stays.
    pub(super) async fn drain(&self) -> Result<bool> {
        let (look, copies) = self.books.pauses();
        let (mut last, mut changed) = (Backlog::default(), Instant::now());
        loop {
            let backlog = self.books.backlog().await?;
            if backlog == Backlog::default() {
                break;
            }
            if backlog != last {
                (last, changed) = (backlog, Instant::now());
            }
            if changed.elapsed() > DRAIN {
                return Ok(false);
            }
            sleep(look.max(Duration::from_millis(50))).await;
        }
        sleep(copies).await;
        Ok(true)
    }

    /// Waits until a card is charged whose event is not published, but not for long: then a fault hurts most.
    pub(super) async fn wait_for_work(&self) {
        let started = Instant::now();
        while started.elapsed() < WORK && self.books.is_all_published().await.unwrap_or(true) {
            sleep(self.books.pauses().0).await;
        }
    }

    /// Lets old events be published again, as an operator does for a broker that lost them.
    pub(super) async fn replay(&self, events: u32) -> Result<()> {
        let (published, rows): (Range<Timestamp>, _) = (Timestamp(0)..Timestamp(u64::MAX), usize::try_from(events)?);
        let started = Instant::now();
        let republish = async || {
            self.outbox.begin_republication().await?;
            self.outbox.republish(&published, RowId(0), rows).await
        };
        loop {
            match republish().await {
                Ok(reopened) => {
                    let rows = reopened.map_or(0, |reopened| reopened.rows);
                    self.replayed.fetch_add(u64::try_from(rows)?, Ordering::Relaxed);
                    return Ok(());
                }
                Err(error) if started.elapsed() > DRAIN => return Err(error.into()),
                // Another process writes, or the server was killed.
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Shows the progress until the future is dropped.
    pub(super) async fn show(&self, progress: &Progress) -> Infallible {
        let counts = Mutex::new((0, 0));
        let read = async {
            loop {
                if let Ok(read) = self.books.counts().await {
                    *counts.lock() = read;
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        let more = || {
            let (charges, receipts) = *counts.lock();
            format!("   charges {}   receipts {}", grouped(charges), grouped(receipts))
        };
        tokio::select! {
            never = read => never,
            never = progress.show(more) => never,
        }
    }

    /// Waits until a request for this payment has arrived.
    pub(in super::super) async fn wait_for_request(&self, payment: u32) {
        // The demo is over soon if the books cannot be read.
        while self.books.has_request(payment).await.is_ok_and(|has_request| !has_request) {
            sleep(self.books.pauses().0.max(Duration::from_millis(5))).await;
        }
    }
}

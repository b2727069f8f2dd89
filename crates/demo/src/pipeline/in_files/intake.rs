use std::path::Path;

use anyhow::Result;
use async_trait::async_trait;
use hapax::stores::SqliteQueue;
use parking_lot::Mutex;
use rusqlite::{Connection, TransactionBehavior};
use tokio::task::block_in_place;

use super::database;
use crate::pipeline::ingest::{Intake, result};
use crate::pipeline::messages::{CHARGES, message};
use crate::pipeline::rows::ENQUEUED;
use crate::traffic::{PaymentOrder, ServiceBehavior};

/// The shop in a file. The queue is in it, too.
pub(super) struct FileIntake {
    seed: u64,
    shop: Mutex<Connection>,
    queue: SqliteQueue,
}

impl FileIntake {
    /// Opens the file of the shop.
    pub(super) fn open(shop: &Path, seed: u64) -> Result<Self> {
        Ok(Self { seed, shop: Mutex::new(database::open_shop(shop)?), queue: SqliteQueue::new(CHARGES)? })
    }

    /// Request and message are in one transaction.
    fn write(&self, order: &PaymentOrder, operation: &str) -> Result<(i64, ServiceBehavior)> {
        let mut shop = self.shop.lock();
        let transaction = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let arrival = database::count_requests(&transaction, order.payment)?;
        let behavior = ServiceBehavior::new(self.seed, order.payment, arrival);
        let result = result(behavior);
        if result == ENQUEUED {
            self.queue.enqueue(&transaction, &message(order, operation))?;
        }
        let request = database::insert_request(&transaction, operation, order, result)?;
        transaction.commit()?;
        Ok((request, behavior))
    }
}

#[async_trait]
impl Intake for FileIntake {
    async fn take(&self, order: &PaymentOrder, operation: &str) -> Result<(i64, ServiceBehavior)> {
        block_in_place(|| self.write(order, operation))
    }
}

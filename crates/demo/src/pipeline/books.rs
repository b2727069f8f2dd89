//! What the services of a run write down: requests, charges and receipts.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;

use super::rows::{ChargeRow, ReceiptRow, RequestRow};

/// What the demo reads while the services write, and the faults that only the keeper of their queues can cause.
#[async_trait]
pub(super) trait ShopBooks: fmt::Debug + Send + Sync + 'static {
    /// How far the work has come.
    async fn backlog(&self) -> Result<Backlog>;

    /// The numbers of charges and of receipts.
    async fn counts(&self) -> Result<(u64, u64)>;

    /// Whether the event of each charge is published.
    async fn is_all_published(&self) -> Result<bool>;

    /// Whether a request for this payment has arrived.
    async fn has_request(&self, payment: u32) -> Result<bool>;

    /// Puts copies of some earlier messages into the queue of the workers.
    async fn redeliver(&self, instance: (u64, u32), copies: u32) -> Result<()>;

    /// Lets the broker forget the events that it has seen, as at the end of its window.
    async fn forget(&self) -> Result<()>;

    /// Reads everything.
    async fn rows(&self) -> Result<BookRows>;

    /// Removes what the run has created on servers.
    async fn remove(&self) -> Result<()>;

    /// How long to wait before the next look, and how long copies that nobody counts may be on their way.
    fn pauses(&self) -> (Duration, Duration);
}

/// How far the work has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    /// Messages for the workers.
    pub(super) queue: u64,
    /// Events that are not published.
    pub(super) outbox: u64,
    /// Events for the consumers.
    pub(super) broker: u64,
}

/// Everything that the services of a run have written.
#[derive(Debug, Default)]
pub(super) struct BookRows {
    /// Every list is in the order of the ids.
    pub(super) requests: Vec<RequestRow>,
    pub(super) charges: Vec<ChargeRow>,
    pub(super) receipts: Vec<ReceiptRow>,
    /// Events in the outbox.
    pub(super) events: u64,
    /// Messages and events that nobody could process, and keys that wait for an operator.
    pub(super) dead: u64,
    pub(super) parked: u64,
    /// Where the messages and events lie that had an effect, where a broker says it.
    pub(super) places: HashSet<String>,
}

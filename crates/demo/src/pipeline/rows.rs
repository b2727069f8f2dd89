//! What the services of the demo write down, in files and on servers.

use super::delivery::Cause;
use crate::traffic::PaymentOrder;

/// A request, as the ingest service saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestRow {
    pub(super) id: i64,
    /// The key of its message.
    pub(super) operation: String,
    pub(super) order: PaymentOrder,
    /// Whether its message is in the queue.
    pub(super) is_enqueued: bool,
}

/// A charge of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChargeRow {
    pub(super) id: i64,
    /// The key of the message.
    pub(super) operation: String,
    pub(super) order: PaymentOrder,
    pub(super) account: String,
    pub(super) cause: Cause,
}

/// A receipt, sent because of the event of a charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReceiptRow {
    pub(super) id: i64,
    pub(super) charge: i64,
    pub(super) order: PaymentOrder,
    pub(super) account: String,
    pub(super) cause: Cause,
}

/// The result of a request whose message is in the queue.
pub(super) const ENQUEUED: &str = "enqueued";

/// The account that a payment belongs to. Its charges and events have an order.
pub(super) fn account(order: &PaymentOrder) -> String {
    format!("account-{}", order.payment % ACCOUNTS)
}

const ACCOUNTS: u32 = 32;

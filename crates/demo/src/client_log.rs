//! The requests and responses of the clients. The audit compares them with the log of the payment service.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::response::ReceivedResponse;
use super::traffic::{OrderVersion, Payment};

/// The payment, the requests and the responses of one client.
#[derive(Debug, Clone)]
pub(super) struct ClientLog {
    pub(super) payment: Payment,
    /// Every request, in the order in which the requests ended.
    pub(super) exchanges: Vec<Exchange>,
    /// Whether the client stopped retrying without a final response.
    pub(super) gave_up: bool,
}

/// A request and its response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exchange {
    /// The order in the request.
    pub(super) version: OrderVersion,
    /// The response.
    pub(super) response: ReceivedResponse,
    /// The time of the request, by a logical clock: a later event has a larger number.
    pub(super) sent_at: u64,
    /// The time of the response, by the same clock.
    pub(super) received_at: u64,
}

impl ClientLog {
    /// Creates an empty log.
    pub(super) fn new(payment: Payment) -> Self {
        Self { payment, exchanges: Vec::new(), gave_up: false }
    }

    /// Returns the exchanges that sent this order.
    pub(super) fn exchanges_of(&self, version: OrderVersion) -> impl Iterator<Item = &Exchange> {
        self.exchanges.iter().filter(move |exchange| exchange.version == version)
    }

    /// Returns the number of requests that were sent.
    pub(super) fn requests(&self) -> usize {
        let sent = self.exchanges.iter().filter(|exchange| exchange.response.is_sent());
        sent.count()
    }
}

/// Writes the logs to a file, one line for each request, for the analysis of a finding.
pub(super) fn save(logs: &[ClientLog], path: &Path) -> Result<()> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut file = BufWriter::new(file);
    for log in logs {
        for exchange in &log.exchanges {
            writeln!(file, "{}", line(log, exchange))?;
        }
    }
    Ok(file.flush()?)
}

fn line(log: &ClientLog, exchange: &Exchange) -> Value {
    let settling = exchange.response.settling();
    let body = settling.map(|response| String::from_utf8_lossy(&response.body));
    json!({
        "payment": log.payment.number,
        "nonce": log.payment.order(exchange.version).nonce,
        "sent": exchange.sent_at,
        "heard": exchange.received_at,
        "answer": exchange.response.to_string(),
        "body": body,
    })
}

//! What the clients write down. The audit believes nothing else but the payment service's log.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::answer::Answer;
use super::traffic::{Asked, Payment};

/// What one client wanted, asked, and was told.
#[derive(Debug, Clone)]
pub(super) struct Note {
    /// What it wanted.
    pub(super) payment: Payment,
    /// Every request, in the order in which they ended.
    pub(super) exchanges: Vec<Exchange>,
    /// Whether it stopped asking without an answer that settles the payment.
    pub(super) gave_up: bool,
}

/// A request and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exchange {
    /// What was asked.
    pub(super) asked: Asked,
    /// What was told.
    pub(super) answer: Answer,
    /// The moment of the request. Moments are counted, not measured: a later one has a higher number.
    pub(super) sent: u64,
    /// The moment of the answer.
    pub(super) heard: u64,
}

impl Note {
    /// An empty note.
    pub(super) fn new(payment: Payment) -> Self {
        Self { payment, exchanges: Vec::new(), gave_up: false }
    }

    /// The exchanges in which this was asked.
    pub(super) fn about(&self, asked: Asked) -> impl Iterator<Item = &Exchange> {
        self.exchanges.iter().filter(move |exchange| exchange.asked == asked)
    }

    /// How many requests were sent.
    pub(super) fn requests(&self) -> usize {
        let sent = self.exchanges.iter().filter(|exchange| exchange.answer.was_sent());
        sent.count()
    }
}

/// Writes the notes to a file, a line for each request, for whoever wants to look into a finding.
pub(super) fn save(notes: &[Note], path: &Path) -> Result<()> {
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut file = BufWriter::new(file);
    for note in notes {
        for exchange in &note.exchanges {
            writeln!(file, "{}", line(note, exchange))?;
        }
    }
    Ok(file.flush()?)
}

fn line(note: &Note, exchange: &Exchange) -> Value {
    let told = exchange.answer.told();
    let body = told.map(|told| String::from_utf8_lossy(&told.body));
    json!({
        "payment": note.payment.number,
        "nonce": note.payment.order(exchange.asked).nonce,
        "sent": exchange.sent,
        "heard": exchange.heard,
        "answer": exchange.answer.to_string(),
        "body": body,
    })
}

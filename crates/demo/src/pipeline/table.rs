//! The failure modes and the layers: how many copies each layer caught, and how many it let through to the next one.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;

use super::collected::Collected;
use super::delivery::Cause;
use super::rows::ChargeRow;
use crate::OmittedLayer;
use crate::client_log::Exchange;
use crate::number_format::grouped;
use crate::response::ReceivedResponse;
use crate::traffic::{OrderVersion, PaymentOrder};

/// The copies of a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LayerTable(pub(super) Vec<LayerRow>);

/// One failure mode.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LayerRow {
    pub(super) mode: &'static str,
    /// What each layer did: gate, ledger, inbox.
    pub(super) layers: [LayerCount; 3],
    /// Copies that no layer caught.
    pub(super) through: u64,
}

/// What a layer did about the copies of one failure mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerCount {
    /// Such a copy does not come here.
    NotHere,
    /// The run is without this layer.
    Off,
    /// It caught so many copies.
    Caught(u64),
}

impl LayerRow {
    /// All copies, caught or not.
    pub(super) fn copies(&self) -> u64 {
        let caught = |layer: &LayerCount| if let LayerCount::Caught(count) = layer { *count } else { 0 };
        self.layers.iter().map(caught).sum::<u64>() + self.through
    }
}

impl LayerTable {
    /// Counts the copies of a run.
    pub(super) fn new(collected: &Collected) -> Self {
        let extra = ExtraCharges::new(&collected.charges);
        let gate = |count| on(collected, OmittedLayer::Gate, count);
        let ledger = |cause| on(collected, OmittedLayer::Ledger, collected.by_ledger.count(cause));
        let by_inbox = |cause| collected.by_inbox.count(cause);
        let (replays, none) = (by_inbox(Cause::Sent).min(collected.replayed), LayerCount::NotHere);
        let published_again = by_inbox(Cause::Sent) - replays + by_inbox(Cause::Returned);
        let row = |mode, layers, through| LayerRow { mode, layers, through };
        let repeated = [gate(caught_by_gate(collected)), ledger(Cause::Sent), none];
        let last = [none, none, LayerCount::Caught(published_again)];
        Self(vec![
            row("a client sends its request again", repeated, extra.repeated),
            row(
                "a client changes the order under its key",
                [gate(refused_by_gate(collected)), none, none],
                extra.changed,
            ),
            row("the queue delivers a message twice", [none, ledger(Cause::Redelivered), none], extra.redelivered),
            row("a worker is killed or paused", [none, ledger(Cause::Returned), none], extra.returned),
            row("old events are published again", [none, none, LayerCount::Caught(replays)], 0),
            row("a relay or consumer is killed or paused", last, extra_receipts(collected)),
        ])
    }
}

impl LayerTable {
    /// How many requests were recognized as copies, and how many of them the gate let through to the ledger. None if
    /// the gate caught all, or one of the two is left out.
    pub(super) fn passed_by_the_gate(&self) -> Option<(u64, u64)> {
        let row = self.0.first()?;
        match row.layers {
            [LayerCount::Caught(_), LayerCount::Caught(through), _] if through > 0 => Some((row.copies(), through)),
            _ => None,
        }
    }
}

fn on(collected: &Collected, layer: OmittedLayer, count: u64) -> LayerCount {
    if collected.without == Some(layer) { LayerCount::Off } else { LayerCount::Caught(count) }
}

/// Requests whose answer shows that the gate recognized a copy. A request without such an answer may be one that the
/// gate never got, or could not decide about.
fn caught_by_gate(collected: &Collected) -> u64 {
    let caught = collected.clients.iter().map(|log| {
        let exchanges: Vec<&Exchange> = log.exchanges_of(OrderVersion::Original).collect();
        let first = exchanges.iter().map(|exchange| exchange.sent_at).min();
        exchanges.iter().filter(|exchange| is_caught(exchange, first)).count() as u64
    });
    caught.sum()
}

/// `first`: when the first request was sent. The outcome of this one may be unknown, too, and it is no copy.
fn is_caught(exchange: &Exchange, first: Option<u64>) -> bool {
    match &exchange.response {
        ReceivedResponse::Settling(answer) => answer.is_replayed,
        ReceivedResponse::InProgress => true,
        ReceivedResponse::OutcomeUnknown => first != Some(exchange.sent_at),
        ReceivedResponse::KeyReused
        | ReceivedResponse::Other(_)
        | ReceivedResponse::HungUp
        | ReceivedResponse::Broken
        | ReceivedResponse::NotSent => false,
    }
}

/// Requests with a changed order that were refused.
fn refused_by_gate(collected: &Collected) -> u64 {
    let exchanges = collected.clients.iter().flat_map(|log| log.exchanges_of(OrderVersion::Changed));
    exchanges.filter(|exchange| exchange.response == ReceivedResponse::KeyReused).count() as u64
}

/// Charges beyond the first of each payment, by their reason.
#[derive(Debug, Default)]
struct ExtraCharges {
    /// Of another message with the same order.
    repeated: u64,
    changed: u64,
    redelivered: u64,
    returned: u64,
}

impl ExtraCharges {
    fn new(charges: &[ChargeRow]) -> Self {
        let mut first: HashMap<u32, &PaymentOrder> = HashMap::new();
        let (mut operations, mut extra) = (HashSet::new(), Self::default());
        for charge in charges {
            let is_new = operations.insert(&charge.operation);
            let order = match first.entry(charge.order.payment) {
                Entry::Occupied(first) => *first.get(),
                Entry::Vacant(vacant) => {
                    vacant.insert(&charge.order);
                    continue;
                }
            };
            match charge.cause {
                _ if *order != charge.order => extra.changed += 1,
                Cause::Redelivered => extra.redelivered += 1,
                Cause::Returned if !is_new => extra.returned += 1,
                Cause::Sent | Cause::Returned => extra.repeated += 1,
            }
        }
        extra
    }
}

/// Receipts beyond the first of each charge.
fn extra_receipts(collected: &Collected) -> u64 {
    let mut seen = HashSet::new();
    collected.receipts.iter().filter(|receipt| !seen.insert(receipt.charge)).count() as u64
}

impl fmt::Display for LayerTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [copies, gate, ledger, inbox, through] = ["copies", "1 gate", "2 ledger", "3 inbox", "uncaught"];
        writeln!(f, "  {:<42}{copies:>8}{gate:>10}{ledger:>10}{inbox:>10}{through:>10}", "")?;
        for row in &self.0 {
            write!(f, "  {:<42}{:>8}", row.mode, grouped(row.copies()))?;
            for layer in row.layers {
                write!(f, "{:>10}", layer.to_string())?;
            }
            writeln!(f, "{:>10}", grouped(row.through))?;
        }
        Ok(())
    }
}

impl fmt::Display for LayerCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotHere => f.write_str("-"),
            Self::Off => f.write_str("off"),
            Self::Caught(count) => f.write_str(&grouped(*count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;

    use super::*;
    use crate::client_log::ClientLog;
    use crate::response::{OtherResponse, SettlingResponse};
    use crate::traffic::Payment;

    #[test]
    fn the_first_charge_of_a_payment_is_no_copy_whatever_delivered_it() {
        let Payment { order, changed, .. } = Payment::new(1, 7);
        let charge = |operation: &str, order: &PaymentOrder, cause| {
            let (operation, account) = (operation.to_owned(), String::new());
            ChargeRow { id: 1, operation, order: order.clone(), account, cause }
        };
        let charges = [
            charge("a", &order, Cause::Redelivered),
            charge("a", &order, Cause::Returned),
            charge("b", &order, Cause::Returned),
            charge("b", &order, Cause::Redelivered),
            charge("c", &order, Cause::Sent),
            charge("d", &changed, Cause::Sent),
        ];
        let ExtraCharges { repeated, changed, redelivered, returned } = ExtraCharges::new(&charges);
        assert_eq!((repeated, changed, redelivered, returned), (2, 1, 1, 1));
    }

    #[test]
    fn the_gate_has_caught_what_it_answered_as_a_copy_and_nothing_else() {
        let settled = |is_replayed| {
            let (status, body) = (StatusCode::ACCEPTED, Bytes::new());
            ReceivedResponse::Settling(SettlingResponse { status, body, is_replayed, is_pending: false })
        };
        let failed = |status| ReceivedResponse::Other(OtherResponse { status, problem: None });
        let not_caught = [
            ReceivedResponse::OutcomeUnknown, // of the first request
            failed(StatusCode::SERVICE_UNAVAILABLE),
            ReceivedResponse::HungUp,
            ReceivedResponse::Broken,
            ReceivedResponse::NotSent,
            settled(false),
        ];
        let caught = [ReceivedResponse::InProgress, ReceivedResponse::OutcomeUnknown, settled(true)];
        let mut log = ClientLog::new(Payment::new(1, 7));
        for (sent_at, response) in (0..).zip(not_caught.into_iter().chain(caught)) {
            let version = OrderVersion::Original;
            log.exchanges.push(Exchange { version, response, sent_at, received_at: sent_at + 1 });
        }
        for response in [ReceivedResponse::KeyReused, ReceivedResponse::Broken, settled(true)] {
            log.exchanges.push(Exchange { version: OrderVersion::Changed, response, sent_at: 90, received_at: 91 });
        }
        let collected = Collected { clients: vec![log], ..Collected::default() };
        assert_eq!((caught_by_gate(&collected), refused_by_gate(&collected)), (3, 1));
    }
}

//! The events and metrics of the relay.

use metrics::{counter, gauge};

use super::{AUDIT, names};
use crate::error::Error;
use crate::outbox::{OutboxCounts, ParkedRow, Published};
use crate::relay::RelaySettings;

/// What publishing an event may result in.
const RESULTS: [&str; 4] = ["yes", "not-published", "unknown", "refused"];

/// Registers the counters of a relay with 0, because an alert on an increase needs a sample before it. A relay does so
/// when it starts. A process whose metrics are read before that calls it earlier, and names the endpoints of its sink.
pub fn register_relay<'e>(sink: &str, endpoints: impl Iterator<Item = &'e str> + Clone) {
    for result in RESULTS {
        counter!(names::RELAY_EVENTS, "sink" => sink.to_owned(), "result" => result).increment(0);
        for endpoint in endpoints.clone() {
            let endpoint = endpoint.to_owned();
            counter!(names::RELAY_ENDPOINT_EVENTS, "endpoint" => endpoint, "result" => result).increment(0);
        }
    }
    counter!(names::CAUGHT, "layer" => "relay").increment(0);
    counter!(names::RELAY_BEYOND_WINDOW, "sink" => sink.to_owned()).increment(0);
}

pub(crate) fn relay_starts(sink: &str, settings: &RelaySettings) {
    register_relay(sink, std::iter::empty());
    match settings.retention {
        Some(retention) => tracing::info!(sink, ?retention, "the relay starts; published rows are kept this long"),
        None => tracing::info!(sink, "the relay starts; published rows are kept for ever"),
    }
}

pub(crate) fn relay_stops(sink: &str, in_flight: usize, error: Option<&Error>) {
    match error {
        None => tracing::info!(sink, in_flight, "the relay publishes nothing new and waits for what is in flight"),
        Some(error) => tracing::error!(sink, in_flight, ?error, "the outbox cannot be used; the relay stops"),
    }
}

pub(crate) fn relay_ends(sink: &str, unconfirmed: usize) {
    match unconfirmed {
        0 => tracing::info!(sink, "the relay has ended"),
        _ => tracing::warn!(sink, unconfirmed, "the relay has ended before all confirmations; it repeats those events"),
    }
}

pub(crate) fn relay_buckets(held: usize) {
    gauge!(names::RELAY_BUCKETS).set(f64::from(u32::try_from(held).unwrap_or(u32::MAX)));
}

pub(crate) fn buckets_lost(count: usize) {
    tracing::warn!(count, "this relay has lost buckets: their leases were not renewed in time");
}

pub(crate) fn claim_lost() {
    tracing::warn!("another relay has a bucket or the place of this one; was this process paused?");
}

pub(crate) fn claim_not_confirmed(error: Option<&Error>) {
    let error = error.map(tracing::field::debug);
    tracing::warn!(error, "the lease of a bucket was not renewed; the relay tries again");
}

pub(crate) fn claims_failed(error: &Error) {
    tracing::warn!(?error, "the relay cannot claim buckets now; it tries again");
}

pub(crate) fn outbox_failed(error: &Error) {
    tracing::warn!(?error, "the outbox cannot be read or written now; the relay tries again");
}

pub(crate) fn outbox_restored() {
    tracing::warn!("the outbox draws ids again that it drew before: it was restored; the relay reads all of it again");
}

pub(crate) fn published(sink: &str, endpoint: Option<&str>, published: &Published) {
    let result = match published {
        Published::Yes { .. } => "yes",
        Published::NotPublished { .. } => "not-published",
        Published::Unknown(_) => "unknown",
        Published::Refused(_) => "refused",
    };
    counter!(names::RELAY_EVENTS, "sink" => sink.to_owned(), "result" => result).increment(1);
    if let Some(endpoint) = endpoint {
        counter!(names::RELAY_ENDPOINT_EVENTS, "endpoint" => endpoint.to_owned(), "result" => result).increment(1);
    }
    if let Published::Yes { caught: true } = published {
        counter!(names::CAUGHT, "layer" => "relay").increment(1);
    }
}

/// A publication failed, and so did others since the last line.
pub(crate) fn publication_failed(sink: &str, others: u64, published: &Published) {
    match published {
        Published::NotPublished { cause, .. } => {
            tracing::warn!(sink, others, error = ?cause, "an event was not published; the relay tries again");
        }
        Published::Unknown(error) => {
            tracing::warn!(sink, others, ?error, "an event may be published; the relay repeats it under the same id");
        }
        Published::Yes { .. } | Published::Refused(_) => {}
    }
}

pub(crate) fn published_beyond_window(sink: &str) {
    counter!(names::RELAY_BEYOND_WINDOW, "sink" => sink.to_owned()).increment(1);
}

pub(crate) fn key_parked(sink: &str, row: &ParkedRow) {
    let (row, reason) = (row.id.0, row.reason.as_str());
    tracing::error!(target: AUDIT, sink, row, reason, "the sink never takes an event; its key waits: `hapax outbox`");
}

pub(crate) fn outbox_counts(counts: &OutboxCounts) {
    let number = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    gauge!(names::OUTBOX_OPEN).set(number(counts.open));
    gauge!(names::OUTBOX_OLDEST_SECONDS).set(counts.oldest.map_or(0.0, |age| age.as_secs_f64()));
    gauge!(names::OUTBOX_PARKED_KEYS).set(number(counts.parked_keys));
}

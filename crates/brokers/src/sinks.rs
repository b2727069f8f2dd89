//! What the sinks of all brokers share.

use std::time::Duration;

use hapax_core::Result;
use hapax_core::ledger::Event;
use hapax_core::outbox::{OutgoingEvent, Published, TopicTemplate};
use hapax_core::store::{Finding, Severity};
use hapax_net::url::ServerUrl;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::errors::not_applied;

/// How much of a broker's limit is kept for what a sink writes beside the event: the id, the attributes, the key.
const RESERVE: usize = 4096;

/// How much of that the attributes of an event may take, unencoded. What they take beyond counts as its size.
#[cfg(any(feature = "kafka", feature = "nats"))]
const ATTRIBUTES: usize = 1024;

/// As many publications as one sink runs at once.
const MAX_IN_FLIGHT: u32 = 16_384;

/// The publications that run. They end before the sink is closed.
pub(crate) struct InFlight(Semaphore);

impl InFlight {
    pub(crate) fn new() -> Self {
        Self(Semaphore::new(MAX_IN_FLIGHT as usize))
    }

    /// Begins a publication.
    ///
    /// # Errors
    /// What it ends with if the sink is closed.
    pub(crate) async fn enter(&self) -> Result<SemaphorePermit<'_>, Published> {
        // The permits are given in the order of the calls, so nothing begins behind `close`.
        self.0.acquire().await.map_err(|_| not_published(not_applied("the sink is closed")))
    }

    /// Waits until all have ended. Later ones do not begin.
    pub(crate) async fn close(&self) {
        let all = self.0.acquire_many(MAX_IN_FLIGHT).await;
        self.0.close();
        drop(all);
    }
}

/// The largest event of an outbox for a broker with this limit.
pub(crate) fn max_len(limit: usize) -> usize {
    room(limit).min(Event::MAX_LEN)
}

/// The reason to refuse an event that a broker with this limit does not take. A dead letter is not refused here: its
/// topic may take more than the broker says, and a shorter letter would lack a part of its message.
#[cfg(any(feature = "kafka", feature = "nats"))]
pub(crate) fn too_large(event: &OutgoingEvent, limit: usize) -> Option<Published> {
    let is_letter = event.kind.as_deref() == Some(OutgoingEvent::DEAD_LETTER);
    let (size, room) = (size_with_attributes(event), room(limit));
    (size > room && !is_letter)
        .then(|| Published::Refused(format!("the event has {size} bytes, and the sink takes {room}")))
}

fn room(limit: usize) -> usize {
    limit.saturating_sub(RESERVE)
}

#[cfg(any(feature = "kafka", feature = "nats"))]
fn size_with_attributes(event: &OutgoingEvent) -> usize {
    let attributes = [&event.kind, &event.source, &event.content_type];
    let attributes: usize = attributes.into_iter().flatten().map(String::len).sum();
    event.size() + attributes.saturating_sub(ATTRIBUTES)
}

/// What is wrong with a limit under which events of the largest size are refused.
pub(crate) fn limit_finding(whose: &str, limit: usize, remedy: &str) -> Option<Finding> {
    let is_small = max_len(limit) < Event::MAX_LEN;
    is_small.then(|| {
        warning(format!(
            "{whose} takes at most {limit} bytes, and an event may have 1,000,000: a larger one is refused, and its \
             key is parked; {remedy}"
        ))
    })
}

pub(crate) fn warning(message: String) -> Finding {
    Finding { severity: Severity::Warn, message }
}

pub(crate) fn not_published(cause: hapax_core::Error) -> Published {
    Published::NotPublished { after: Duration::ZERO, cause }
}

/// The template in the path of a URL, and the time that a publication may take.
pub(crate) fn parameters(url: &ServerUrl) -> Result<(TopicTemplate, Duration)> {
    let topic = if url.path().is_empty() { TopicTemplate::default() } else { url.path().parse()? };
    Ok((topic, url.seconds("timeout", 1..=300)?.unwrap_or(Duration::from_secs(30))))
}

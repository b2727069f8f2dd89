//! Asks about topics over a connection of its own.

use std::time::Duration;

use hapax_core::{Error, Result};
use parking_lot::Mutex;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;

use super::KafkaUrl;
use super::config;
use super::failures::ConnectionFailures;
use super::topics::{self, FoundTopics};

/// A driver that only asks about topics. A broker answers the requests of a connection one after the other, and one for
/// messages waits until there are some.
pub(super) struct TopicFinder {
    driver: BaseConsumer<ConnectionFailures>,
    /// When a question failed first since the last answer.
    failing_since: Mutex<Option<Duration>>,
}

impl TopicFinder {
    /// Connects to nothing yet.
    pub(super) fn new(url: &KafkaUrl) -> Result<Self> {
        let driver = config::finder(url)?.create_with_context(ConnectionFailures::default());
        Ok(Self { driver: driver.map_err(|error| config::refused(&error))?, failing_since: Mutex::default() })
    }

    /// The topics of these names that exist. Blocks.
    pub(super) fn find<'t>(
        &self,
        topics: impl Iterator<Item = &'t str>,
        within: Duration,
        now: Duration,
    ) -> Result<FoundTopics, RDKafkaErrorCode> {
        // It keeps what it has to report until it is polled.
        while self.driver.poll(Duration::ZERO).is_some() {}
        let found = topics::find(self.driver.client(), topics, within);
        let mut failing_since = self.failing_since.lock();
        *failing_since = if found.is_ok() { None } else { failing_since.or(Some(now)) };
        found
    }

    /// Why no question was answered for so long. Told once for each such time.
    pub(super) fn silent_for(&self, long: Duration, now: Duration) -> Option<Error> {
        let mut failing_since = self.failing_since.lock();
        let since = failing_since.filter(|since| now.saturating_sub(*since) >= long)?;
        *failing_since = Some(now.max(since));
        Some(self.driver.context().unreachable())
    }
}

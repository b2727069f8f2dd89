//! The course of an orderly stop.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// What is left for the journal and the last log line when running requests have used up their time.
const RESERVE: Duration = Duration::from_secs(1);

/// When the stop began, and how long it may take. From the signal on, the process is not ready.
#[derive(Debug)]
pub(crate) struct Shutdown {
    delay: Duration,
    limit: Duration,
    began: OnceLock<Instant>,
}

impl Shutdown {
    /// Connections are accepted for `delay` after the signal. All ends within `limit` after the signal.
    pub(crate) fn new(delay: Duration, limit: Duration) -> Self {
        Self { delay, limit, began: OnceLock::new() }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.began.get().is_some()
    }

    /// How much longer the limit must be than the delay: one reserve for running requests, and one for the end of the
    /// stop.
    pub(crate) fn least_margin(limit: Duration) -> Duration {
        2 * reserve(limit)
    }

    /// Waits for the signal, and then for the delay.
    pub(crate) async fn wait(&self, signal: impl Future<Output = ()>) {
        signal.await;
        self.began.get_or_init(Instant::now);
        if !self.delay.is_zero() {
            tracing::info!(delay_s = self.delay.as_secs(), "stopping after --drain-delay; /readyz is 503");
            sleep(self.delay).await;
        }
    }

    /// How long running requests may take after the delay.
    pub(crate) fn time_for_requests(&self) -> Duration {
        self.limit.saturating_sub(self.delay + reserve(self.limit))
    }

    /// How long running requests may still take. During the delay, this includes the rest of the delay.
    pub(crate) fn left_for_requests(&self) -> Duration {
        self.left().saturating_sub(reserve(self.limit))
    }

    /// The rest of the limit.
    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.began.get().map_or(Duration::ZERO, Instant::elapsed))
    }
}

fn reserve(limit: Duration) -> Duration {
    RESERVE.min(limit / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_delay_leaves_time_for_requests() {
        for limit in [Duration::from_secs(25), Duration::from_secs(4), Duration::from_millis(10)] {
            let margin = Shutdown::least_margin(limit);
            assert_eq!(Shutdown::new(limit - margin, limit).time_for_requests(), margin / 2);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn delay_and_requests_end_before_the_limit() {
        let seconds = Duration::from_secs;
        let shutdown = Shutdown::new(seconds(5), seconds(25));
        assert!(!shutdown.has_begun());
        shutdown.wait(std::future::ready(())).await;
        assert!(shutdown.has_begun());
        assert_eq!((shutdown.time_for_requests(), shutdown.left_for_requests()), (seconds(19), seconds(19)));
        sleep(seconds(15)).await;
        assert_eq!((shutdown.left_for_requests(), shutdown.left()), (seconds(4), seconds(5)));
        sleep(seconds(15)).await;
        assert_eq!((shutdown.left_for_requests(), shutdown.left()), (seconds(0), seconds(0)));
    }
}

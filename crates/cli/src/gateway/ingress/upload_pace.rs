//! The least rate of an upload.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::gateway::limits::{Limits, UPLOAD_GRACE};

/// How long an upload may still keep the gateway waiting. Each byte adds time, as much as the least rate allows for it.
///
/// Only the time during which the gateway awaits a frame counts, so an API that reads slowly does not count against the
/// client.
#[derive(Debug)]
pub(crate) struct UploadPace {
    /// None if there is no least rate.
    rate: Option<u64>,
    credit: Duration,
    /// The most credit: bytes that arrived fast do not allow a longer pause.
    most: Duration,
    /// Since when a frame is awaited.
    awaiting_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl UploadPace {
    /// The pace of a body that is read as a whole: slow only at its start.
    pub(crate) fn of_whole_body(limits: &Limits) -> Self {
        Self::new(limits, UPLOAD_GRACE.min(limits.stall))
    }

    /// The pace of a body that streams: it may pause.
    pub(crate) fn of_stream(limits: &Limits) -> Self {
        Self::new(limits, limits.stall)
    }

    fn new(limits: &Limits, credit: Duration) -> Self {
        let rate = u64::try_from(limits.upload_rate).ok().filter(|rate| *rate > 0);
        Self { rate, credit, most: limits.stall, awaiting_since: None, timer: None }
    }

    /// Notes that this many bytes have arrived.
    pub(crate) fn record(&mut self, bytes: usize) {
        let waited = self.awaiting_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        if let Some(rate) = self.rate {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            let earned = Duration::from_millis(bytes.saturating_mul(1000) / rate);
            self.credit = self.credit.saturating_sub(waited).saturating_add(earned).min(self.most);
        }
    }

    /// Is ready once the upload is too slow, or at `limit`.
    pub(crate) fn poll_too_slow(&mut self, limit: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if self.awaiting_since.is_none() {
            let since = Instant::now();
            let ends_at = if self.rate.is_some() { limit.min(since + self.credit) } else { limit };
            self.awaiting_since = Some(since);
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(ends_at),
                none => *none = Some(Box::pin(sleep_until(ends_at))),
            }
        }
        self.timer.as_mut().map_or(Poll::Pending, |timer| timer.as_mut().poll(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: fn(usize) -> Limits =
        |upload_rate| Limits { upload_rate, stall: Duration::from_secs(60), ..Limits::default() };

    /// Returns how many pieces of this size, one a second, arrive before the upload is too slow.
    async fn pieces(mut pace: UploadPace, size: usize, most: usize) -> usize {
        let far = Instant::now() + Duration::from_secs(100_000);
        for number in 0..most {
            let next = tokio::time::sleep(Duration::from_secs(1));
            let is_slow = tokio::select! {
                biased;
                () = std::future::poll_fn(|cx| pace.poll_too_slow(far, cx)) => true,
                () = next => false,
            };
            if is_slow {
                return number;
            }
            pace.record(size);
        }
        most
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_upload_ends_after_its_grace() {
        assert_eq!(pieces(UploadPace::of_whole_body(&LIMITS(100)), 1, 1000).await, 10);
        assert_eq!(pieces(UploadPace::of_whole_body(&LIMITS(100)), 50, 1000).await, 18);
        assert_eq!(pieces(UploadPace::of_whole_body(&LIMITS(100)), 101, 1000).await, 1000);
        assert_eq!(pieces(UploadPace::of_whole_body(&LIMITS(0)), 0, 1000).await, 1000);
        let streamed = pieces(UploadPace::of_stream(&LIMITS(100)), 1, 1000).await;
        assert_eq!(streamed, 60, "a stream may pause for the stall limit");
    }
}

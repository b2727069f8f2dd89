//! The least rate of an upload.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use crate::gateway::ingress::shared_window::SharedWindow;
use crate::gateway::limits::{Limits, UPLOAD_GRACE};

/// The least time between two looks at an upload while its window is full.
const LOOK: Duration = Duration::from_millis(100);

/// How long an upload may still keep the gateway waiting. Each byte adds time, as much as the least rate allows for it.
///
/// Only the time during which the gateway awaits a frame counts, so an API that reads slowly does not count against the
/// client. Neither does the time during which other bodies occupy the window of its HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct UploadPace {
    /// None if there is no least rate.
    rate: Option<u64>,
    credit: Duration,
    /// The most credit: bytes that arrived fast do not allow a longer pause.
    most: Duration,
    /// Whether the body may pause for `most` without a least rate.
    is_stream: bool,
    /// None in HTTP/1.
    window: Option<SharedWindow>,
    awaited: Option<Awaited>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Since when a frame is awaited, and for how long the window had been full then and at the last look.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    since: Instant,
    full_at_first: Duration,
    full_at_last_look: Duration,
}

impl UploadPace {
    /// The pace of a body that is read as a whole: slow only at its start.
    pub(crate) fn of_whole_body(limits: &Limits) -> Self {
        Self::new(limits, UPLOAD_GRACE.min(limits.stall), false)
    }

    /// The pace of a body that streams: it may pause.
    pub(crate) fn of_stream(limits: &Limits) -> Self {
        Self::new(limits, limits.stall, true)
    }

    fn new(limits: &Limits, credit: Duration, is_stream: bool) -> Self {
        let rate = u64::try_from(limits.upload_rate).ok().filter(|rate| *rate > 0);
        Self { rate, credit, most: limits.stall, is_stream, window: None, awaited: None, timer: None }
    }

    pub(crate) fn sharing(mut self, window: Option<SharedWindow>) -> Self {
        self.window = window;
        self
    }

    /// Notes that this many bytes have arrived.
    pub(crate) fn record(&mut self, bytes: usize) {
        let full_time = self.full_time();
        let waited = self.awaited.take().map_or(Duration::ZERO, |awaited| {
            awaited.since.elapsed().saturating_sub(full_time.saturating_sub(awaited.full_at_first))
        });
        if let Some(rate) = self.rate {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            let earned = Duration::from_millis(bytes.saturating_mul(1000) / rate);
            self.credit = self.credit.saturating_sub(waited).saturating_add(earned).min(self.most);
        }
    }

    /// Is ready once the upload is too slow, or at `limit`.
    pub(crate) fn poll_too_slow(&mut self, limit: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let full_time = self.full_time();
        if self.awaited.is_none() {
            let since = Instant::now();
            self.awaited = Some(Awaited { since, full_at_first: full_time, full_at_last_look: full_time });
            self.look_after(self.allowed(), limit);
        }
        loop {
            let Some(timer) = &mut self.timer else { return Poll::Pending };
            ready!(timer.as_mut().poll(cx));
            let full_time = self.full_time();
            let Some(awaited) = &mut self.awaited else { return Poll::Pending };
            let excused = full_time.saturating_sub(awaited.full_at_last_look);
            if excused < LOOK || limit.is_some_and(|limit| limit <= Instant::now()) {
                return Poll::Ready(());
            }
            awaited.full_at_last_look = full_time;
            self.look_after(Some(excused), limit);
        }
    }

    /// How long the next frame may take. None without such a limit.
    fn allowed(&self) -> Option<Duration> {
        if self.rate.is_some() { Some(self.credit) } else { self.is_stream.then_some(self.most) }
    }

    fn look_after(&mut self, time: Option<Duration>, limit: Option<Instant>) {
        let is_full = self.window.as_ref().is_some_and(SharedWindow::is_full);
        let least = if is_full { LOOK } else { Duration::ZERO };
        let looks_at = time.map(|time| Instant::now() + time.max(least));
        self.timer = match (looks_at.into_iter().chain(limit).min(), self.timer.take()) {
            (None, _) => None,
            (Some(at), None) => Some(Box::pin(sleep_until(at))),
            (Some(at), Some(mut timer)) => {
                timer.as_mut().reset(at);
                Some(timer)
            }
        };
    }

    fn full_time(&self) -> Duration {
        self.window.as_ref().map_or(Duration::ZERO, SharedWindow::full_time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: fn(usize) -> Limits =
        |upload_rate| Limits { upload_rate, stall: Duration::from_secs(60), ..Limits::default() };

    /// Returns how many pieces of this size, one a second, arrive before the upload is too slow.
    async fn pieces(mut pace: UploadPace, size: usize, most: usize) -> usize {
        for number in 0..most {
            let next = tokio::time::sleep(Duration::from_secs(1));
            let is_slow = tokio::select! {
                biased;
                () = std::future::poll_fn(|cx| pace.poll_too_slow(None, cx)) => true,
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

    #[tokio::test(start_paused = true)]
    async fn the_time_in_which_the_window_is_full_does_not_count() {
        let window = SharedWindow::default();
        for pace in [UploadPace::of_whole_body(&LIMITS(100)), UploadPace::of_stream(&LIMITS(0))] {
            let (allowed, began_at) = (pace.allowed().unwrap(), Instant::now());
            let mut pace = pace.sharing(Some(window.clone()));
            let mut too_slow = Box::pin(std::future::poll_fn(|cx| pace.poll_too_slow(None, cx)));
            for full in [allowed * 3, allowed / 2] {
                let unread: Vec<_> = (0..4).map(|_| window.count_unread()).collect();
                assert!(tokio::time::timeout(full, &mut too_slow).await.is_err());
                drop(unread);
                assert!(tokio::time::timeout(allowed / 4, &mut too_slow).await.is_err());
            }
            too_slow.await;
            assert_eq!(began_at.elapsed().as_secs(), (allowed * 4 + allowed / 2).as_secs());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_window_does_not_lift_the_limit_of_a_whole_body() {
        let window = SharedWindow::default();
        let _unread: Vec<_> = (0..4).map(|_| window.count_unread()).collect();
        let mut pace = UploadPace::of_whole_body(&LIMITS(100)).sharing(Some(window));
        let limit = Instant::now() + Duration::from_secs(60);
        std::future::poll_fn(|cx| pace.poll_too_slow(Some(limit), cx)).await;
        assert_eq!(limit.elapsed().as_secs(), 0);
        assert!(Instant::now() >= limit);
    }
}

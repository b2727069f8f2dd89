use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Which requests run on one connection, so that it can be told when it has had none for long.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionActivity(Arc<Mutex<Requests>>);

#[derive(Debug)]
struct Requests {
    open: usize,
    ended: Instant,
}

/// A request that runs. It is over when this is dropped.
#[derive(Debug)]
pub(crate) struct OpenRequest(ConnectionActivity);

impl Default for ConnectionActivity {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Requests { open: 0, ended: Instant::now() })))
    }
}

impl ConnectionActivity {
    pub(crate) fn request(&self) -> OpenRequest {
        self.requests().open += 1;
        OpenRequest(self.clone())
    }

    /// Waits until no request has run for this long. It looks now and then, so that a request does not have to wake it.
    pub(crate) async fn ceased(&self, limit: Duration) {
        loop {
            let now = Instant::now();
            let since = self.idle_since().unwrap_or(now);
            if now.duration_since(since) >= limit {
                return;
            }
            sleep_until(since + limit).await;
        }
    }

    fn idle_since(&self) -> Option<Instant> {
        let requests = self.requests();
        (requests.open == 0).then_some(requests.ended)
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut requests = self.0.requests();
        requests.open -= 1;
        requests.ended = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_when_no_request_has_run_for_long() {
        let limit = Duration::from_secs(10);
        let activity = ConnectionActivity::default();
        let mut ceased = Box::pin(activity.ceased(limit));
        assert!(ceased.as_mut().now_or_never().is_none());
        advance(limit / 2).await;
        let open = activity.request();
        assert!(ceased.as_mut().now_or_never().is_none());
        advance(limit * 5).await;
        assert!(ceased.as_mut().now_or_never().is_none(), "a request runs");
        drop(open);
        drop(activity.request());
        assert!(ceased.as_mut().now_or_never().is_none());
        advance(limit / 2).await;
        assert!(ceased.as_mut().now_or_never().is_none());
        advance(limit).await;
        assert!(ceased.as_mut().now_or_never().is_some());
    }
}

use std::time::Duration;

use tokio::sync::watch;

/// Which requests run on one connection, so that it can be told when it has had none for long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity(watch::Sender<Requests>);

#[derive(Debug, Default)]
struct Requests {
    begun: u64,
    open: usize,
}

/// A request that runs. It is over when this is dropped.
#[derive(Debug)]
pub(crate) struct Open(Activity);

impl Activity {
    pub(crate) fn request(&self) -> Open {
        self.0.send_modify(|requests| {
            requests.begun += 1;
            requests.open += 1;
        });
        Open(self.clone())
    }

    /// Waits until no request has run for this long.
    pub(crate) async fn ceased(&self, limit: Duration) {
        let mut requests = self.0.subscribe();
        loop {
            // The sender is ours, and alive.
            let Ok(idle) = requests.wait_for(|requests| requests.open == 0).await.map(|requests| requests.begun) else {
                return;
            };
            let next = requests.wait_for(|requests| requests.begun != idle);
            if tokio::time::timeout(limit, next).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.send_modify(|requests| requests.open -= 1);
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
        let activity = Activity::default();
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

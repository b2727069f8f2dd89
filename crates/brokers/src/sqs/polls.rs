//! Asks for messages. A request for messages is never dropped: what its answer would bring stays hidden for a whole
//! lease, and counts as received. So each request runs in a task that nobody drops, and its answer waits in a channel.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::Error;
use hapax_core::runtime::Runtime;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::SqsUrl;
use super::queue::{Called, MAX_ENTRIES, Queue, ReceiveRequest, SqsMessage};

/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a FIFO queue knows an attempt id, and a little less.
const ATTEMPT_LIVES: Duration = Duration::from_secs(270);

/// Messages, and when they arrived; or why none can be asked for.
pub(super) type Polled = Result<(Vec<SqsMessage>, Duration), Error>;

/// The tasks that ask for messages.
pub(super) struct Polls {
    /// It ends after [`Polls::stop`] with the last request.
    pub(super) arrived: UnboundedReceiver<Polled>,
    demand: Arc<Demand>,
}

/// How many messages are wanted.
#[derive(Default)]
struct Demand {
    state: Mutex<DemandState>,
    has_changed: Notify,
}

#[derive(Default)]
struct DemandState {
    wanted: usize,
    /// As many may the open requests bring.
    asked: usize,
    has_stopped: bool,
}

impl Polls {
    pub(super) fn start(url: &SqsUrl, queue: &Queue, runtime: &Arc<dyn Runtime>) -> Self {
        let (sender, arrived) = unbounded_channel();
        let demand: Arc<Demand> = Arc::default();
        for _ in 0..url.receivers {
            let poller = Poller {
                url: url.clone(),
                queue: queue.clone(),
                demand: Arc::clone(&demand),
                arrived: sender.clone(),
                attempt: None,
                runtime: Arc::clone(runtime),
            };
            runtime.spawn(Box::pin(poller.run()));
        }
        Self { arrived, demand }
    }

    /// Asks for so many messages from now on, and for no more than that.
    pub(super) fn want(&self, count: usize) {
        self.demand.state.lock().wanted = count;
        self.demand.has_changed.notify_waiters();
    }

    /// Makes no request any more. What the open ones bring is given back.
    pub(super) fn stop(&self) {
        self.demand.state.lock().has_stopped = true;
        self.demand.has_changed.notify_waiters();
    }
}

impl Drop for Polls {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Demand {
    /// Waits until messages are wanted, and takes a share of them. None after the stop.
    async fn take(&self) -> Option<usize> {
        loop {
            // Before the look: a change in between is noticed.
            let changed = self.has_changed.notified();
            {
                let mut state = self.state.lock();
                let share = state.wanted.saturating_sub(state.asked).min(MAX_ENTRIES);
                if state.has_stopped {
                    return None;
                }
                if share > 0 {
                    state.asked += share;
                    return Some(share);
                }
            }
            changed.await;
        }
    }

    /// Notes the end of a request. Returns whether its messages are still wanted.
    fn end(&self, share: usize, received: usize) -> bool {
        let mut state = self.state.lock();
        state.asked -= share;
        state.wanted = state.wanted.saturating_sub(received);
        !state.has_stopped
    }
}

/// One task: one request after the other.
struct Poller {
    url: SqsUrl,
    queue: Queue,
    demand: Arc<Demand>,
    arrived: UnboundedSender<Polled>,
    /// The attempt id of a request whose answer was lost, and when it was first used.
    attempt: Option<(String, Duration)>,
    runtime: Arc<dyn Runtime>,
}

impl Poller {
    async fn run(mut self) {
        while let Some(share) = self.demand.take().await {
            let called = self.receive(share).await;
            let count = called.as_ref().map_or(0, Vec::len);
            let is_wanted = self.demand.end(share, count);
            match called {
                Ok(messages) if messages.is_empty() => {}
                Ok(messages) if !is_wanted => self.give_back(&messages).await,
                Ok(messages) => {
                    let at = self.runtime.boottime_now();
                    if let Err(unsent) = self.arrived.send(Ok((messages, at)))
                        && let Ok((messages, _)) = unsent.0
                    {
                        self.give_back(&messages).await;
                    }
                }
                Err(failure) => {
                    // The source may be gone.
                    let _ = self.arrived.send(Err(failure.asked(self.url.queue())));
                    self.runtime.sleep(PAUSE).await;
                }
            }
        }
    }

    async fn receive(&mut self, count: usize) -> Called<Vec<SqsMessage>> {
        let now = self.runtime.boottime_now();
        let attempt = self.url.is_fifo().then(|| match self.attempt.take() {
            Some((id, first)) if now.saturating_sub(first) < ATTEMPT_LIVES => (id, first),
            Some(_) | None => (self.random_id(), now),
        });
        let (wait, visibility) = (self.url.wait, self.url.visibility);
        let request = ReceiveRequest { count, wait, visibility, attempt: attempt.as_ref().map(|(id, _)| id.clone()) };
        let called = self.queue.receive(&request).await;
        // The same messages come again under the same id, although they are hidden.
        self.attempt = attempt.filter(|_| called.as_ref().is_err_and(super::answers::CallFailure::is_unclear));
        called
    }

    fn random_id(&self) -> String {
        let mut bytes = [0; 16];
        self.runtime.fill_random(&mut bytes);
        u128::from_be_bytes(bytes).to_string()
    }

    /// Best effort: otherwise they arrive again after their lease.
    async fn give_back(&self, messages: &[SqsMessage]) {
        let ends: Vec<(&str, u64)> = messages.iter().map(|message| (&*message.receipt_handle, 0)).collect();
        let _ = self.queue.change_visibility(&ends).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::poll_immediate;

    use super::*;

    #[tokio::test]
    async fn no_more_is_asked_for_than_is_wanted() {
        let demand = Demand::default();
        assert_eq!(poll_immediate(demand.take()).await, None, "nothing is wanted");
        demand.state.lock().wanted = 14;
        assert_eq!(demand.take().await, Some(10));
        assert_eq!(demand.take().await, Some(4));
        assert_eq!(poll_immediate(demand.take()).await, None, "everything is asked for");
        assert!(demand.end(10, 3));
        assert_eq!(demand.take().await, Some(7), "it brought 3 of 10");
        demand.state.lock().has_stopped = true;
        assert_eq!(demand.take().await, None);
        assert!(!demand.end(4, 4), "what comes after the stop is given back");
    }
}

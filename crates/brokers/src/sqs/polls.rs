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
use super::answers::CallFailure;
use super::queue::{Called, MAX_ENTRIES, Queue, ReceiveRequest, ReceivedMessages, SqsMessage};

/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a FIFO queue knows an attempt id, and a little less.
const ATTEMPT_LIVES: Duration = Duration::from_secs(270);

/// Messages, or why none can be asked for.
pub(super) type Polled = Result<ReceivedMessages, Error>;

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
                lost: None,
                most: MAX_ENTRIES,
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
    /// The request at a FIFO queue whose answer was lost.
    lost: Option<LostAnswer>,
    /// As many messages may a request bring: one after a lost or slow answer, and then more and more again.
    most: usize,
    runtime: Arc<dyn Runtime>,
}

struct LostAnswer {
    /// The attempt id.
    id: String,
    count: usize,
    begun: Duration,
}

impl Poller {
    async fn run(mut self) {
        while let Some(share) = self.demand.take().await {
            let called = self.receive(share).await;
            let count = called.as_ref().map_or(0, |(messages, _)| messages.len());
            let is_wanted = self.demand.end(share, count);
            match called {
                Ok((messages, _)) if messages.is_empty() => {}
                Ok((messages, _)) if !is_wanted => self.give_back(&messages).await,
                Ok((messages, at)) => {
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

    async fn receive(&mut self, wanted: usize) -> Called<ReceivedMessages> {
        let now = self.runtime.boottime_now();
        let again = self.lost.take().filter(|lost| now.saturating_sub(lost.begun) < ATTEMPT_LIVES);
        let count = again.as_ref().map_or(wanted.min(self.most), |lost| lost.count);
        let attempt =
            self.url.is_fifo().then(|| again.as_ref().map_or_else(|| self.random_id(), |lost| lost.id.clone()));
        let (wait, visibility) = (self.url.wait, self.url.visibility);
        let called = self.queue.receive(&ReceiveRequest { count, wait, visibility, attempt: attempt.clone() }).await;
        // What took half of its lease to arrive has hardly time for a renewal.
        let is_slow = |at: Duration| 2 * self.runtime.boottime_now().saturating_sub(at) > visibility;
        self.most = match &called {
            Ok((_, at)) if is_slow(*at) => 1,
            Ok(_) => (2 * self.most).min(MAX_ENTRIES),
            Err(failure) if failure.is_unclear() => 1,
            Err(_) => self.most,
        };
        if called.as_ref().is_err_and(CallFailure::is_unclear) {
            // The same messages come again under the same id, although they are hidden. Once: it may be that the line
            // never brings all of them.
            self.lost = attempt.filter(|_| again.is_none()).map(|id| LostAnswer { id, count, begun: now });
        }
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
    use hapax_core::runtime::Tokio;
    use serde_json::json;

    use super::*;
    use crate::sqs::stand_in::StandIn;

    /// A poller of a queue of this service.
    async fn poller(service: &StandIn, queue: &str, parameters: &str) -> Poller {
        Poller {
            url: service.url(queue, parameters),
            queue: service.queue().await,
            demand: Arc::default(),
            arrived: unbounded_channel().0,
            lost: None,
            most: MAX_ENTRIES,
            runtime: Arc::new(Tokio::current()),
        }
    }

    /// What a poller asks for that wants ten messages: the counts of its requests, and whether each has the attempt id
    /// of the one before. The answers of the first ones are lost.
    async fn asked(queue: &str, lost: usize, requests: usize) -> Vec<(u64, bool)> {
        let mut service = StandIn::start().await;
        let mut poller = poller(&service, queue, "").await;
        let (mut asked, mut last) = (Vec::new(), None);
        for request in 0..requests {
            let served = async {
                let call = service.call().await;
                let id = call.body.get("ReceiveRequestAttemptId").cloned();
                asked.push((call.body["MaxNumberOfMessages"].as_u64().unwrap(), id.is_some() && id == last));
                last = id;
                // A call that is dropped has no answer.
                if request >= lost {
                    call.answer(json!({}));
                }
            };
            let (received, ()) = tokio::join!(poller.receive(10), served);
            assert_eq!(received.is_err(), request < lost);
        }
        asked
    }

    #[tokio::test]
    async fn after_an_answer_that_took_half_of_a_lease_fewer_messages_are_asked_for() {
        let mut service = StandIn::start().await;
        let mut poller = poller(&service, "q", "&visibility=1").await;
        for (expected, pause) in [(10, 600), (1, 0), (2, 0)] {
            let served = async {
                let call = service.call().await;
                assert_eq!(call.body["MaxNumberOfMessages"], expected);
                call.answer_slowly(json!({}), Duration::from_millis(pause));
            };
            tokio::join!(poller.receive(10), served).0.unwrap();
        }
    }

    #[tokio::test]
    async fn after_a_lost_answer_fewer_messages_are_asked_for() {
        assert_eq!(asked("q", 2, 7).await, [10, 1, 1, 2, 4, 8, 10].map(|count| (count, false)));
        let expected = [(10, false), (10, true), (1, false), (2, false)];
        assert_eq!(asked("q.fifo", 2, 4).await, expected, "once under the same id");
    }

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

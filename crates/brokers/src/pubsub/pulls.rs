//! Keeps a stream of messages open. A task of its own reads it, so that a call for the next event can be dropped.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, poll_immediate, select};
use hapax_core::Error;
use hapax_core::runtime::{BoxFuture, Runtime};
use hapax_net::google::GoogleStream;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::PubSubUrl;
use super::answers::PubSubFailure;
use super::api::{NamedSubscription, PubSubResult, StreamLimits};
use super::messages::{PulledMessage, StreamingPullResponse};

/// The pause before the next stream after one that has brought messages or lasted.
const SHORT_PAUSE: Duration = Duration::from_millis(100);

/// The pause after a stream that could not be opened.
const PAUSE: Duration = Duration::from_secs(1);

/// A stream that breaks later than that has ended as they all do at last.
const LASTING: Duration = Duration::from_secs(10);

/// How long the service may take to end a stream that is not wanted any more. Its last messages come until then.
const END_WITHIN: Duration = Duration::from_secs(1);

/// A stream that has brought nothing for so long has nothing left that waited in the connection.
const IDLE: Duration = Duration::from_secs(1);

/// As many messages may be delivered and not settled: those that the worker holds, which are 10,000 by default, and
/// those that wait for their delay.
const MAX_OUTSTANDING: usize = 20_000;

/// How long before its arrival the service may have sent a message, at most.
const ON_THE_WAY: Duration = Duration::from_secs(1);

/// Messages, and since when their leases have run; or why none can be asked for.
pub(super) type Pulled = Result<(Vec<PulledMessage>, Duration), Error>;

/// The task that reads.
pub(super) struct Pulls {
    /// It ends after [`Pulls::stop`] with the stream. Not more than one answer waits in it: a source without room stops
    /// the service.
    pub(super) arrived: Receiver<Pulled>,
    demand: Arc<StreamDemand>,
}

/// How many messages are wanted.
#[derive(Default)]
struct StreamDemand {
    state: Mutex<StreamDemandState>,
    has_changed: Notify,
}

#[derive(Default)]
struct StreamDemandState {
    /// The most bytes that there was ever room for. Zero: no stream is wanted yet.
    bytes: usize,
    has_stopped: bool,
}

impl Pulls {
    pub(super) fn start(url: &PubSubUrl, subscription: &NamedSubscription, runtime: &Arc<dyn Runtime>) -> Self {
        let (sender, arrived) = channel(1);
        let demand: Arc<StreamDemand> = Arc::default();
        let mut id = [0; 16];
        runtime.fill_random(&mut id);
        let puller = StreamReader {
            deadline: url.deadline,
            subscription: subscription.clone(),
            what: format!("the subscription `{}`", url.subscription()),
            client_id: u128::from_be_bytes(id).to_string(),
            demand: Arc::clone(&demand),
            arrived: sender,
            runtime: Arc::clone(runtime),
        };
        runtime.spawn(Box::pin(puller.run()));
        Self { arrived, demand }
    }

    /// Takes messages of up to so many bytes that are not settled. The number only grows: what the worker holds counts
    /// for the service, and is no part of a room.
    pub(super) fn want(&self, bytes: usize) {
        {
            let mut state = self.demand.state.lock();
            if bytes <= state.bytes {
                return;
            }
            state.bytes = bytes;
        }
        self.demand.has_changed.notify_waiters();
    }

    /// Whether it was stopped.
    pub(super) fn has_stopped(&self) -> bool {
        self.demand.state.lock().has_stopped
    }

    /// Ends the stream. What it has sent by then still arrives.
    pub(super) fn stop(&self) {
        self.demand.state.lock().has_stopped = true;
        self.demand.has_changed.notify_waiters();
    }
}

impl Drop for Pulls {
    fn drop(&mut self) {
        self.stop();
    }
}

impl StreamDemand {
    /// Waits until messages are wanted. None after the stop.
    async fn limits(&self, deadline: Duration) -> Option<StreamLimits> {
        loop {
            // Before the look: a change in between is noticed.
            let changed = self.has_changed.notified();
            {
                let StreamDemandState { bytes, has_stopped } = *self.state.lock();
                if has_stopped {
                    return None;
                }
                if bytes > 0 {
                    return Some(StreamLimits { deadline, messages: MAX_OUTSTANDING, bytes });
                }
            }
            changed.await;
        }
    }

    /// Waits until a stream with these limits is not wanted any more.
    async fn end(&self, limits: &StreamLimits) {
        loop {
            let changed = self.has_changed.notified();
            if self.limits(limits.deadline).await.is_none_or(|wanted| wanted != *limits) {
                return;
            }
            changed.await;
        }
    }
}

/// The task.
struct StreamReader {
    deadline: Duration,
    subscription: NamedSubscription,
    what: String,
    client_id: String,
    demand: Arc<StreamDemand>,
    arrived: Sender<Pulled>,
    runtime: Arc<dyn Runtime>,
}

/// How the service has ended a stream.
struct StreamEnd {
    /// Whether it has brought messages.
    has_brought: bool,
    failure: Option<PubSubFailure>,
}

impl StreamReader {
    async fn run(self) {
        while let Some(limits) = self.demand.limits(self.deadline).await {
            let begun = self.runtime.boottime_now();
            // None: another stream is wanted, or none.
            let Some(end) = self.read(&limits).await else { continue };
            let has_lasted = self.runtime.boottime_now().saturating_sub(begun) >= LASTING;
            let StreamEnd { has_brought, failure } = end;
            let is_usual = has_brought || has_lasted;
            let unusual = failure.filter(|failure| !is_usual || failure.needs_operator());
            let pause = if is_usual && unusual.is_none() { SHORT_PAUSE } else { PAUSE };
            if let Some(failure) = unusual {
                // The source may be gone.
                let _ = self.arrived.send(Err(failure.asked(&self.what))).await;
            }
            self.runtime.sleep(pause).await;
        }
    }

    /// Reads a stream to its end. None if it is not wanted any more.
    async fn read(&self, limits: &StreamLimits) -> Option<StreamEnd> {
        let stopped = || -> BoxFuture<'static, ()> {
            let (demand, limits) = (Arc::clone(&self.demand), limits.clone());
            Box::pin(async move { demand.end(&limits).await })
        };
        let mut over = pin!(async {
            self.demand.end(limits).await;
            self.runtime.sleep(END_WITHIN).await;
        });
        let opening = self.subscription.stream(limits.clone(), self.client_id.clone(), stopped);
        let mut stream = match select(pin!(opening), &mut over).await {
            Either::Left((Ok(stream), _)) => stream,
            Either::Left((Err(failure), _)) => return Some(StreamEnd { has_brought: false, failure: Some(failure) }),
            Either::Right(((), _)) => return None,
        };
        let (mut has_brought, mut behind) = (false, Duration::ZERO);
        loop {
            // Also while messages come again and again.
            if poll_immediate(&mut over).await.is_some() {
                return None;
            }
            let asked = self.runtime.boottime_now();
            let permit = self.arrived.reserve().await.ok()?;
            // Messages that came meanwhile waited in the connection, while their leases ran.
            behind += self.runtime.boottime_now().saturating_sub(asked);
            let mut next = pin!(next(&mut stream));
            let answer = match poll_immediate(&mut next).await {
                Some(answer) => answer,
                None => {
                    let idle_since = self.runtime.boottime_now();
                    let answer = match select(next, &mut over).await {
                        Either::Left((answer, _)) => answer,
                        Either::Right(((), _)) => return None,
                    };
                    if self.runtime.boottime_now().saturating_sub(idle_since) >= IDLE {
                        behind = Duration::ZERO;
                    }
                    answer
                }
            };
            match answer {
                Ok(Some(messages)) if messages.is_empty() => {}
                Ok(Some(messages)) => {
                    has_brought = true;
                    let at = self.runtime.boottime_now().saturating_sub(behind + ON_THE_WAY);
                    permit.send(Ok((messages, at)));
                }
                Ok(None) => return Some(StreamEnd { has_brought, failure: None }),
                Err(failure) => return Some(StreamEnd { has_brought, failure: Some(failure) }),
            }
        }
    }
}

async fn next(stream: &mut GoogleStream<StreamingPullResponse>) -> PubSubResult<Option<Vec<PulledMessage>>> {
    let answer = stream.next().await.map_err(PubSubFailure::of)?;
    Ok(answer.map(|answer| answer.received_messages))
}

//! Topics and subscriptions of Google Cloud Pub/Sub.
//!
//! ```text
//! url.rs       the URL
//! admin.rs     creates and deletes topics with their subscriptions
//! messages.rs  the messages of the API
//! api.rs       its calls
//! answers.rs   what an answer means, in numbered rows
//! pulls.rs     keeps a stream of messages open
//! headers.rs   headers that attributes cannot hold
//! message.rs   from a message to a delivery
//! ended.rs     the keys of messages whose leases have ended
//! settle.rs    acknowledges messages, and moves the ends of leases
//! sink.rs      the other direction: publishes events
//! ```

mod admin;
mod answers;
mod api;
mod ended;
mod headers;
mod message;
mod messages;
mod pulls;
mod settle;
mod sink;
#[cfg(test)]
mod stand_in;
mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::Result;
use hapax_core::broker::{Acknowledges, BrokerLease, Capability, Delivery, Event, Room, Settle, Source};
use hapax_core::runtime::{Runtime, timeout};
use tracing::warn;

use self::api::PubSubApi;
use self::ended::EndedKeys;
use self::message::TopicReader;
use self::messages::Subscription;
use self::pulls::{Pulled, Pulls};
use self::settle::PubSubSettle;
pub use self::sink::{PubSubSink, PubSubSinkConfig};
pub use self::url::PubSubUrl;
use crate::errors::unusable;
use crate::waiting::WaitingDeliveries;

/// How long to wait for messages while none has a lease to extend.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// As many bytes may wait for room. Their leases are extended; the rest stays in the stream.
const MAX_WAITING: usize = 64 << 20;

/// A subscription with fewer delivery attempts than that before its dead-letter topic may take messages away that no
/// worker has begun.
const FEW_ATTEMPTS: i32 = 20;

/// How long a subscription keeps a message by default, in seconds.
const USUAL_RETENTION: i64 = 7 * 24 * 3600;

/// The messages of a subscription of Google Cloud Pub/Sub.
///
/// Messages of one ordering key are processed one after the other if the subscription has message ordering. Pub/Sub
/// recognizes no repeated publication, with exactly-once delivery neither; a worker recognizes it by its key.
///
/// A message has a lease, the deadline of the stream, which counts instead of that of the subscription. The worker
/// extends it as long as it works. If the subscription has a dead-letter topic, its `maxDeliveryAttempts` should be 20
/// or more: Hapax writes dead letters itself.
///
/// The credentials need the rights `pubsub.subscriptions.consume` and `pubsub.subscriptions.get`, which the roles
/// `roles/pubsub.subscriber` and `roles/pubsub.viewer` have.
///
/// ```no_run
/// # async fn run() -> Result<(), hapax::Error> {
/// use std::sync::Arc;
/// use hapax::brokers::{PubSubSource, PubSubUrl};
/// use hapax::runtime::Tokio;
///
/// let url: PubSubUrl = "pubsub://shop-4711/orders".parse()?;
/// let source = PubSubSource::connect(&url, Arc::new(Tokio::current())).await?;
/// # Ok(())
/// # }
/// ```
pub struct PubSubSource {
    name: Arc<str>,
    capability: Capability,
    pulls: Pulls,
    reader: TopicReader,
    /// Messages that arrived and found no room yet.
    waiting: WaitingDeliveries,
    ended: EndedKeys,
    /// When their leases are extended next.
    extend_at: Duration,
    lease: Duration,
    settle: Arc<PubSubSettle>,
    runtime: Arc<dyn Runtime>,
}

impl PubSubSource {
    /// Finds the subscription, and looks at it.
    ///
    /// # Errors
    /// - `NotApplied`: the service cannot be reached now.
    /// - `Unusable`: there is no such subscription, no credentials, or no right to look at it; or the service pushes
    ///   its messages to an endpoint.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn connect(url: &PubSubUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let name = url.subscription();
        let subscription = PubSubApi::new(&url.place, &runtime)?.subscription(name);
        let found = subscription.find().await;
        let found = found.map_err(|failure| failure.asked(&format!("the subscription `{name}`")))?;
        check(name, &found)?;
        let lease = url.deadline;
        let reader = TopicReader::new(name, &found, lease);
        let source_name: Arc<str> = format!("pubsub/{}/{name}", url.project()).into();
        let settle = PubSubSettle::new(&source_name, subscription.clone(), reader.lane.clone(), Arc::clone(&runtime));
        let capability = Capability {
            acknowledges: Acknowledges::Each,
            redelivers: true,
            delays: true,
            lease: Some(BrokerLease { length: lease, longest: None }),
            // An answer brings several messages of a key, and one that is given back comes again behind them. The
            // worker keeps the order, each for itself.
            keeps_order: false,
            // The service drops no message because of its deliveries.
            delivery_limit: None,
        };
        Ok(Self {
            name: source_name,
            capability,
            pulls: Pulls::start(url, &subscription, &runtime),
            reader,
            waiting: WaitingDeliveries::default(),
            ended: EndedKeys::default(),
            extend_at: Duration::ZERO,
            lease,
            settle: Arc::new(settle),
            runtime,
        })
    }

    /// Keeps the messages of an answer.
    ///
    /// # Errors
    /// The failure of the stream, which brought no message.
    fn receive(&mut self, pulled: Pulled) -> Result<()> {
        let (messages, at) = pulled?;
        self.forget_ended();
        self.ended.pass(at);
        if self.waiting.is_empty() {
            self.extend_at = at + self.lease / 3;
        }
        let mut given = Vec::new();
        for message in messages {
            let delivery = self.reader.read(message, at);
            self.settle.arrived(&delivery, at);
            match self.ended.away(&delivery.message, at) {
                Some(away) => given.push((delivery, away)),
                None => self.waiting.push(delivery),
            }
        }
        self.give_back(given);
        Ok(())
    }

    /// Extends the leases of the messages that wait, if it is time. In a task: a call for the next event may be dropped
    /// all the time.
    fn extend_waiting(&mut self) {
        let now = self.runtime.boottime_now();
        if now < self.extend_at || self.waiting.is_empty() {
            return;
        }
        self.extend_at = now + self.lease / 3;
        let (settle, ids, lease) = (Arc::clone(&self.settle), self.waiting.ids(), self.lease);
        self.runtime.spawn(Box::pin(async move { settle.extend_waiting(ids, lease).await }));
    }

    /// Forgets deliveries whose lease has ended, as the service delivers them again. The later ones of their keys go
    /// back before that, also if the earlier one is with the worker.
    fn forget_ended(&mut self) {
        let noted = self.settle.take_ended();
        let keys = noted.iter().map(|ended| ended.group.clone()).collect();
        self.ended.note(noted, self.runtime.boottime_now());
        let removed = self.waiting.remove_ended(keys, |waiting| !self.settle.is_ours(&waiting.id));
        self.settle.forget(&removed.ended);
        self.give_back(given_back_at_once(removed.behind));
    }

    /// Gives deliveries back, each for so long. In a task, as above.
    fn give_back(&self, given: Vec<(Delivery, Duration)>) {
        if !given.is_empty() {
            let settle = Arc::clone(&self.settle);
            self.runtime.spawn(Box::pin(async move { settle.give_back(given).await }));
        }
    }

    async fn give_back_waiting(&mut self) {
        self.settle.give_back(given_back_at_once(self.waiting.take_all())).await;
    }

    /// Takes deliveries that there is room for.
    fn take(&mut self, room: &Room) -> Vec<Delivery> {
        if room.closed.contains(&self.reader.lane) {
            return Vec::new();
        }
        if !self.waiting.is_empty() {
            self.forget_ended();
        }
        let mut taken = self.waiting.take(room);
        for delivery in &mut taken {
            delivery.leased_until = self.settle.leased_until(&delivery.id);
        }
        taken
    }
}

fn given_back_at_once(deliveries: Vec<Delivery>) -> Vec<(Delivery, Duration)> {
    deliveries.into_iter().map(|delivery| (delivery, Duration::ZERO)).collect()
}

/// Refuses a subscription that cannot be read, and says what of another one may surprise its operator.
fn check(subscription: &str, found: &Subscription) -> Result<()> {
    if found.push_config.as_ref().is_some_and(|push| !push.push_endpoint.is_empty()) {
        return Err(unusable(format!(
            "Pub/Sub pushes the messages of the subscription `{subscription}` to an endpoint: create one without \
             push for the worker"
        )));
    }
    if found.detached {
        return Err(unusable(format!("the subscription `{subscription}` is detached from its topic")));
    }
    let policy = found.dead_letter_policy.as_ref();
    if let Some(policy) = policy.filter(|policy| policy.max_delivery_attempts < FEW_ATTEMPTS) {
        warn!(
            subscription,
            maxDeliveryAttempts = policy.max_delivery_attempts,
            "the subscription moves a message to its dead-letter topic after few deliveries, perhaps before a worker \
             has begun it; set maxDeliveryAttempts to 20 or more"
        );
    }
    if found.message_retention_duration.is_some_and(|kept| kept.seconds < USUAL_RETENTION) {
        warn!(
            subscription,
            "the subscription deletes a message within a week after it was published, also one that a worker holds; \
             set its retention to 7 days or more"
        );
    }
    Ok(())
}

#[async_trait]
impl Source for PubSubSource {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn capability(&self) -> Capability {
        self.capability
    }

    fn settler(&self) -> Arc<dyn Settle> {
        Arc::clone(&self.settle) as Arc<dyn Settle>
    }

    async fn next(&mut self, room: Room) -> Result<Event> {
        loop {
            let taken = self.take(&room);
            if !taken.is_empty() {
                return Ok(Event::Deliveries(taken));
            }
            self.extend_waiting();
            if !room.closed.contains(&self.reader.lane) {
                self.pulls.want(room.bytes);
            }
            let pause = self.extend_at.saturating_sub(self.runtime.boottime_now());
            let pause = if self.waiting.is_empty() { LONGEST_WAIT } else { pause };
            let waiting: usize = self.waiting.iter().map(|waiting| waiting.message.size()).sum();
            if waiting >= MAX_WAITING {
                // Messages that arrive stay in the stream, and the service sends no more.
                self.runtime.sleep(pause).await;
                continue;
            }
            match timeout(&*self.runtime, pause, self.pulls.arrived.recv()).await {
                Some(Some(pulled)) => self.receive(pulled)?,
                // Nothing arrives after the stop.
                Some(None) if self.pulls.has_stopped() => self.runtime.sleep(LONGEST_WAIT).await,
                Some(None) => return Err(unusable("the task that reads the stream of Pub/Sub has ended")),
                None => {}
            }
        }
    }

    async fn stop_reading(&mut self) {
        self.pulls.stop();
        // The channel ends with the stream.
        while let Some(pulled) = self.pulls.arrived.recv().await {
            // Nothing is asked for any more, so a failure has no meaning.
            let _ = self.receive(pulled);
        }
    }

    async fn close(&mut self) -> Result<()> {
        self.pulls.stop();
        // Before the stream ends, for which the worker may not wait.
        self.give_back_waiting().await;
        self.stop_reading().await;
        self.give_back_waiting().await;
        self.settle.mark_closed();
        Ok(())
    }
}

impl Drop for PubSubSource {
    fn drop(&mut self) {
        self.settle.mark_closed();
    }
}

impl fmt::Debug for PubSubSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PubSubSource").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

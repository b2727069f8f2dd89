//! Queues of AWS SQS.
//!
//! ```text
//! url.rs       the URL
//! admin.rs     creates and deletes queues
//! queue.rs     the calls of SQS
//! answers.rs   what an answer means, in numbered rows
//! polls.rs     asks for messages
//! headers.rs   headers and bodies that attributes and texts cannot hold
//! message.rs   from a message to a delivery
//! settle.rs    deletes messages, and moves the ends of leases
//! sink.rs      the other direction: sends events
//! ```

mod admin;
mod answers;
mod headers;
mod message;
mod polls;
mod queue;
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

use self::message::MessageReader;
use self::polls::{Polled, Polls};
use self::queue::{QueueAttributes, SqsApi};
use self::settle::{LONGEST, SqsSettle};
pub use self::sink::{SqsSink, SqsSinkConfig};
pub use self::url::SqsUrl;
use crate::waiting::WaitingDeliveries;

/// How long to wait for messages while none has a lease to extend.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// How long a queue can keep a message at most.
const LONGEST_RETENTION: Duration = Duration::from_secs(14 * 24 * 3600);

/// A queue with fewer receipts than that before its dead-letter queue may take messages away that no worker has begun.
const FEW_RECEIPTS: u64 = 20;

/// The messages of a queue of AWS SQS.
///
/// In a FIFO queue, messages of one group are processed one after the other, also by several workers. In a standard
/// queue, messages have no order, and a message group is none.
///
/// A message has a lease, which the worker extends for at most twelve hours after its receipt. The service counts each
/// receipt, also of messages that no worker has begun. If the queue has a dead-letter queue, its `maxReceiveCount`
/// should be 20 or more: Hapax writes dead letters itself. The source does not unpack what SNS has wrapped; turn on raw
/// message delivery for the subscription of the queue.
///
/// The credentials need the rights `sqs:ReceiveMessage`, `sqs:DeleteMessage`, `sqs:ChangeMessageVisibility`,
/// `sqs:GetQueueAttributes` and, if the URL names no account, `sqs:GetQueueUrl`; and `kms:Decrypt` for a queue with a
/// key of its own.
///
/// ```no_run
/// # async fn run() -> Result<(), hapax::Error> {
/// use std::sync::Arc;
/// use hapax::brokers::{SqsSource, SqsUrl};
/// use hapax::runtime::Tokio;
///
/// let url: SqsUrl = "sqs://eu-west-1/orders.fifo".parse()?;
/// let source = SqsSource::connect(&url, Arc::new(Tokio::current())).await?;
/// # Ok(())
/// # }
/// ```
pub struct SqsSource {
    name: Arc<str>,
    capability: Capability,
    polls: Polls,
    reader: MessageReader,
    /// Messages that arrived and found no room yet.
    waiting: WaitingDeliveries,
    /// When their leases are extended next.
    extend_at: Duration,
    lease: Duration,
    settle: Arc<SqsSettle>,
    runtime: Arc<dyn Runtime>,
}

impl SqsSource {
    /// Finds the queue, and looks at its attributes.
    ///
    /// # Errors
    /// - `NotApplied`: the service cannot be reached now.
    /// - `Unusable`: there is no such queue, no credentials, or no right to look at the queue.
    ///
    /// # Cancel safety
    /// Safe to drop.
    pub async fn connect(url: &SqsUrl, runtime: Arc<dyn Runtime>) -> Result<Self> {
        let name = url.queue();
        let api = SqsApi::new(&url.place, &runtime).await?;
        let queue = api.queue(name).await.map_err(|failure| failure.asked(name))?;
        let attributes = queue.attributes().await.map_err(|failure| failure.asked(name))?;
        warn_about(name, &attributes);
        let lease = url.visibility;
        let reader = MessageReader::new(attributes.account(), name, url.is_fifo(), lease);
        let source_name: Arc<str> = format!("sqs/{name}").into();
        let settle = SqsSettle::new(&source_name, queue.clone(), reader.lane.clone(), Arc::clone(&runtime));
        let capability = Capability {
            acknowledges: Acknowledges::Each,
            redelivers: true,
            delays: true,
            lease: Some(BrokerLease { length: lease, longest: Some(LONGEST) }),
            // A request brings several messages of a group, and one that is given back comes again behind them.
            keeps_order: false,
            // The service drops no message because of its deliveries.
            delivery_limit: None,
        };
        Ok(Self {
            name: source_name,
            capability,
            polls: Polls::start(url, &queue, &runtime),
            reader,
            waiting: WaitingDeliveries::default(),
            extend_at: Duration::ZERO,
            lease,
            settle: Arc::new(settle),
            runtime,
        })
    }

    /// Keeps the messages of a request.
    ///
    /// # Errors
    /// The failure of the request, which brought no message.
    fn receive(&mut self, polled: Polled) -> Result<()> {
        let (messages, at) = polled?;
        // What arrives now is not behind those that have ended.
        self.forget_ended();
        if self.waiting.is_empty() {
            self.extend_at = at + self.lease / 3;
        }
        for message in messages {
            let delivery = self.reader.read(message, at);
            self.settle.arrived(&delivery, at);
            self.waiting.push(delivery);
        }
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

    /// Forgets deliveries whose lease has ended, as the service delivers them again. The later ones of their groups go
    /// back before that, also if the earlier one is with the worker.
    fn forget_ended(&mut self) {
        let groups = self.settle.take_ended_groups();
        let removed = self.waiting.remove_ended(groups, |waiting| !self.settle.is_ours(&waiting.id));
        self.settle.forget(&removed.ended);
        if !removed.behind.is_empty() {
            let settle = Arc::clone(&self.settle);
            self.runtime.spawn(Box::pin(async move { settle.give_back(removed.behind).await }));
        }
    }

    async fn give_back_waiting(&mut self) {
        self.settle.give_back(self.waiting.take_all()).await;
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

/// Says what of a queue may surprise its operator.
fn warn_about(queue: &str, attributes: &QueueAttributes) {
    if let Some(count) = attributes.max_receives().filter(|count| *count < FEW_RECEIPTS) {
        warn!(
            queue,
            maxReceiveCount = count,
            "the queue moves a message to its dead-letter queue after few receipts, perhaps before a worker has begun \
             it; set maxReceiveCount to 20 or more"
        );
    }
    if attributes.retention().is_some_and(|retention| retention < LONGEST_RETENTION) {
        warn!(
            queue,
            "the queue deletes a message some days after it was sent, also one that a worker holds; set its \
             MessageRetentionPeriod to 1209600 seconds"
        );
    }
    if !attributes.delay().is_zero() {
        warn!(queue, seconds = attributes.delay().as_secs(), "the queue delays each message: see its DelaySeconds");
    }
}

#[async_trait]
impl Source for SqsSource {
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
            // All of them: the worker pauses after each error, and several tasks report theirs.
            let mut failure = None;
            while let Ok(polled) = self.polls.arrived.try_recv() {
                failure = self.receive(polled).err().or(failure);
            }
            let taken = self.take(&room);
            if !taken.is_empty() {
                return Ok(Event::Deliveries(taken));
            }
            self.extend_waiting();
            if let Some(failure) = failure {
                return Err(failure);
            }
            let has_room = room.bytes > 0 && !room.closed.contains(&self.reader.lane);
            self.polls.want(if has_room && self.waiting.is_empty() { room.messages } else { 0 });
            let pause = self.extend_at.saturating_sub(self.runtime.boottime_now());
            let pause = if self.waiting.is_empty() { LONGEST_WAIT } else { pause };
            match timeout(&*self.runtime, pause, self.polls.arrived.recv()).await {
                Some(Some(polled)) => self.receive(polled)?,
                // Nothing arrives after the stop.
                Some(None) => self.runtime.sleep(pause).await,
                None => {}
            }
        }
    }

    async fn stop_reading(&mut self) {
        self.polls.stop();
        // The channel ends with the last request.
        while let Some(polled) = self.polls.arrived.recv().await {
            // Nothing is asked for any more, so a failure has no meaning.
            let _ = self.receive(polled);
        }
    }

    async fn close(&mut self) -> Result<()> {
        self.polls.stop();
        // Before the last request ends, for which the worker may not wait.
        self.give_back_waiting().await;
        self.stop_reading().await;
        self.give_back_waiting().await;
        self.settle.mark_closed();
        Ok(())
    }
}

impl Drop for SqsSource {
    fn drop(&mut self) {
        self.settle.mark_closed();
    }
}

impl fmt::Debug for SqsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsSource").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

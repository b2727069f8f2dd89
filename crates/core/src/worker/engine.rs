//! One task that decides everything, and the tasks that it starts: batches, settlements and dead letters. They report
//! to it, and it never waits for one of them, so the source is always polled.

#[path = "../chaos/worker.rs"]
mod bugs;
mod delivering;
mod ending;
mod tasks;
mod timing;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::broker::{Acknowledges, Capability, DeadLetters, DeadReason, Delivery, Event, Process, Settle, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Heartbeat;
use crate::ledger::rules::backoff;
use crate::runtime::{Runtime, timeout};
use crate::telemetry;
use crate::worker::batches::BatchTrigger;
use crate::worker::burials::Burials;
use crate::worker::extension::Extensions;
use crate::worker::lanes::Lanes;
use crate::worker::order::{OrderKey, RunOrder};
use crate::worker::parking::Parking;
use crate::worker::redrive;
use crate::worker::room::HeldRoom;
use crate::worker::settling::SettleQueue;
use crate::worker::{IdentifiedMessage, MessageIdentity, WorkerEnd, WorkerParts, WorkerSettings};
use tasks::TaskReport;

/// How long a source may take to leave its group. Kafka asks its broker up to three times meanwhile, each for up to
/// 2 seconds.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// How long a source may take until it asks for nothing more.
const STOP_READING_WITHIN: Duration = Duration::from_secs(2);

/// The longest pause before a source that failed is asked again. It is short, because during the pause the worker does
/// not learn that the broker takes lanes away, and running messages of these lanes should still end.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What the worker knows of a message, or why it is dead: it has no usable key.
type Identified = std::result::Result<IdentifiedMessage, DeadReason>;

/// A message that the worker holds.
pub(super) struct HeldMessage {
    delivery: Delivery,
    identified: Identified,
    arrived: Duration,
    /// Since when its batch has been running.
    running_since: Option<Duration>,
    /// How often it has panicked in a batch of its own.
    panics: u32,
    lease: Option<Heartbeat>,
}

impl HeldMessage {
    fn is_running(&self) -> bool {
        self.running_since.is_some()
    }
}

/// Whether the message is that of a redriven letter.
fn is_letter(delivery: &Delivery) -> bool {
    delivery.id.lane == redrive::lane()
}

/// How the message is acknowledged. Redriven letters are acknowledged one by one, whatever the source does.
fn acknowledges(capability: &Capability, delivery: &Delivery) -> Acknowledges {
    if is_letter(delivery) { redrive::capability().acknowledges } else { capability.acknowledges }
}

/// Messages with the same key run one after the other. None if the message has no order.
fn order_key(delivery: &Delivery) -> Option<OrderKey> {
    let key = delivery.message.ordering_key.clone()?;
    let topic = (!is_letter(delivery)).then(|| Arc::clone(&delivery.id.lane.topic));
    Some((topic, key))
}

/// The state of a worker.
pub(super) struct Engine {
    name: Arc<str>,
    process: Arc<dyn Process>,
    dead: Arc<dyn DeadLetters>,
    identity: MessageIdentity,
    settings: WorkerSettings,
    runtime: Arc<dyn Runtime>,
    settler: Arc<dyn Settle>,
    capability: Capability,
    reports: UnboundedSender<TaskReport>,
    inbox: Option<UnboundedReceiver<TaskReport>>,

    messages: BTreeMap<u64, HeldMessage>,
    last_number: u64,
    lanes: Lanes,
    order: RunOrder,
    room: HeldRoom,
    trigger: BatchTrigger,
    extensions: Extensions,
    settling: SettleQueue,
    burials: Burials,
    /// None if a key goes on after a dead letter.
    parking: Option<Parking>,

    batches: usize,
    /// Since when a message is ready to run and waits for a free place or for others of its batch.
    ready_since: Option<Duration>,
    /// Nothing starts before.
    paused_until: Duration,
    /// When the first pause began after which no job has ended otherwise.
    paused_since: Option<Duration>,
    /// The number of failures of the source in a row.
    source_failures: u32,
    /// When the source is asked again after a failure.
    source_due: Duration,
    measured_at: Option<Duration>,
    /// When the log may say again that a batch does not end.
    slow_logged_until: Duration,
    /// Set once the worker stops.
    stop: Option<StoppingWorker>,
}

/// A worker that stops.
struct StoppingWorker {
    deadline: Duration,
    /// Why, if it was not asked to.
    error: Option<Error>,
}

/// What the engine waits for.
enum EngineInput {
    Source(Result<Event>),
    Report(Option<TaskReport>),
    Shutdown,
    TimeIsUp,
}

impl Engine {
    pub(super) fn start(source: &dyn Source, parts: WorkerParts) -> Result<Self> {
        let WorkerParts { process, dead, parked, identity, settings, runtime } = parts;
        let (capability, settler) = (source.capability(), source.settler());
        let extensions = Extensions::start(&runtime, &capability, Arc::clone(&settler))?;
        let (reports, inbox) = unbounded_channel();
        Ok(Self {
            name: Arc::clone(source.name()),
            process,
            dead,
            identity,
            settings,
            runtime,
            settler,
            capability,
            reports,
            inbox: Some(inbox),
            messages: BTreeMap::new(),
            last_number: 0,
            lanes: Lanes::default(),
            order: if parked.is_some() { RunOrder::one_of_a_key() } else { RunOrder::default() },
            room: HeldRoom::new(settings.max_held, settings.max_held_bytes),
            trigger: BatchTrigger { size: settings.batch, linger: settings.linger },
            extensions,
            settling: SettleQueue::default(),
            burials: Burials::default(),
            parking: parked.map(Parking::new),
            batches: 0,
            ready_since: None,
            paused_until: Duration::ZERO,
            paused_since: None,
            source_failures: 0,
            source_due: Duration::ZERO,
            measured_at: None,
            slow_logged_until: Duration::ZERO,
            stop: None,
        })
    }

    /// Works until the shutdown, then until everything that runs is settled.
    pub(super) async fn run(
        mut self,
        mut source: Box<dyn Source>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<WorkerEnd> {
        let mut shutdown = pin!(shutdown);
        let Some(mut inbox) = self.inbox.take() else {
            return Err(Error::new(ErrorKind::Invalid, "a worker runs once"));
        };
        telemetry::worker_starts(&self.name);
        let mut has_stopped_reading = false;
        loop {
            while let Ok(report) = inbox.try_recv() {
                self.note(report);
            }
            self.advance();
            if self.has_ended() {
                break;
            }
            source.note_pause(self.pause());
            match self.wait(&mut *source, &mut inbox, shutdown.as_mut()).await {
                EngineInput::Source(event) => self.take_event(event),
                EngineInput::Report(report) => report.into_iter().for_each(|report| self.note(report)),
                EngineInput::Shutdown => self.stop(None),
                EngineInput::TimeIsUp => {}
            }
            if self.stop.is_some() && !has_stopped_reading {
                // A source that still reads after this may receive the messages again that the worker gives back.
                timeout(&*self.runtime, STOP_READING_WITHIN, source.stop_reading()).await;
                has_stopped_reading = true;
            }
        }
        self.close(source).await
    }

    /// Waits for the next input. An event of the source comes first if several inputs are ready. It does not starve the
    /// others: the room bounds what a source delivers, and before each wait the loop takes the reports of all tasks.
    async fn wait(
        &self,
        source: &mut dyn Source,
        inbox: &mut UnboundedReceiver<TaskReport>,
        shutdown: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> EngineInput {
        let now = self.runtime.boottime_now();
        let next = async {
            if now < self.source_due {
                self.runtime.sleep(self.source_due - now).await;
            }
            source.next(self.room()).await
        };
        let time = async {
            match self.next_wake() {
                Some(at) => self.runtime.sleep(at.saturating_sub(now)).await,
                None => std::future::pending().await,
            }
        };
        let is_stopping = self.stop.is_some();
        let shutdown = async {
            match is_stopping {
                true => std::future::pending().await,
                false => shutdown.await,
            }
        };
        let rest = async {
            match select(pin!(shutdown), pin!(time)).await {
                Either::Left(_) => EngineInput::Shutdown,
                Either::Right(_) => EngineInput::TimeIsUp,
            }
        };
        match select(pin!(next), select(pin!(inbox.recv()), pin!(rest))).await {
            Either::Left((event, _)) => EngineInput::Source(event),
            Either::Right((Either::Left((report, _)), _)) => EngineInput::Report(report),
            Either::Right((Either::Right((input, _)), _)) => input,
        }
    }

    fn take_event(&mut self, event: Result<Event>) {
        match event {
            Ok(event) => {
                self.source_failures = 0;
                match event {
                    Event::Deliveries(deliveries) => self.take_deliveries(deliveries),
                    Event::Revoking { lanes, until } => self.revoke(&lanes, until),
                    Event::Lost { lanes } => self.lose(&lanes),
                }
            }
            Err(error) => match error.kind() {
                ErrorKind::Invalid | ErrorKind::Unusable | ErrorKind::Damaged => self.stop(Some(error)),
                ErrorKind::NotApplied | ErrorKind::Full | ErrorKind::Unknown => {
                    telemetry::source_failed(&self.name, &error);
                    self.source_failures = self.source_failures.saturating_add(1);
                    let pause = backoff(self.source_failures).min(LONGEST_PAUSE);
                    self.source_due = self.runtime.boottime_now() + pause;
                }
            },
        }
    }

    /// Stops taking messages. What waits is given back, and what runs goes on.
    fn stop(&mut self, error: Option<Error>) {
        if self.stop.is_some() {
            return;
        }
        telemetry::worker_stops(&self.name, self.messages.len(), error.as_ref());
        let deadline = self.runtime.boottime_now() + self.settings.drain;
        self.stop = Some(StoppingWorker { deadline, error });
        self.give_back_idle();
    }

    /// Whether a worker that stops has nothing left to do, or no time.
    fn has_ended(&self) -> bool {
        let Some(stop) = &self.stop else { return false };
        (self.is_idle() && self.messages.is_empty()) || self.runtime.boottime_now() >= stop.deadline
    }

    /// Whether nothing runs, and everything that ran is settled.
    pub(super) fn is_idle(&self) -> bool {
        self.batches == 0 && self.burials.is_empty() && self.settling.is_empty()
    }

    async fn close(self, mut source: Box<dyn Source>) -> Result<WorkerEnd> {
        let unfinished = self.messages.len() + self.settling.len();
        match timeout(&*self.runtime, CLOSE_WITHIN, source.close()).await {
            Some(Ok(())) => {}
            Some(Err(error)) => telemetry::source_failed(&self.name, &error),
            None => telemetry::source_failed(&self.name, &Error::new(ErrorKind::Unknown, "it did not close in time")),
        }
        telemetry::worker_ends(&self.name, unfinished);
        match self.stop.and_then(|stop| stop.error) {
            Some(error) => Err(error),
            None => Ok(WorkerEnd { unfinished }),
        }
    }
}

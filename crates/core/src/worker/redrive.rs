//! The lane of dead letters that operators marked to be processed again.

mod taken;

use std::collections::VecDeque;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::broker::{
    Acknowledges, Capability, DeadLetterId, DeadLetterStore, Delivery, DeliveryId, Event, Lane, MarkedLetter, Pause,
    Room, Settle, Settlement, Source,
};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::Runtime;
use crate::telemetry;
use crate::worker::reopen::{Reopen, ReopenedLetter};
use taken::{OpenLetter, Redrive, TakenLetters};

/// How often the store is asked for marked letters.
const TAKE_EVERY: Duration = Duration::from_secs(1);

/// A source that also delivers the dead letters of its name that operators marked for a redrive, in a lane of its own.
///
/// A letter whose message was processed is removed. If its message is dead again, the worker has written the letter
/// again, and it stays.
///
/// ```
/// # fn wire(source: Box<dyn hapax::broker::Source>, letters: std::sync::Arc<dyn hapax::broker::DeadLetterStore>,
/// #     runtime: std::sync::Arc<dyn hapax::runtime::Runtime>) -> Box<dyn hapax::broker::Source> {
/// // `letters` is also where the worker writes its dead letters.
/// Box::new(hapax::worker::RedriveSource::new(source, letters, runtime))
/// # }
/// ```
pub struct RedriveSource {
    inner: Box<dyn Source>,
    redrive: Arc<Redrive>,
    settler: Arc<RedriveSettler>,
    /// Letters that are being taken.
    taking: Option<oneshot::Receiver<Result<TakenLetters>>>,
    /// Taken letters that are not delivered.
    ready: VecDeque<Delivery>,
    /// Whether no further letters are taken or delivered.
    has_stopped: bool,
    delivered: u64,
    /// When to take letters again, on the boot-time clock.
    take_at: Duration,
}

/// What a [`RedriveSource`] waits for.
enum RedriveInput {
    Source(Result<Event>),
    Taken(Result<TakenLetters>),
    TimeToTake,
}

impl RedriveSource {
    /// The source, and the letters that its worker writes.
    pub fn new(inner: Box<dyn Source>, letters: Arc<dyn DeadLetterStore>, runtime: Arc<dyn Runtime>) -> Self {
        Self::build(inner, letters, runtime, None)
    }

    /// As [`new`](Self::new), and `reopen` lets each message run again before it is delivered. A ledger beside the
    /// letters does not need it: the mark of a letter opens its operation there.
    pub fn reopening(
        inner: Box<dyn Source>,
        letters: Arc<dyn DeadLetterStore>,
        runtime: Arc<dyn Runtime>,
        reopen: Arc<dyn Reopen>,
    ) -> Self {
        Self::build(inner, letters, runtime, Some(reopen))
    }

    fn build(
        inner: Box<dyn Source>,
        letters: Arc<dyn DeadLetterStore>,
        runtime: Arc<dyn Runtime>,
        reopen: Option<Arc<dyn Reopen>>,
    ) -> Self {
        let source = Arc::clone(inner.name());
        let redrive = Arc::new(Redrive { letters, runtime, source, lane: lane(), reopen, open: Mutex::default() });
        let settler = RedriveSettler { inner: inner.settler(), redrive: Arc::clone(&redrive) };
        Self {
            inner,
            redrive,
            settler: Arc::new(settler),
            taking: None,
            ready: VecDeque::new(),
            has_stopped: false,
            delivered: 0,
            take_at: Duration::ZERO,
        }
    }

    /// Delivers the letters that were taken, whatever the room is: messages that wait for one of them may fill it. They
    /// are few, and in memory already.
    fn take_ready(&mut self, room: &Room) -> Vec<Delivery> {
        if self.has_stopped || room.closed.contains(&self.redrive.lane) {
            return Vec::new();
        }
        self.ready.drain(..).collect()
    }

    /// Waits for the source, and for the letters that are being taken or for the time to take some.
    async fn wait(&mut self, room: Room, pause: Duration) -> RedriveInput {
        let (runtime, taking) = (&self.redrive.runtime, &mut self.taking);
        let taking = pin!(async move {
            let Some(taken) = taking else {
                runtime.sleep(pause).await;
                return RedriveInput::TimeToTake;
            };
            let ended = |_| Error::new(ErrorKind::NotApplied, "the runtime of the worker has ended");
            RedriveInput::Taken(taken.await.unwrap_or_else(|error| Err(ended(error))))
        });
        match select(self.inner.next(room), taking).await {
            Either::Left((event, _)) => RedriveInput::Source(event),
            Either::Right((input, _)) => input,
        }
    }

    fn receive(&mut self, taken: Result<TakenLetters>) {
        self.taking = None;
        self.take_at = self.redrive.runtime.boottime_now() + TAKE_EVERY;
        match taken {
            Ok(taken) => taken.letters.into_iter().for_each(|marked| self.deliver(marked, taken.leased_until)),
            Err(error) => telemetry::redrive_failed(&self.redrive.source, &error),
        }
    }

    fn deliver(&mut self, marked: MarkedLetter, leased_until: Duration) {
        let mut open = self.redrive.open.lock();
        let is_it = |letter: &&mut OpenLetter| (letter.id, letter.marked_at) == (marked.letter.id, marked.marked_at);
        // Its lease ran out although it waits or is being processed here.
        if let Some(letter) = open.values_mut().find(is_it) {
            letter.leased_until = leased_until;
            return;
        }
        self.delivered += 1;
        let letter = OpenLetter { id: marked.letter.id, marked_at: marked.marked_at, leased_until, owed: None };
        open.insert(self.delivered, letter);
        let handle = marked.letter.id.as_bytes().to_vec().into();
        let id = DeliveryId { lane: self.redrive.lane.clone(), number: self.delivered, handle };
        // Without a lease: this source extends its letters by itself.
        self.ready.push_back(Delivery { id, message: marked.letter.message, attempt: None, leased_until: None });
    }
}

/// The lane of redriven letters. No source reaches this generation, so that a topic of the same name has other lanes.
/// Its messages have other order keys, too.
pub(super) fn lane() -> Lane {
    Lane { topic: "redrive".into(), partition: 0, generation: u64::MAX }
}

/// What this source does with letters, whatever the source of messages can do.
pub(super) fn capability() -> Capability {
    Capability {
        acknowledges: Acknowledges::Each,
        redelivers: true,
        delays: true,
        lease: None,
        keeps_order: false,
        delivery_limit: None,
    }
}

#[async_trait]
impl Source for RedriveSource {
    fn name(&self) -> &Arc<str> {
        &self.redrive.source
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn settler(&self) -> Arc<dyn Settle> {
        Arc::clone(&self.settler) as _
    }

    async fn next(&mut self, room: Room) -> Result<Event> {
        loop {
            let ready = self.take_ready(&room);
            if !ready.is_empty() {
                return Ok(Event::Deliveries(ready));
            }
            let wait = self.take_at.saturating_sub(self.redrive.runtime.boottime_now());
            if self.taking.is_none() && wait.is_zero() && !self.has_stopped {
                self.taking = Some(self.redrive.start_taking());
            }
            match self.wait(room.clone(), wait.max(TAKE_EVERY / 10)).await {
                RedriveInput::Source(event) => return event,
                RedriveInput::Taken(taken) => self.receive(taken),
                RedriveInput::TimeToTake => {}
            }
        }
    }

    async fn stop_reading(&mut self) {
        self.has_stopped = true;
        self.inner.stop_reading().await;
    }

    fn note_pause(&mut self, pause: Option<Pause>) {
        self.inner.note_pause(pause);
    }

    /// Gives back the letters that were taken and not delivered.
    async fn close(&mut self) -> Result<()> {
        let undelivered: Vec<DeadLetterId> = {
            let mut open = self.redrive.open.lock();
            self.ready
                .drain(..)
                .filter_map(|delivery| open.remove(&delivery.id.number))
                .map(|letter| letter.id)
                .collect()
        };
        if !undelivered.is_empty() {
            // Otherwise they are free after their lease.
            let _ = self.redrive.letters.postpone(&undelivered, Duration::ZERO).await;
        }
        self.inner.close().await
    }
}

impl fmt::Debug for RedriveSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedriveSource").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// Settles letters here, and everything else at the broker.
struct RedriveSettler {
    inner: Arc<dyn Settle>,
    redrive: Arc<Redrive>,
}

#[async_trait]
impl Settle for RedriveSettler {
    async fn settle(&self, settlements: Vec<(DeliveryId, Settlement)>) -> Vec<Result<()>> {
        let is_letter = |id: &DeliveryId| id.lane == self.redrive.lane;
        let ours: Vec<bool> = settlements.iter().map(|(id, _)| is_letter(id)).collect();
        let (letters, messages): (Vec<_>, Vec<_>) = settlements.into_iter().partition(|(id, _)| is_letter(id));
        let mut at_broker = match messages.is_empty() {
            true => Vec::new(),
            false => self.inner.settle(messages).await,
        }
        .into_iter();
        let mut letters = letters.into_iter();
        let mut results = Vec::with_capacity(ours.len());
        for is_ours in ours {
            let missing = || Error::new(ErrorKind::Unknown, "the source gave no result for a settlement");
            results.push(match (is_ours, letters.as_slice().first()) {
                (true, Some((id, settlement))) => {
                    let settled = self.redrive.settle(id, *settlement).await;
                    letters.next();
                    settled
                }
                _ => at_broker.next().unwrap_or_else(|| Err(missing())),
            });
        }
        results
    }

    async fn leave(&self, lanes: &[Lane]) -> Result<()> {
        self.inner.leave(lanes).await
    }

    fn is_ours(&self, delivery: &DeliveryId) -> bool {
        match delivery.lane == self.redrive.lane {
            true => self.redrive.is_ours(delivery.number),
            false => self.inner.is_ours(delivery),
        }
    }

    async fn lag(&self) -> Result<Option<u64>> {
        self.inner.lag().await
    }
}

impl fmt::Debug for RedriveSettler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedriveSettler").field("inner", &self.inner).finish_non_exhaustive()
    }
}

//! The tasks that the engine starts.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;

use crate::broker::{DeadCause, DeadLetter, DeadReason, Delivery, Job, Lane, Verdict};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::timeout;
use crate::telemetry;
use crate::worker::batches::BatchStart;
use crate::worker::burials::{Burial, DeadEnd};
use crate::worker::engine::{Engine, Identified, is_letter, order_key};
use crate::worker::identity::identity_of_letter;
use crate::worker::redrive;
use crate::worker::rules;
use crate::worker::settling::PendingSettlement;

/// How long a broker or a table of dead letters may take for one call.
const CALL_WITHIN: Duration = Duration::from_secs(30);

/// What a task reports when it ends.
pub(super) enum TaskReport {
    /// The verdicts about a batch. None if it panicked.
    Batch { numbers: Vec<u64>, verdicts: Option<Vec<Verdict>> },
    /// Whether dead letters are written.
    Buried { numbers: Vec<u64>, results: Vec<Result<()>> },
    /// Whether the broker has confirmed settlements.
    Settled { sent: Vec<PendingSettlement>, results: Vec<Result<()>> },
    /// The ordering keys that have dead letters, of those that are closed.
    Searched(Result<Vec<Bytes>>),
    /// The worker has left these lanes.
    Left { lanes: Vec<Lane> },
    /// How many messages the broker has.
    Lag(Option<u64>),
}

impl Engine {
    /// Starts everything that can start now.
    pub(super) fn advance(&mut self) {
        let now = self.runtime.boottime_now();
        self.order.wake(now);
        self.start_batches(now);
        if self.stop.is_some() && self.is_idle() {
            self.give_back_idle();
        }
        let burials = self.burials.take_due(now);
        if !burials.is_empty() {
            self.start_burials(burials);
        }
        let settlements = self.settling.take_due(now);
        if !settlements.is_empty() {
            self.start_settlements(settlements);
        }
        if self.stop.is_none() {
            self.search_letters(now);
        }
        let lanes = self.lanes_to_leave(now);
        if !lanes.is_empty() {
            self.start_leaving(lanes);
        }
        self.measure(now);
    }

    fn start_batches(&mut self, now: Duration) {
        while self.can_start(now) && self.batch_start(now) == BatchStart::Now {
            let numbers = self.order.take(self.settings.batch);
            self.ready_since = None;
            if numbers.is_empty() {
                return;
            }
            let numbers = self.forget_lapsed(numbers);
            let numbers = self.bury_refused(numbers);
            if !numbers.is_empty() {
                self.start_batch(numbers);
            }
        }
    }

    /// Forgets the deliveries that belong to another worker by now. Returns the others. Later messages of the same key
    /// go back to the broker: the first one arrives again behind them.
    fn forget_lapsed(&mut self, mut numbers: Vec<u64>) -> Vec<u64> {
        for number in numbers.clone() {
            if self.is_ours(number) {
                continue;
            }
            let key = self.messages.get(&number).and_then(|held| order_key(&held.delivery));
            drop(self.forget(number));
            let of_key = key.map(|key| self.order.of_key(&key)).unwrap_or_default();
            for later in of_key.into_iter().filter(|later| *later > number) {
                match self.is_ours(later) {
                    true => self.give_up(later),
                    false => drop(self.forget(later)),
                }
            }
        }
        numbers.retain(|number| self.messages.contains_key(number));
        numbers
    }

    /// Forgets what is held of a key if this delivery is its first message again, whose lease has ended. While the key
    /// is parked, nothing of it is taken, so nothing else would notice.
    pub(super) fn forget_replaced(&mut self, delivery: &Delivery, identified: &Identified) {
        let Some(key) = order_key(delivery).filter(|_| self.capability.lease.is_some()) else { return };
        let Some(first) = self.order.first_of_key(&key).filter(|first| !self.is_ours(*first)) else { return };
        let operation = |identified: &Identified| identified.as_ref().ok().map(|known| known.call.operation());
        let held_operation = self.messages.get(&first).and_then(|held| operation(&held.identified));
        if held_operation.is_none() || held_operation != operation(identified) {
            return;
        }
        let held = self.order.of_key(&key);
        let is_idle = |number: &u64| {
            self.messages.get(number).is_some_and(|held| !held.is_running()) && !self.burials.has(*number)
        };
        if held.iter().all(is_idle) {
            drop(self.forget_lapsed(held));
        }
    }

    fn is_ours(&self, number: u64) -> bool {
        self.messages.get(&number).is_some_and(|held| self.settler.is_ours(&held.delivery.id))
    }

    /// Buries the messages that must not run. Returns the others.
    fn bury_refused(&mut self, numbers: Vec<u64>) -> Vec<u64> {
        let reason = |number: &u64| {
            let held = self.messages.get(number)?;
            let capability = if is_letter(&held.delivery) { redrive::capability() } else { self.capability };
            rules::refusal(held.identified.as_ref().err().copied(), held.delivery.attempt, &capability)
        };
        let dead: BTreeMap<u64, DeadReason> =
            numbers.iter().filter_map(|number| Some((*number, reason(number)?))).collect();
        for (&number, &reason) in &dead {
            let cause = self.messages.get(&number).and_then(|held| self.refusal_cause(reason, &held.delivery));
            self.bury(number, DeadEnd { reason, attempts: 0, cause });
        }
        numbers.into_iter().filter(|number| !dead.contains_key(number)).collect()
    }

    /// What is known of a message that does not run, beside the reason.
    fn refusal_cause(&self, reason: DeadReason, delivery: &Delivery) -> Option<DeadCause> {
        match reason {
            DeadReason::Unreadable => delivery.message.damage.as_deref().and_then(DeadCause::new),
            DeadReason::DeliveriesExhausted => {
                let (attempt, limit) = delivery.attempt.zip(self.capability.delivery_limit)?;
                DeadCause::new(&format!("this is delivery {attempt}, and the broker drops the message after {limit}"))
            }
            DeadReason::KeyMissing | DeadReason::KeyMalformed | DeadReason::CallerUnknown => None,
            DeadReason::KeyReused | DeadReason::Rejected | DeadReason::AttemptsExhausted => None,
            DeadReason::OutcomeUnknown | DeadReason::NotDone | DeadReason::Done | DeadReason::RecordDamaged => None,
        }
    }

    fn start_batch(&mut self, numbers: Vec<u64>) {
        let mut jobs = Vec::with_capacity(numbers.len());
        let now = self.runtime.boottime_now();
        for number in &numbers {
            let Some(held) = self.messages.get_mut(number) else { continue };
            let Ok(identified) = &held.identified else { continue };
            held.running_since = Some(now);
            jobs.push(Job {
                call: identified.call,
                key: identified.key.clone(),
                record_key: identified.record_key,
                message: Arc::clone(&held.delivery.message),
                attempt: held.delivery.attempt,
            });
        }
        self.batches += 1;
        let process = Arc::clone(&self.process);
        self.spawn(async move {
            // Unwind safe: the jobs are dropped, and what processes them answers for its own state.
            let verdicts = AssertUnwindSafe(process.process(jobs)).catch_unwind().await.ok();
            TaskReport::Batch { numbers, verdicts }
        });
    }

    fn start_burials(&mut self, burials: Vec<(u64, Burial)>) {
        let numbers = burials.iter().map(|(number, _)| *number).collect();
        let letters: Vec<DeadLetter> =
            burials.iter().filter_map(|(number, burial)| self.letter(*number, &burial.end)).collect();
        let (dead, runtime) = (Arc::clone(&self.dead), Arc::clone(&self.runtime));
        self.spawn(async move {
            let count = letters.len();
            let put = AssertUnwindSafe(dead.put(letters)).catch_unwind();
            let results = timeout(&*runtime, CALL_WITHIN, put).await.and_then(std::result::Result::ok);
            TaskReport::Buried { numbers, results: complete(results, count) }
        });
    }

    pub(super) fn letter(&self, number: u64, end: &DeadEnd) -> Option<DeadLetter> {
        let held = self.messages.get(&number)?;
        let (message, identified) = (&held.delivery.message, held.identified.as_ref().ok());
        let (operation, fingerprint) = identity_of_letter(identified);
        Some(DeadLetter {
            id: self.identity.dead_letter_id(message, identified, end.reason),
            reason: end.reason,
            attempts: end.attempts,
            cause: end.cause.clone(),
            namespace: Arc::clone(self.identity.namespace()),
            source: Arc::clone(&self.name),
            operation,
            fingerprint,
            message: Arc::clone(message),
            at: self.runtime.wall_now(),
        })
    }

    fn start_settlements(&mut self, sent: Vec<PendingSettlement>) {
        let (settler, runtime) = (Arc::clone(&self.settler), Arc::clone(&self.runtime));
        self.spawn(async move {
            let settlements = sent.iter().map(|pending| (pending.id.clone(), pending.settlement)).collect();
            let settled = AssertUnwindSafe(settler.settle(settlements)).catch_unwind();
            let results = timeout(&*runtime, CALL_WITHIN, settled).await.and_then(std::result::Result::ok);
            let results = complete(results, sent.len());
            TaskReport::Settled { sent, results }
        });
    }

    fn search_letters(&mut self, now: Duration) {
        let Some(parking) = &mut self.parking else { return };
        let Some(keys) = parking.take_due(now) else { return };
        let (letters, runtime, name) =
            (Arc::clone(parking.letters()), Arc::clone(&self.runtime), Arc::clone(&self.name));
        self.spawn(async move {
            let search = AssertUnwindSafe(letters.keys_with_letters(&name, keys)).catch_unwind();
            let found = timeout(&*runtime, CALL_WITHIN, search).await.and_then(std::result::Result::ok);
            let late = || Err(Error::new(ErrorKind::Unknown, "the call ended without a result"));
            TaskReport::Searched(found.unwrap_or_else(late))
        });
    }

    fn start_leaving(&self, lanes: Vec<Lane>) {
        let (settler, runtime, name) = (Arc::clone(&self.settler), Arc::clone(&self.runtime), Arc::clone(&self.name));
        self.spawn(async move {
            let left = AssertUnwindSafe(settler.leave(&lanes)).catch_unwind();
            if let Some(Ok(Err(error))) = timeout(&*runtime, CALL_WITHIN, left).await {
                telemetry::settlement_failed(&name, &error);
            }
            TaskReport::Left { lanes }
        });
    }

    pub(super) fn start_measuring_lag(&self) {
        let (settler, runtime) = (Arc::clone(&self.settler), Arc::clone(&self.runtime));
        self.spawn(async move {
            let lag = timeout(&*runtime, CALL_WITHIN, settler.lag()).await;
            TaskReport::Lag(lag.and_then(Result::ok).flatten())
        });
    }

    fn spawn(&self, task: impl Future<Output = TaskReport> + Send + 'static) {
        let reports = self.reports.clone();
        self.runtime.spawn(Box::pin(async move {
            let report = task.await;
            // The worker may be gone.
            let _ = reports.send(report);
        }));
    }
}

/// The results of a call, one for each of `count` requests.
fn complete(results: Option<Vec<Result<()>>>, count: usize) -> Vec<Result<()>> {
    let unknown = || Err(Error::new(ErrorKind::Unknown, "the call ended without a result"));
    let mut results = results.unwrap_or_default();
    results.resize_with(count, unknown);
    results
}

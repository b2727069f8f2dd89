//! Jobs that ended, and what happens to their deliveries.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use crate::broker::{Acknowledges, DeadCause, DeliveryId, Settlement, Verdict};
use crate::chaos::Mutant;
use crate::error::Result;
use crate::lease::Heartbeat;
use crate::telemetry;
use crate::worker::burials::DeadEnd;
use crate::worker::engine::tasks::TaskReport;
use crate::worker::engine::{Engine, HeldMessage, acknowledges, is_letter, order_key};
use crate::worker::order::OrderKey;
use crate::worker::redrive;
use crate::worker::rules::{self, DeliveryAction, EndedJob};
use crate::worker::settling::PendingSettlement;

impl Engine {
    /// Takes the report of a task.
    pub(super) fn note(&mut self, report: TaskReport) {
        let now = self.runtime.boottime_now();
        match report {
            TaskReport::Batch { numbers, verdicts } => {
                self.batches -= 1;
                self.note_batch(&numbers, verdicts, now);
            }
            TaskReport::Buried { numbers, results } => {
                for (number, result) in numbers.into_iter().zip(results) {
                    if let Err(error) = &result {
                        telemetry::burial_failed(&self.name, error);
                    }
                    if let Some(burial) = self.burials.ended(number, &result, now) {
                        if let Some(letter) = self.letter(number, &burial.end) {
                            telemetry::buried(&letter);
                        }
                        self.park(number);
                        if !Mutant::DeadLetterAckedFirst.is_on() {
                            self.finish(number);
                        }
                    }
                }
            }
            TaskReport::Settled { sent, results } => {
                results.iter().filter_map(|result| result.as_ref().err()).take(1).for_each(|error| {
                    telemetry::settlement_failed(&self.name, error);
                });
                let forgotten = self.settling.settled(sent, results, now);
                forgotten.iter().for_each(|pending| telemetry::settlement_forgotten(&pending.id));
            }
            TaskReport::Searched(found) => self.open_keys(found, now),
            TaskReport::Left { lanes } => lanes.iter().for_each(|lane| self.drop_lane(lane)),
            TaskReport::Lag(lag) => telemetry::worker_lag(&self.name, lag),
        }
    }

    /// Takes the verdicts about a batch. None if it panicked.
    fn note_batch(&mut self, numbers: &[u64], verdicts: Option<Vec<Verdict>>, now: Duration) {
        // Without one verdict for each job nobody knows which verdict is about which job.
        let verdicts = verdicts.filter(|verdicts| verdicts.len() == numbers.len());
        if verdicts.is_none() {
            telemetry::batch_panicked(&self.name, numbers.len());
        }
        for (index, &number) in numbers.iter().enumerate() {
            let verdict = verdicts.as_ref().map(|verdicts| verdicts[index].clone());
            telemetry::job_ended(verdict.as_ref());
            self.note_verdict(number, verdict, numbers.len(), now);
        }
    }

    fn note_verdict(&mut self, number: u64, verdict: Option<Verdict>, jobs: usize, now: Duration) {
        // The lane may have been lost meanwhile.
        let Some(held) = self.messages.get_mut(&number) else { return };
        held.running_since = None;
        if verdict.is_none() && (jobs == 1 || Mutant::SharedPanicsCounted.is_on()) {
            held.panics += 1;
        }
        let (key, panics) = (order_key(&held.delivery), held.panics);
        // A letter that waits for its next attempt goes back, so that it can be dropped.
        let (has_order, capability) = match is_letter(&held.delivery) {
            true => (key.is_some_and(|key| self.order.has_several(&key)), redrive::capability()),
            false => (key.is_some(), self.capability),
        };
        let cause = cause_of(verdict.as_ref());
        let ended = EndedJob { verdict, jobs, panics, has_order };
        let action = rules::action(&ended, &capability, self.settings.max_panics);
        // A job that began before the pause tells nothing about it.
        if self.paused_until <= now && !matches!(action, DeliveryAction::PauseAll(_)) {
            self.paused_since = None;
        }
        let is_revoked = self.is_revoked(number);
        match action {
            DeliveryAction::Finish => self.finish(number),
            DeliveryAction::Bury { reason, attempts } => self.bury(number, DeadEnd { reason, attempts, cause }),
            // Another worker gets the message.
            DeliveryAction::Hold(_) | DeliveryAction::PauseAll(_) | DeliveryAction::Alone
                if is_revoked || self.stop.is_some() =>
            {
                self.give_up(number);
            }
            DeliveryAction::GiveBack(after) => {
                if let Some(mut held) = self.forget(number) {
                    self.settle(held.delivery.id, Settlement::Retry(after), held.lease.take());
                }
            }
            DeliveryAction::Hold(after) => self.order.delay(number, now + after),
            DeliveryAction::PauseAll(after) => {
                if self.paused_until <= now {
                    telemetry::worker_pauses(&self.name, after);
                }
                self.paused_until = self.paused_until.max(now + after);
                self.paused_since.get_or_insert(now);
                self.order.delay(number, now + after);
            }
            DeliveryAction::Alone => {
                self.order.run_alone(number);
                self.order.delay(number, now);
            }
        }
    }

    /// Lets later messages of this one's key wait: its dead letter is written, and it is about to be acknowledged.
    fn park(&mut self, number: u64) {
        if let Some(delivery) = self.messages.get(&number).map(|held| held.delivery.clone()) {
            self.close_key(&delivery);
        }
    }

    /// Lets keys go on that have no dead letter.
    fn open_keys(&mut self, found: Result<Vec<Bytes>>, now: Duration) {
        let Some(parking) = &mut self.parking else { return };
        if let Err(error) = &found {
            telemetry::parked_unknown(&self.name, error);
        }
        let found = found.ok();
        telemetry::parked(&self.name, found.as_ref().map(Vec::len));
        for key in parking.end_search(found.as_deref(), now) {
            self.order.open(&key);
        }
    }

    fn is_revoked(&mut self, number: u64) -> bool {
        let Some(held) = self.messages.get(&number) else { return false };
        let lane = held.delivery.id.lane.clone();
        self.lanes.get_mut(&lane).is_some_and(|state| state.revoked.is_some())
    }

    pub(super) fn bury(&mut self, number: u64, end: DeadEnd) {
        self.burials.push(number, end);
        if Mutant::DeadLetterAckedFirst.is_on()
            && let Some(held) = self.messages.get(&number)
        {
            self.settle_early(held.delivery.id.clone(), self.capability.acknowledges);
        }
    }

    /// Leaves what waits to other workers. Where this worker keeps the order, a message waits here for the end of an
    /// earlier one of its key: another worker would not wait for it.
    pub(super) fn give_back_idle(&mut self) {
        let is_in_hand = |(number, held): &(&u64, &HeldMessage)| held.is_running() || self.burials.has(**number);
        let keeps_order_here = |(_, held): &(&u64, &HeldMessage)| {
            let capability = if is_letter(&held.delivery) { redrive::capability() } else { self.capability };
            capability.redelivers && !capability.keeps_order
        };
        let in_hand = self.messages.iter().filter(keeps_order_here).filter(is_in_hand);
        let keys: BTreeSet<OrderKey> = in_hand.filter_map(|(_, held)| order_key(&held.delivery)).collect();
        let is_free = |held: &HeldMessage| order_key(&held.delivery).is_none_or(|key| !keys.contains(&key));
        let idle = self.messages.iter().filter(|message| !is_in_hand(message)).filter(|(_, held)| is_free(held));
        for number in idle.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.give_up(number);
        }
    }

    /// Leaves a message to another worker.
    pub(super) fn give_up(&mut self, number: u64) {
        if let Some(held) = self.forget(number)
            && (self.capability.redelivers || is_letter(&held.delivery))
        {
            self.settle(held.delivery.id, Settlement::Retry(Duration::ZERO), held.lease);
        }
    }

    /// Acknowledges a message that has come to its end.
    fn finish(&mut self, number: u64) {
        let Some(mut held) = self.forget(number) else { return };
        let acknowledges = acknowledges(&self.capability, &held.delivery);
        let id = held.delivery.id;
        match acknowledges {
            Acknowledges::Each => self.settle(id, Settlement::Ack, held.lease.take()),
            Acknowledges::Prefix => {
                let Some(state) = self.lanes.get_mut(&id.lane) else { return };
                state.watermark.finish(id.number);
                if let Some(number) = state.watermark.take_growth() {
                    self.settle(DeliveryId { number, handle: Bytes::new(), ..id }, Settlement::UpTo, None);
                }
            }
        }
    }

    pub(super) fn settle(&mut self, id: DeliveryId, settlement: Settlement, lease: Option<Heartbeat>) {
        self.settling.push(PendingSettlement::new(id, settlement, lease));
    }
}

/// The last error of a job, in case its message becomes a dead letter. `verdict` is None if the batch panicked.
fn cause_of(verdict: Option<&Verdict>) -> Option<DeadCause> {
    match verdict {
        Some(Verdict::DeadLetter { cause, .. }) => cause.clone(),
        Some(Verdict::Done { .. } | Verdict::Busy { .. } | Verdict::Retry { .. } | Verdict::Pause { .. }) => None,
        None => DeadCause::new("the handler panicked, or gave too few verdicts"),
    }
}

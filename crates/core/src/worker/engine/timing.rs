//! When the engine acts next.

use std::time::Duration;

use crate::broker::{Pause, Room};
use crate::telemetry;
use crate::worker::batches::BatchStart;
use crate::worker::engine::{Engine, HeldMessage};
use crate::worker::parking::Parking;

/// How often gauges are set.
const MEASURE_EVERY: Duration = Duration::from_secs(5);

/// How often the log says that a batch does not end.
const LOG_SLOW_EVERY: Duration = Duration::from_secs(60);

impl Engine {
    /// The room for the next call of the source. Without room it is polled all the same.
    pub(super) fn room(&self) -> Room {
        match self.stop {
            Some(_) => Room::default(),
            None => self.room.room(),
        }
    }

    /// The pause of which the source is told.
    pub(super) fn pause(&self) -> Option<Pause> {
        self.paused_since.map(|since| Pause { since, until: self.paused_until })
    }

    pub(super) fn can_start(&self, now: Duration) -> bool {
        self.stop.is_none() && self.batches < self.settings.concurrency && self.paused_until <= now
    }

    /// When the next batch starts.
    pub(super) fn batch_start(&mut self, now: Duration) -> BatchStart {
        let ready = self.order.ready();
        if ready == 0 {
            self.ready_since = None;
        } else if self.ready_since.is_none() {
            self.ready_since = Some(now);
        }
        self.trigger.start(ready, self.ready_since, now)
    }

    /// When something is to be done, unless an input comes before.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        let can_run = self.stop.is_none() && self.batches < self.settings.concurrency;
        let batch = self.ready_since.filter(|_| can_run).map(|since| since + self.settings.linger);
        // While nothing may start, the end of the pause is what counts.
        let batch = batch.map(|at| at.max(self.paused_until));
        let revoked = self.lanes.revoked().filter(|(_, _, revoked)| !revoked.is_leaving);
        let revoked = revoked.map(|(_, _, revoked)| revoked.until).min();
        let deadline = self.stop.as_ref().map(|stop| stop.deadline);
        let now = self.runtime.boottime_now();
        let pause = Some(self.paused_until).filter(|until| *until > now);
        let measure = self.measured_at.map(|at| at + MEASURE_EVERY);
        let search = self.parking.as_ref().filter(|_| self.stop.is_none()).and_then(Parking::next_due);
        let due = [
            batch,
            search,
            self.order.next_wake(),
            self.burials.next_due(),
            self.settling.next_due(),
            revoked,
            deadline,
            pause,
            measure,
        ];
        due.into_iter().flatten().min()
    }

    /// Sets the gauges now and then.
    pub(super) fn measure(&mut self, now: Duration) {
        if self.measured_at.is_some_and(|at| now < at + MEASURE_EVERY) {
            return;
        }
        self.measured_at = Some(now);
        let oldest = self.messages.values().next().map(|held| {
            let at_broker = held.delivery.message.timestamp.map(|at| self.runtime.wall_now().since(at));
            at_broker.unwrap_or_default().max(now.saturating_sub(held.arrived))
        });
        let running = self.messages.values().filter(|held| held.is_running()).count();
        telemetry::worker_load(&self.name, running, oldest.unwrap_or_default());
        self.measure_running(now);
        if self.stop.is_none() {
            self.start_measuring_lag();
        }
    }

    /// Shows a batch that does not end: it has no deadline, still counts towards the concurrency, and later messages of
    /// its ordering keys wait.
    fn measure_running(&mut self, now: Duration) {
        let since = |held: &HeldMessage| Some((held.running_since?, held.delivery.id.clone()));
        let oldest = self.messages.values().filter_map(since).min_by_key(|(since, _)| *since);
        let length = oldest.as_ref().map_or(Duration::ZERO, |(since, _)| now.saturating_sub(*since));
        telemetry::longest_running(&self.name, length);
        if let Some((_, delivery)) = oldest.filter(|_| length >= self.settings.slow_after)
            && now >= self.slow_logged_until
        {
            telemetry::runs_long(&self.name, &delivery, length);
            self.slow_logged_until = now + LOG_SLOW_EVERY;
        }
    }
}

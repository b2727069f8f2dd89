//! The rules for a source whose worker pauses, pure. The rows are numbered in `pauses.md`.

use std::time::Duration;

use hapax_core::broker::Pause;

/// The next step of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceStep {
    /// Wait for messages, until the time at which to look again.
    Consume { until: Option<Duration> },
    /// End the channel, so that the broker gets all messages back.
    GiveBack,
    /// Take nothing before this time.
    Rest { until: Duration },
    /// Begin to consume.
    Open { is_probe: bool },
}

/// A channel that lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenedChannel {
    pub(super) at: Duration,
    /// Whether it takes one message at a time.
    pub(super) is_probe: bool,
}

/// A message of a probe that is not settled by then goes back, too.
const SETTLES_WITHIN: Duration = Duration::from_secs(1);

/// The pauses of the worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerPauses {
    /// How long the broker lets a message be unacknowledged.
    timeout: Duration,
    present: Option<Pause>,
    /// When the last one ended.
    resumed: Duration,
}

impl WorkerPauses {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, present: None, resumed: Duration::ZERO }
    }

    pub(super) fn note(&mut self, pause: Option<Pause>, now: Duration) {
        if self.present.is_some() && pause.is_none() {
            self.resumed = now;
        }
        self.present = pause;
    }

    pub(super) fn is_over(&self) -> bool {
        self.present.is_none()
    }

    /// Decides the next step of the source.
    pub(super) fn step(&self, channel: Option<OpenedChannel>, now: Duration) -> SourceStep {
        let due = match (self.present, channel) {
            (None, None) => return SourceStep::Open { is_probe: false }, // W1
            (None, Some(channel)) if !channel.is_probe => return SourceStep::Consume { until: None }, // W2
            (Some(pause), None) if now < pause.until => return SourceStep::Rest { until: pause.until }, // W3
            (Some(_), None) => return SourceStep::Open { is_probe: true }, // W4
            (Some(pause), Some(channel)) if !channel.is_probe && now < pause.until => {
                pause.since + self.timeout / 10 // W5
            }
            // A job that was tried after the pause may run for longer.
            (Some(pause), Some(channel)) if !channel.is_probe => pause.since + self.timeout / 2, // W6
            (Some(_), Some(channel)) => channel.at + self.timeout / 2,                           // W7
            (None, Some(_)) => self.resumed + SETTLES_WITHIN,                                    // W8
        };
        if now >= due { SourceStep::GiveBack } else { SourceStep::Consume { until: Some(due) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn pausing(since: u64, until: u64) -> WorkerPauses {
        let mut pauses = WorkerPauses::new(at(1800));
        pauses.note(Some(Pause { since: at(since), until: at(until) }), at(since));
        pauses
    }

    fn opened(seconds: u64, is_probe: bool) -> Option<OpenedChannel> {
        Some(OpenedChannel { at: at(seconds), is_probe })
    }

    #[test]
    fn w1_w2_without_a_pause_it_consumes() {
        let pauses = WorkerPauses::new(at(1800));
        assert_eq!(pauses.step(None, at(9)), SourceStep::Open { is_probe: false });
        assert_eq!(pauses.step(opened(1, false), at(9000)), SourceStep::Consume { until: None });
    }

    #[test]
    fn w3_w4_after_it_has_given_all_back_it_takes_nothing_until_the_end_and_then_one_message() {
        let pauses = pausing(0, 500);
        assert_eq!(pauses.step(None, at(499)), SourceStep::Rest { until: at(500) });
        assert_eq!(pauses.step(None, at(500)), SourceStep::Open { is_probe: true });
    }

    #[test]
    fn w5_it_gives_all_back_after_a_tenth_of_the_timeout() {
        let all = opened(0, false);
        assert_eq!(pausing(100, 300).step(all, at(279)), SourceStep::Consume { until: Some(at(280)) });
        assert_eq!(pausing(100, 300).step(all, at(280)), SourceStep::GiveBack);
    }

    #[test]
    fn w6_a_job_after_the_pause_may_run_until_half_of_the_timeout() {
        let all = opened(0, false);
        assert_eq!(pausing(100, 105).step(all, at(999)), SourceStep::Consume { until: Some(at(1000)) });
        assert_eq!(pausing(100, 105).step(all, at(1000)), SourceStep::GiveBack);
    }

    #[test]
    fn w7_it_gives_one_message_back_after_half_of_the_timeout() {
        let probe = opened(300, true);
        assert_eq!(pausing(100, 305).step(probe, at(1199)), SourceStep::Consume { until: Some(at(1200)) });
        assert_eq!(pausing(100, 1300).step(probe, at(1200)), SourceStep::GiveBack);
    }

    #[test]
    fn w8_after_the_pause_one_message_at_a_time_is_not_for_long() {
        let mut pauses = pausing(100, 300);
        pauses.note(None, at(310));
        assert_eq!(pauses.step(opened(300, true), at(310)), SourceStep::Consume { until: Some(at(311)) });
        assert_eq!(pauses.step(opened(300, true), at(311)), SourceStep::GiveBack);
        pauses.note(None, at(400));
        assert_eq!(pauses.step(None, at(400)), SourceStep::Open { is_probe: false });
    }
}

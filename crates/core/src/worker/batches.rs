use std::time::Duration;

/// When a batch starts: as soon as it is full, or its first message has waited long enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchTrigger {
    pub(super) size: usize,
    pub(super) linger: Duration,
}

/// Whether a batch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchStart {
    /// Now.
    Now,
    /// At this time, unless it is full before.
    At(Duration),
    /// There is nothing to run.
    Never,
}

impl BatchTrigger {
    /// `ready` messages may run, the first of them since `since`.
    pub(super) fn start(&self, ready: usize, since: Option<Duration>, now: Duration) -> BatchStart {
        let due = since.unwrap_or(now) + self.linger;
        match ready {
            0 => BatchStart::Never,
            _ if ready >= self.size || due <= now => BatchStart::Now,
            _ => BatchStart::At(due),
        }
    }
}

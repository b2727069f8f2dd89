//! A value of the server that changes when the server is replaced or loses its data, and a counter of such events.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

/// The last observed value, and the number of the observation that read it.
#[derive(Default)]
pub(crate) struct LastValue(Mutex<(u64, Option<Bytes>)>);

impl LastValue {
    /// Stores the value and returns whether it differs from the one before. Ignores an observation that is older than
    /// the last.
    pub(crate) fn has_changed(&self, observation: u64, value: Bytes) -> bool {
        let mut last = self.0.lock();
        if observation < last.0 {
            return false;
        }
        let (_, before) = mem::replace(&mut *last, (observation, Some(value.clone())));
        before.is_some_and(|before| before != value)
    }
}

/// Counts an event. One check reports each new count once.
#[derive(Default)]
pub(crate) struct EventCounter {
    count: AtomicU64,
    reported: AtomicU64,
}

impl EventCounter {
    pub(crate) fn increment(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the count if it has grown since the last call, and marks it as reported.
    pub(crate) fn take_unreported(&self) -> Option<u64> {
        let count = self.count.load(Ordering::Relaxed);
        (self.reported.swap(count, Ordering::Relaxed) < count).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_observation_is_ignored() {
        let (last, value) = (LastValue::default(), |name: &'static str| Bytes::from_static(name.as_bytes()));
        assert!(!last.has_changed(0, value("first")));
        assert!(last.has_changed(2, value("second")));
        assert!(!last.has_changed(1, value("first")), "observation 1 is older than observation 2");
        assert!(!last.has_changed(3, value("second")));
        assert!(last.has_changed(4, value("first")));
    }
}

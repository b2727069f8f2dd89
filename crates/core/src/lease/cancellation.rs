use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Fires once, and ends the wait of everybody who waits for it: the handler of an attempt that should stop, or a call
/// that should no longer wait for another attempt.
#[derive(Debug, Default)]
pub(crate) struct Cancellation {
    is_fired: AtomicBool,
    notify: Notify,
}

impl Cancellation {
    pub(crate) fn fire(&self) {
        if !self.is_fired.swap(true, Ordering::AcqRel) {
            self.notify.notify_waiters();
        }
    }

    /// Waits until it is fired.
    pub(crate) async fn wait(&self) {
        // Registered before the check, so that a concurrent `fire` is not missed.
        let notified = self.notify.notified();
        if !self.is_fired.load(Ordering::Acquire) {
            notified.await;
        }
    }
}

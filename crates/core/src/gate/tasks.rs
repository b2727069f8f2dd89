use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts the tasks of a gate, so that a shutdown can wait for them.
#[derive(Debug, Default)]
pub(super) struct Tasks(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    running: AtomicUsize,
    idle: Notify,
}

impl Tasks {
    /// Counts a task from now until it ends or is dropped.
    pub(super) fn track<F: Future<Output = ()>>(&self, task: F) -> impl Future<Output = ()> + use<F> {
        self.0.running.fetch_add(1, Ordering::AcqRel);
        let running = Running(Arc::clone(&self.0));
        async move {
            let _running = running;
            task.await;
        }
    }

    /// Waits until no task is running.
    pub(super) async fn ended(&self) {
        loop {
            // Made before the look at the count: it hears of every task that ends after that look.
            let idle = self.0.idle.notified();
            if self.0.running.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }
}

struct Running(Arc<Count>);

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

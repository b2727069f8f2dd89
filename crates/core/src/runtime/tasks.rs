use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts running tasks, so that a shutdown can wait for them.
#[derive(Debug, Default)]
pub(crate) struct Tasks(Arc<TaskCount>);

#[derive(Debug, Default)]
struct TaskCount {
    running: AtomicUsize,
    idle: Notify,
}

impl Tasks {
    /// Counts a task from now until it ends or is dropped.
    pub(crate) fn track<F: Future<Output = ()>>(&self, task: F) -> impl Future<Output = ()> + use<F> {
        // Counted before the task is spawned, so that a wait that starts now does not miss it.
        self.0.running.fetch_add(1, Ordering::AcqRel);
        let guard = RunningTask(Arc::clone(&self.0));
        async move {
            let _guard = guard;
            task.await;
        }
    }

    /// The number of running tasks.
    pub(crate) fn count(&self) -> usize {
        self.0.running.load(Ordering::Acquire)
    }

    /// Waits until no task runs.
    pub(crate) async fn wait_until_idle(&self) {
        loop {
            // Registered before the count is read, so that a task that ends in between is not missed.
            let idle = self.0.idle.notified();
            if self.count() == 0 {
                return;
            }
            idle.await;
        }
    }
}

struct RunningTask(Arc<TaskCount>);

impl Drop for RunningTask {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_wait_goes_on_for_a_task_that_starts_when_the_last_one_ends() {
        let tasks = Tasks::default();
        let mut wait = pin!(tasks.wait_until_idle());
        let first = tasks.track(pending());
        assert!(wait.as_mut().now_or_never().is_none());
        drop(first);
        // The wait was woken up, but has not run yet.
        let second = tasks.track(pending());
        assert!(wait.as_mut().now_or_never().is_none(), "the second task runs");
        drop(second);
        assert!(wait.now_or_never().is_some());
    }
}

//! A runtime with a manual clock: leases expire and heartbeats renew without a real wait.

use std::future::ready;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_core::Timestamp;
use hapax_core::runtime::{BoxFuture, Runtime, Tokio};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

#[derive(Debug)]
pub(crate) struct Stepped {
    tokio: Tokio,
    start: Timestamp,
    state: Mutex<ClockState>,
}

#[derive(Debug, Default)]
struct ClockState {
    passed: Duration,
    sleepers: Vec<(Duration, oneshot::Sender<()>)>,
    tasks: Vec<AbortHandle>,
}

impl Stepped {
    /// Needs a runtime of one thread, where [`settle`] runs every task until it waits.
    pub(crate) fn new() -> Arc<Self> {
        let tokio = Tokio::current();
        let start = tokio.wall_now();
        Arc::new(Self { tokio, start, state: Mutex::default() })
    }

    /// Advances the clock in steps much shorter than a lease, and runs the tasks that wake up.
    pub(crate) async fn pass(&self, time: Duration) {
        const STEP: Duration = Duration::from_millis(10);
        settle().await;
        let end = self.state.lock().unwrap().passed + time;
        loop {
            self.wake_up();
            settle().await;
            let mut state = self.state.lock().unwrap();
            if state.passed >= end {
                return;
            }
            state.passed = end.min(state.passed + STEP);
        }
    }

    fn wake_up(&self) {
        let mut state = self.state.lock().unwrap();
        let passed = state.passed;
        let (due, sleeping): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.sleepers).into_iter().partition(|(end, _)| *end <= passed);
        state.sleepers = sleeping;
        drop(state);
        for (_, wake) in due {
            // The sleeping future may have been dropped.
            let _ = wake.send(());
        }
    }

    /// Aborts every task.
    pub(crate) async fn abort_all(&self) {
        for task in std::mem::take(&mut self.state.lock().unwrap().tasks) {
            task.abort();
        }
        settle().await;
    }
}

/// Runs every task until it waits.
pub(crate) async fn settle() {
    // More rounds than the longest chain of wake-ups in these tests.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

impl Runtime for Stepped {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        let task = Handle::current().spawn(task).abort_handle();
        self.state.lock().unwrap().tasks.push(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let (wake, woken) = oneshot::channel();
        let mut state = self.state.lock().unwrap();
        let end = state.passed + duration;
        if duration.is_zero() {
            return Box::pin(ready(()));
        }
        state.sleepers.retain(|(_, sleeper)| !sleeper.is_closed());
        state.sleepers.push((end, wake));
        Box::pin(async move {
            woken.await.expect("the clock outlives its sleepers");
        })
    }

    /// A task instead of a thread: nothing blocks here, and `settle` must run all of them.
    fn thread(&self, _: &str, task: BoxFuture<'static, ()>) -> io::Result<()> {
        self.spawn(task);
        Ok(())
    }

    fn blocking(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        self.tokio.blocking(name, body)
    }

    fn boottime_now(&self) -> Duration {
        self.state.lock().unwrap().passed
    }

    fn wall_now(&self) -> Timestamp {
        self.start.plus(self.boottime_now())
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.tokio.fill_random(bytes);
    }
}

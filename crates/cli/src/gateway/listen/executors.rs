//! One executor with one thread for each core.
//!
//! A connection stays on one executor, and so do its attempts, their timers and the connections to the API that they
//! use. No step of a request wakes a thread on another core.

use std::cell::Cell;
use std::io;
use std::num::NonZero;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use hapax::Timestamp;
use hapax::runtime::{BoxFuture, Runtime, Tokio};
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

thread_local! {
    /// Whether this is a thread of [`Executors`].
    static IS_EXECUTOR: Cell<bool> = const { Cell::new(false) };
}

/// The running executors. They stop when this is dropped.
#[derive(Debug)]
pub(crate) struct Executors {
    handles: Vec<Handle>,
    /// Has a token of each thread.
    threads: TaskTracker,
    _stop: DropGuard,
}

impl Executors {
    /// # Errors
    /// The system's error if a thread cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        let stop = CancellationToken::new();
        let (guard, threads) = (stop.clone().drop_guard(), TaskTracker::new());
        // One executor if the number of cores is not known.
        let count = thread::available_parallelism().map_or(1, NonZero::get);
        let handles =
            (0..count).map(|number| start(number, stop.clone(), threads.token())).collect::<io::Result<_>>()?;
        Ok(Self { handles, threads, _stop: guard })
    }

    pub(crate) fn handles(&self) -> impl Iterator<Item = Handle> {
        self.handles.iter().cloned()
    }

    /// Stops, and waits until every task has been dropped: the requests that are cut still have to be logged.
    ///
    /// # Cancel safety
    /// If dropped, the executors stop nevertheless.
    pub(crate) async fn stop(self) {
        let threads = self.threads.clone();
        drop(self);
        threads.close();
        threads.wait().await;
    }
}

fn start(number: usize, stop: CancellationToken, running: TaskTrackerToken) -> io::Result<Handle> {
    let (sender, receiver) = mpsc::channel();
    // The executor is built on its own thread: tokio panics if a runtime is dropped in the context of another one.
    thread::Builder::new().name(format!("hapax-core-{number}")).spawn(move || {
        // Dropped after the executor and its tasks.
        let _running = running;
        let built = Builder::new_current_thread().enable_all().build();
        let sent = sender.send(built.as_ref().map(|executor| executor.handle().clone()).map_err(io::Error::kind));
        if let (Ok(executor), Ok(())) = (built, sent) {
            IS_EXECUTOR.set(true);
            executor.block_on(stop.cancelled());
        }
    })?;
    // Waits until the executor is built, so that a failure prevents the start.
    Ok(receiver.recv().map_err(io::Error::other)??)
}

/// The runtime of the gateway's gate: a task that is spawned on an executor stays there. [`Tokio`] does all else.
#[derive(Debug)]
pub(crate) struct ExecutorRuntime(Tokio);

impl ExecutorRuntime {
    /// Tasks that are spawned outside of an executor run on the current runtime.
    pub(crate) fn with_current_fallback() -> Arc<dyn Runtime> {
        Arc::new(Self(Tokio::current()))
    }
}

impl Runtime for ExecutorRuntime {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        if IS_EXECUTOR.get() {
            tokio::spawn(task);
        } else {
            self.0.spawn(task);
        }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }

    fn thread(&self, name: &str, task: BoxFuture<'static, ()>) -> io::Result<()> {
        self.0.thread(name, task)
    }

    fn blocking(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        self.0.blocking(name, body)
    }

    fn boottime_now(&self) -> Duration {
        self.0.boottime_now()
    }

    fn wall_now(&self) -> Timestamp {
        self.0.wall_now()
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.0.fill_random(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::ThreadId;
    use tokio::sync::oneshot;

    /// The thread on which a task runs that is spawned here.
    async fn spawned(runtime: Arc<dyn Runtime>) -> ThreadId {
        let (sender, receiver) = oneshot::channel();
        runtime.spawn(Box::pin(async move { sender.send(thread::current().id()).unwrap() }));
        receiver.await.unwrap()
    }

    #[tokio::test]
    async fn a_task_stays_on_the_executor_that_spawns_it() {
        let (executors, runtime) = (Executors::start().unwrap(), ExecutorRuntime::with_current_fallback());
        for executor in executors.handles() {
            let runtime = Arc::clone(&runtime);
            let spawner = executor.spawn(async { (thread::current().id(), spawned(runtime).await) });
            let (spawner, spawned) = spawner.await.unwrap();
            assert_eq!(spawned, spawner);
            assert_ne!(spawned, thread::current().id());
        }
        assert_eq!(spawned(runtime).await, thread::current().id());
    }
}

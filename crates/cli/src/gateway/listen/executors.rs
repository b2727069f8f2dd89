//! One executor with one thread for each core. What serves a request stays where its connection is: the attempt, its timers and the
//! connection to the API. None of these wakes a thread on another core.

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

thread_local! {
    /// Whether this is a thread of [`Executors`].
    static IS_EXECUTOR: Cell<bool> = const { Cell::new(false) };
}

/// The executors, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Executors {
    executors: Vec<Handle>,
    _stop: DropGuard,
}

impl Executors {
    /// # Errors
    /// What the system says when it has no thread to give.
    pub(crate) fn start() -> io::Result<Self> {
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        // A system that does not tell has one, at least.
        let count = thread::available_parallelism().map_or(1, NonZero::get);
        let executors = (0..count).map(|number| start(number, stop.clone())).collect::<io::Result<_>>()?;
        Ok(Self { executors, _stop: guard })
    }

    pub(crate) fn executors(&self) -> impl Iterator<Item = Handle> {
        self.executors.iter().cloned()
    }
}

fn start(number: usize, stop: CancellationToken) -> io::Result<Handle> {
    let (tell, told) = mpsc::channel();
    // Built where it runs: one that is dropped within another's reach panics.
    thread::Builder::new().name(format!("hapax-core-{number}")).spawn(move || {
        let built = Builder::new_current_thread().enable_all().build();
        let told = tell.send(built.as_ref().map(|executor| executor.handle().clone()).map_err(io::Error::kind));
        if let (Ok(executor), Ok(())) = (built, told) {
            IS_EXECUTOR.set(true);
            executor.block_on(stop.cancelled());
        }
    })?;
    Ok(told.recv().map_err(io::Error::other)??)
}

/// The runtime of the gateway's gate: an attempt runs on the core of its request, and everything else as with [`Tokio`].
#[derive(Debug)]
pub(crate) struct ExecutorRuntime(Tokio);

impl ExecutorRuntime {
    /// What is asked for elsewhere runs on the runtime that this is called in.
    pub(crate) fn or_here() -> Arc<dyn Runtime> {
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

    /// The thread that runs what is asked for here.
    async fn spawned(runtime: Arc<dyn Runtime>) -> ThreadId {
        let (tell, told) = oneshot::channel();
        runtime.spawn(Box::pin(async move { tell.send(thread::current().id()).unwrap() }));
        told.await.unwrap()
    }

    #[tokio::test]
    async fn a_task_stays_on_the_core_that_asks_for_it() {
        let (cores, runtime) = (Executors::start().unwrap(), ExecutorRuntime::or_here());
        for core in cores.executors() {
            let runtime = Arc::clone(&runtime);
            let asked = core.spawn(async { (thread::current().id(), spawned(runtime).await) });
            let (asker, spawned) = asked.await.unwrap();
            assert_eq!(spawned, asker);
            assert_ne!(spawned, thread::current().id());
        }
        assert_eq!(spawned(runtime).await, thread::current().id());
    }
}

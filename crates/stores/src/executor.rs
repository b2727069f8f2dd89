//! The runtime of a store whose tasks run on an executor of their own.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::Timestamp;
use hapax_core::runtime::{BoxFuture, Runtime, Tokio};

/// Runs tasks on the executor on which it was created, and takes everything else from another runtime: all handles to
/// a table must count by one clock.
#[derive(Debug)]
pub(crate) struct LocalTasks {
    executor: Tokio,
    rest: Arc<dyn Runtime>,
}

impl LocalTasks {
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) fn over(rest: Arc<dyn Runtime>) -> Self {
        Self { executor: Tokio::current(), rest }
    }
}

impl Runtime for LocalTasks {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.executor.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.rest.sleep(duration)
    }

    fn thread(&self, name: &str, task: BoxFuture<'static, ()>) -> io::Result<()> {
        self.rest.thread(name, task)
    }

    fn blocking(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        self.rest.blocking(name, body)
    }

    fn boottime_now(&self) -> Duration {
        self.rest.boottime_now()
    }

    fn wall_now(&self) -> Timestamp {
        self.rest.wall_now()
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.rest.fill_random(bytes);
    }
}

use std::io;
use std::time::Duration;

use hapax_core::Timestamp;
use hapax_core::runtime::{BoxFuture, Runtime, Tokio};
use parking_lot::Mutex;

/// A runtime whose wall clock changes only when a test moves it. Everything else is tokio's.
#[derive(Debug)]
pub struct ManualClock {
    wall: Mutex<Timestamp>,
    inner: Tokio,
}

impl ManualClock {
    /// A clock that starts at the real time.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub fn new() -> Self {
        let inner = Tokio::current();
        Self { wall: Mutex::new(inner.wall_now()), inner }
    }

    /// Sets the clock to a time computed from its present time.
    pub fn set(&self, new_time: impl FnOnce(Timestamp) -> Timestamp) {
        let mut wall = self.wall.lock();
        *wall = new_time(*wall);
    }

    /// Moves the clock ahead.
    pub fn forward(&self, by: Duration) {
        self.set(|now| now.plus(by));
    }

    /// Moves the clock back.
    pub fn back(&self, by: Duration) {
        self.set(|now| Timestamp(now.0.saturating_sub(u64::try_from(by.as_micros()).unwrap_or(u64::MAX))));
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Runtime for ManualClock {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.inner.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.inner.sleep(duration)
    }

    fn thread(&self, name: &str, task: BoxFuture<'static, ()>) -> io::Result<()> {
        self.inner.thread(name, task)
    }

    fn blocking(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        self.inner.blocking(name, body)
    }

    fn boottime_now(&self) -> Duration {
        self.inner.boottime_now()
    }

    fn wall_now(&self) -> Timestamp {
        *self.wall.lock()
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.inner.fill_random(bytes);
    }
}

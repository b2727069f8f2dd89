#![expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the clocks, spawns tasks and draws random bytes"
)]

use std::io;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Handle};

use crate::record::Timestamp;
use crate::runtime::{BoxFuture, Runtime};

/// The runtime of production: tokio's tasks and timers, the system's clocks, threads and random bytes.
///
/// ```
/// use std::sync::Arc;
/// use hapax::runtime::{Runtime, Tokio};
///
/// #[tokio::main(flavor = "current_thread")]
/// async fn main() {
///     // One runtime for the store, the journal and the gate.
///     let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
///     runtime.spawn(Box::pin(async { println!("a task of this runtime") }));
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Tokio(Handle);

impl Tokio {
    /// Uses the tokio runtime of the calling task.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn current() -> Self {
        Self(Handle::current())
    }
}

#[cfg(target_os = "macos")]
// macOS has no CLOCK_BOOTTIME, but its CLOCK_MONOTONIC counts while the machine sleeps.
const BOOT_CLOCK: ClockId = ClockId::Monotonic;
#[cfg(not(target_os = "macos"))]
const BOOT_CLOCK: ClockId = ClockId::Boottime;

impl Runtime for Tokio {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn thread(&self, name: &str, task: BoxFuture<'static, ()>) -> io::Result<()> {
        // Built on the calling thread, so that the caller gets its error.
        let executor = Builder::new_current_thread().enable_all().build()?;
        self.blocking(name, Box::new(move || executor.block_on(task)))
    }

    fn blocking(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        thread::Builder::new().name(name.into()).spawn(body).map(drop)
    }

    fn boottime_now(&self) -> Duration {
        let time = clock_gettime(BOOT_CLOCK);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
    }

    fn wall_now(&self) -> Timestamp {
        // A clock before 1970 reads as 1970.
        Timestamp::default().plus(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default())
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the kernel gives random bytes");
    }
}

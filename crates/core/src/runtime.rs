//! Every clock, task, thread and random byte of Hapax comes from here, so that a test or a simulation can control all
//! of them.

mod tasks;
#[cfg(feature = "tokio")]
mod tokio;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::poll;

use crate::record::Timestamp;

pub(crate) use self::tasks::Tasks;
#[cfg(feature = "tokio")]
pub use self::tokio::Tokio;

/// A boxed future that can cross threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The clocks, tasks, threads and random bytes that Hapax uses.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::time::Duration;
/// use hapax::runtime::{Runtime, Tokio};
///
/// /// The duration of a call, by the clock of the runtime.
/// async fn measured(runtime: &dyn Runtime, call: impl Future<Output = ()>) -> Duration {
///     let started = runtime.boottime_now();
///     call.await;
///     runtime.boottime_now() - started
/// }
///
/// let runtime = Tokio::current();
/// assert!(measured(&runtime, runtime.sleep(Duration::from_millis(1))).await >= Duration::from_millis(1));
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no runtime",
    label = "does not implement `Runtime`",
    note = "pass `hapax::runtime::Tokio::current()` (feature `tokio`), or implement `Runtime`"
)]
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// Runs a task to its end in the background.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Waits for this duration.
    ///
    /// # Cancel safety
    /// Safe to drop.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// Runs a task on a thread and an executor of its own, so that it goes on while all others are blocked.
    ///
    /// # Errors
    /// The system's error if it cannot start a thread.
    fn thread(&self, name: &str, task: BoxFuture<'static, ()>) -> io::Result<()>;

    /// Runs blocking code on a thread of its own.
    ///
    /// # Errors
    /// The system's error if it cannot start a thread.
    fn blocking(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// The boot-time clock, for measuring durations: the time since a fixed point in the past. It also counts while the
    /// machine sleeps.
    fn boottime_now(&self) -> Duration;

    /// The wall clock, for stores in this process and for timestamps that people see.
    fn wall_now(&self) -> Timestamp;

    /// Fills the slice with random bytes.
    fn fill_random(&self, bytes: &mut [u8]);
}

/// Waits for a future, at most for `limit`. Returns None, and drops the future, when the time is up.
///
/// # Cancel safety
/// That of the future.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::future::pending;
/// use std::time::Duration;
/// use hapax::runtime::{Tokio, timeout};
///
/// let runtime = Tokio::current();
/// assert_eq!(timeout(&runtime, Duration::from_secs(1), async { 7 }).await, Some(7));
/// assert_eq!(timeout(&runtime, Duration::from_millis(1), pending::<u8>()).await, None);
/// # Ok(())
/// # }
/// ```
pub async fn timeout<T>(runtime: &dyn Runtime, limit: Duration, future: impl Future<Output = T> + Send) -> Option<T> {
    let mut future = pin!(future);
    // Most calls to a store in this process are ready at once, and a timer costs more than they do.
    if let Poll::Ready(output) = poll!(future.as_mut()) {
        return Some(output);
    }
    match select(future, runtime.sleep(limit)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(((), _)) => None,
    }
}

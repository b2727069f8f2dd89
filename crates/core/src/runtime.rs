//! Every clock, task, thread and random byte of Hapax comes from here, so that a test or a simulation can hold them all.

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

#[cfg(feature = "tokio")]
pub use self::tokio::Tokio;

/// A boxed future that can cross threads.
///
/// ```
/// use hapax_core::runtime::BoxFuture;
///
/// fn answer<'a>(name: &'a str) -> BoxFuture<'a, String> {
///     Box::pin(async move { format!("hello, {name}") })
/// }
/// ```
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What Hapax asks of the world around it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::time::Duration;
/// use hapax_core::runtime::{Runtime, Tokio};
///
/// /// How long a call took, on whatever clock the program runs.
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
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// Runs a task to its end, whoever stops waiting for it.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Waits.
    ///
    /// # Cancel safety
    /// Safe to drop.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// Drives a task on a thread of its own, with an executor of its own: it goes on while all others are blocked.
    ///
    /// # Errors
    /// What the system says when it has no thread to give.
    fn thread(&self, name: &str, task: BoxFuture<'static, ()>) -> io::Result<()>;

    /// Runs a body that blocks on a thread of its own.
    ///
    /// # Errors
    /// What the system says when it has no thread to give.
    fn blocking(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// The time since some fixed point in the past, counting also while the machine sleeps. For measuring spans.
    fn boottime_now(&self) -> Duration;

    /// The wall clock. For stores that live in this process, and for what is shown.
    fn wall_now(&self) -> Timestamp;

    /// Fills the bytes at random.
    fn fill_random(&self, bytes: &mut [u8]);
}

/// Waits for a future, at most this long; nothing if it was still running.
///
/// # Cancel safety
/// As the future's own. When time is up the future is dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::future::pending;
/// use std::time::Duration;
/// use hapax_core::runtime::{Tokio, timeout};
///
/// let runtime = Tokio::current();
/// assert_eq!(timeout(&runtime, Duration::from_secs(1), async { 7 }).await, Some(7));
/// assert_eq!(timeout(&runtime, Duration::from_millis(1), pending::<u8>()).await, None);
/// # Ok(())
/// # }
/// ```
pub async fn timeout<T>(runtime: &dyn Runtime, limit: Duration, future: impl Future<Output = T> + Send) -> Option<T> {
    let mut future = pin!(future);
    // Most calls to a store in this process are ready at once: a timer would cost more than they do.
    if let Poll::Ready(output) = poll!(future.as_mut()) {
        return Some(output);
    }
    match select(future, runtime.sleep(limit)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(((), _)) => None,
    }
}

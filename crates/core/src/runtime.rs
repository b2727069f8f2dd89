//! Every clock, task, thread and random byte of Hapax comes from here, so that a test or a simulation can hold them all.

#[cfg(feature = "tokio")]
mod tokio;

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::future::{Either, select};

use crate::record::Timestamp;

#[cfg(feature = "tokio")]
pub use self::tokio::Tokio;

/// A boxed future that can cross threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What Hapax asks of the world around it.
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// Runs a task to its end, whoever stops waiting for it.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Waits.
    ///
    /// # Cancel safety
    /// Safe to drop.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// Runs a blocking body on a thread of its own.
    ///
    /// # Errors
    /// What the system says when it has no thread to give.
    fn thread(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()>;

    /// The time since some fixed point in the past, counting also while the machine sleeps. For measuring spans.
    fn boot(&self) -> Duration;

    /// The wall clock. For stores that live in this process, and for what is shown.
    fn wall(&self) -> Timestamp;

    /// Fills the bytes at random.
    fn fill(&self, bytes: &mut [u8]);
}

/// Waits for a future, at most this long; nothing if it was still running.
///
/// # Cancel safety
/// As the future's own. When time is up the future is dropped.
pub async fn within<T>(runtime: &dyn Runtime, limit: Duration, future: impl Future<Output = T> + Send) -> Option<T> {
    match select(pin!(future), runtime.sleep(limit)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(((), _)) => None,
    }
}

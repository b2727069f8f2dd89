//! For the tests of a service with a ledger: delivers a call twice, and kills the first delivery in between.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;

use crate::runtime::{Runtime, Tokio};

/// Where the first of two deliveries is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kill {
    /// The operation is claimed, and its effect is not written.
    AfterClaim,
    /// The effect is written, and the row of the operation is open.
    AfterEffect,
    /// The row is finished, and nothing is committed.
    BeforeCommit,
    /// Everything is committed, and nobody has the answer.
    AfterCommit,
}

impl Kill {
    /// Every point, in the order in which a delivery reaches them.
    pub const ALL: [Self; 4] = [Self::AfterClaim, Self::AfterEffect, Self::BeforeCommit, Self::AfterCommit];
}

/// What two deliveries of a call gave.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered<T> {
    /// What the first delivery would have returned. None if it was killed before its end.
    pub lost: Option<T>,
    /// What the second delivery returned.
    pub answer: T,
}

thread_local! {
    static ARMED: Cell<Option<Kill>> = const { Cell::new(None) };
}

/// The panic that ends a delivery.
struct Killed;

/// Ends the delivery of this thread, if it is to be killed here.
pub(crate) fn reach(point: Kill) {
    if ARMED.get() == Some(point) {
        ARMED.set(None);
        resume_unwind(Box::new(Killed));
    }
}

/// Delivers a call, kills the delivery at this point, and delivers the call again. A kill unwinds the thread, so that
/// the transaction is rolled back as after the death of its process.
///
/// # Panics
/// If the first delivery ends without reaching the point: its call has been applied before, or has no effect.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use hapax::testing::{Kill, deliver_twice};
///
/// // A service would run its handler here. The chapter `your_transaction` of the guide has such a test.
/// let delivered = deliver_twice(Kill::AfterCommit, || String::from("transferred"));
/// assert_eq!(delivered.lost, Some(delivered.answer));
/// # Ok(())
/// # }
/// ```
pub fn deliver_twice<T>(kill: Kill, mut deliver: impl FnMut() -> T) -> Delivered<T> {
    ARMED.set(Some(kill));
    let lost = survivor(kill, catch_unwind(AssertUnwindSafe(&mut deliver)));
    Delivered { lost, answer: deliver() }
}

/// As [`deliver_twice`], for an asynchronous call, on a runtime with one thread. The second delivery is repeated for up
/// to ten seconds while it returns an error: the server may not yet have noticed the end of the first one.
///
/// # Panics
/// As [`deliver_twice`], and outside of a tokio runtime.
///
/// # Cancel safety
/// Safe to drop.
pub async fn deliver_twice_async<A, E, F>(kill: Kill, mut deliver: impl FnMut() -> F) -> Delivered<Result<A, E>>
where
    F: Future<Output = Result<A, E>>,
{
    ARMED.set(Some(kill));
    let lost = survivor(kill, AssertUnwindSafe(deliver()).catch_unwind().await);
    Delivered { lost, answer: deliver_until_ok(deliver).await }
}

/// Drops a delivery when it waits for the n-th time, counted from 1, and delivers the call again. `lost` is None if the
/// first delivery waited so often: call it with 1, 2, 3 … until it is not.
///
/// # Panics
/// Outside of a tokio runtime.
///
/// # Cancel safety
/// Safe to drop.
pub async fn drop_at_await<A, E, F>(n: usize, mut deliver: impl FnMut() -> F) -> Delivered<Result<A, E>>
where
    F: Future<Output = Result<A, E>>,
{
    let lost = {
        let (mut first, mut waits) = (pin!(deliver()), 0);
        let ended = poll_fn(|context| match first.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => {
                waits += 1;
                if waits < n { Poll::Pending } else { Poll::Ready(None) }
            }
        });
        ended.await
    };
    Delivered { lost, answer: deliver_until_ok(deliver).await }
}

async fn deliver_until_ok<A, E, F>(mut deliver: impl FnMut() -> F) -> Result<A, E>
where
    F: Future<Output = Result<A, E>>,
{
    const PAUSE: Duration = Duration::from_millis(20);
    const TRIES: u32 = 500;
    for _ in 1..TRIES {
        if let Ok(answer) = deliver().await {
            return Ok(answer);
        }
        Tokio::current().sleep(PAUSE).await;
    }
    deliver().await
}

/// The output of the first delivery, if it was not killed.
fn survivor<T>(kill: Kill, ended: Result<T, Box<dyn Any + Send>>) -> Option<T> {
    let is_armed = ARMED.replace(None).is_some();
    match ended {
        Ok(output) => {
            let is_reached = kill == Kill::AfterCommit || !is_armed;
            assert!(is_reached, "the delivery ended, and was not killed {kill}: deliver a new call that has an effect");
            Some(output)
        }
        Err(payload) if payload.is::<Killed>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// The point in words, as in *killed after the claim*.
impl fmt::Display for Kill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AfterClaim => "after the claim",
            Self::AfterEffect => "after the effect",
            Self::BeforeCommit => "before COMMIT",
            Self::AfterCommit => "after COMMIT",
        })
    }
}

//! Runs calls concurrently, with a deadline.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use hapax_core::Owner;

use super::operation::{SuiteOperation, racer};

/// Every call of a store ends before this, even on a busy machine. Only a deadlock lasts longer.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs a body for each operation concurrently, each in its own task.
pub(super) async fn each<T, F>(operations: &[SuiteOperation], body: impl Fn(SuiteOperation) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    run_concurrently(operations.iter().map(|operation| body(operation.clone()))).await
}

/// Runs a body for many racers on one operation concurrently, each in its own task.
pub(super) async fn race<T, F>(
    operation: &SuiteOperation,
    racers: u32,
    body: impl Fn(SuiteOperation, Owner) -> F,
) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    run_concurrently((0..racers).map(|n| body(operation.clone(), racer(n)))).await
}

/// Runs all futures concurrently, each in its own task, and returns their outputs.
pub(super) async fn run_concurrently<T, F>(bodies: impl IntoIterator<Item = F>) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let tasks: Vec<_> = bodies.into_iter().map(tokio::spawn).collect();
    let outputs = with_deadline(join_all(tasks)).await;
    outputs.into_iter().map(|output| output.expect("a task panicked")).collect()
}

/// Waits for the future, and fails after the deadline.
pub(super) async fn with_deadline<T>(future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(DEADLINE, future).await;
    ended.expect("the store did not reply before the deadline")
}

/// Polls the future at most this many times, then drops it.
pub(super) async fn drop_after_polls<T>(polls: u32, future: impl Future<Output = T>) {
    let mut future = pin!(future);
    for _ in 0..polls {
        let poll = poll_fn(|context| Poll::Ready(future.as_mut().poll(context)));
        if poll.await.is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

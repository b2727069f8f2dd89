//! The flow of a response on an HTTP/2 stream. A stream whose client takes nothing for the stall limit is reset.
//!
//! hyper hands a response to the connection piece by piece and forgets it with the last one, however much of it waits
//! for the client's window. So the response gives hyper a piece only after the client has taken the one before, and it
//! ends only after the last piece is taken. Until then its task exists; if the task ends early, h2 resets the stream
//! and drops what still waits.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

tokio::task_local! {
    /// The stream that the current task serves.
    static CURRENT: StreamFlow;
}

/// Runs the task of each stream until it ends, or until its client has taken nothing for this long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamExecutor {
    pub(crate) stall: Duration,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let (flow, stall) = (StreamFlow::default(), self.stall);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = CURRENT.scope(flow.clone(), stream) => {}
                () = flow.wait_until_stalled(stall) => {
                    tracing::debug!("a client took nothing of a response for too long; its stream is reset");
                }
            }
        });
    }
}

/// Whether the client has taken the last piece of a response.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamFlow(Arc<Mutex<FlowState>>);

#[derive(Debug, Default)]
struct FlowState {
    /// Since when a piece waits for the client.
    waits_since: Option<Instant>,
    waker: Option<Waker>,
}

impl StreamFlow {
    /// Returns the flow of the stream that the current task serves. None in HTTP/1.
    pub(crate) fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Returns the piece as the connection gets it: the client has taken it when it is dropped.
    pub(crate) fn hand_over(&self, piece: Bytes) -> Bytes {
        self.0.lock().waits_since = Some(Instant::now());
        Bytes::from_owner(WaitingPiece { piece, flow: self.clone() })
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.0.lock().waits_since.is_none()
    }

    /// Is ready when no piece waits for the client.
    pub(crate) fn poll_taken(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if state.waits_since.is_none() {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Waits until a piece has waited for the client for this long. It polls by timer, so that pieces need not wake it.
    async fn wait_until_stalled(&self, limit: Duration) {
        loop {
            let (now, waits_since) = (Instant::now(), self.0.lock().waits_since);
            let ends_at = waits_since.unwrap_or(now) + limit;
            if ends_at <= now {
                return;
            }
            sleep_until(ends_at).await;
        }
    }
}

/// A piece that the connection has not written yet.
struct WaitingPiece {
    piece: Bytes,
    flow: StreamFlow,
}

impl AsRef<[u8]> for WaitingPiece {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl Drop for WaitingPiece {
    fn drop(&mut self) {
        let mut state = self.flow.0.lock();
        state.waits_since = None;
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_stalled_once_a_piece_has_waited_for_the_limit() {
        let (flow, limit) = (StreamFlow::default(), Duration::from_secs(10));
        let mut stalled = Box::pin(flow.wait_until_stalled(limit));
        for _ in 0..3 {
            let piece = flow.hand_over(Bytes::from_static(b"a"));
            assert!(!flow.is_taken());
            advance(limit * 3 / 4).await;
            assert!(stalled.as_mut().now_or_never().is_none());
            drop(piece);
            assert!(flow.is_taken());
        }
        advance(limit * 3).await;
        assert!(stalled.as_mut().now_or_never().is_none(), "nothing waits for the client");
        let _piece = flow.hand_over(Bytes::from_static(b"a"));
        advance(limit).await;
        assert!(stalled.as_mut().now_or_never().is_some());
    }
}

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::BoxError;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::limits::Limits;

/// The body of a request on its way in. All of it must come within a limit; once it streams, each piece must.
#[derive(Debug)]
pub(crate) struct Arriving<B = Incoming> {
    body: B,
    limits: Limits,
    waiting: Option<Pin<Box<Sleep>>>,
    streaming: Option<Arc<Progress>>,
}

impl<B> Arriving<B> {
    pub(crate) fn new(body: B, limits: Limits) -> Self {
        Self { body, limits, waiting: None, streaming: None }
    }

    /// Nobody waits for all of it any more: it is passed on piece by piece, and the progress can be watched.
    pub(crate) fn streams(&mut self) -> Arc<Progress> {
        let progress = Arc::<Progress>::default();
        self.waiting = None;
        self.streaming = Some(Arc::clone(&progress));
        progress
    }

    fn limit(&self) -> Duration {
        if self.streaming.is_some() { self.limits.stall } else { self.limits.body }
    }
}

impl<B> Body for Arriving<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            if let Some(progress) = &self.streaming {
                progress.came();
                self.waiting = None;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let limit = self.limit();
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        waiting.as_mut().poll(cx).map(|()| Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// When the last piece of a body came.
#[derive(Debug)]
pub(crate) struct Progress(Mutex<Instant>);

impl Default for Progress {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl Progress {
    fn came(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no piece has come for this long.
    pub(crate) async fn ceased(&self, limit: Duration) {
        while self.last().elapsed() < limit {
            sleep_until(self.last() + limit).await;
        }
    }
}

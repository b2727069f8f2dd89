use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::BoxError;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::gateway::ingress::received::Received;
use crate::gateway::limits::{Limits, SMALL_BODY};

/// The body of a request on its way in. All of it must come within a limit; once it streams, each piece must.
#[derive(Debug)]
pub(crate) struct ClientBody<B = Received> {
    body: B,
    limits: Limits,
    held: BodyReservation,
    waiting: Option<Pin<Box<Sleep>>>,
    streaming: Option<Arc<StreamProgress>>,
}

impl<B> ClientBody<B> {
    pub(crate) fn new(body: B, limits: Limits, held: BodyReservation) -> Self {
        Self { body, limits, held, waiting: None, streaming: None }
    }

    /// Nobody waits for all of it any more: it is passed on piece by piece, and the progress can be watched.
    pub(crate) fn streams(&mut self) -> Arc<StreamProgress> {
        let progress = Arc::<StreamProgress>::default();
        self.waiting = None;
        self.held.let_go();
        self.streaming = Some(Arc::clone(&progress));
        progress
    }

    /// A piece is here: it may go on, if there is room for it.
    fn came(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, BoxError> {
        match &self.streaming {
            Some(progress) => {
                progress.came();
                self.waiting = None;
            }
            None => self.held.hold(frame.data_ref().map_or(0, Bytes::len))?,
        }
        Ok(frame)
    }

    fn limit(&self) -> Duration {
        if self.streaming.is_some() { self.limits.stall } else { self.limits.body }
    }
}

impl<B> Body for ClientBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| self.came(frame.map_err(Into::into)?)));
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

/// BodyMemory in memory for the bodies of protected requests, shared by all of them.
#[derive(Clone, Debug)]
pub(crate) struct BodyMemory(Arc<Semaphore>);

impl BodyMemory {
    pub(crate) fn of(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    pub(crate) fn body(&self) -> BodyReservation {
        BodyReservation { room: self.clone(), taken: Arc::default() }
    }
}

/// The room that one request takes, until the last copy of this is dropped.
#[derive(Clone, Debug)]
pub(crate) struct BodyReservation {
    room: BodyMemory,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl BodyReservation {
    /// Takes room for this many bytes more. What is small has its room always: nobody can keep it from others.
    fn hold(&self, bytes: usize) -> io::Result<()> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let before = taken.bytes.max(SMALL_BODY);
        taken.bytes += bytes;
        let more = u32::try_from(taken.bytes.saturating_sub(before)).unwrap_or(u32::MAX);
        let full = |_| io::Error::from(io::ErrorKind::QuotaExceeded);
        let permit = Arc::clone(&self.room.0).try_acquire_many_owned(more).map_err(full)?;
        match &mut taken.permit {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        Ok(())
    }

    fn let_go(&self) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).permit = None;
    }
}

/// When the last piece of a body came.
#[derive(Debug)]
pub(crate) struct StreamProgress(Mutex<Instant>);

impl Default for StreamProgress {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl StreamProgress {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_body_has_room_when_large_ones_have_taken_all() {
        let room = BodyMemory::of(3 * SMALL_BODY);
        let large = room.body();
        (0..4).for_each(|_| large.hold(SMALL_BODY).unwrap());
        assert_eq!(large.hold(1).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
        room.body().hold(SMALL_BODY).unwrap();
        assert!(room.body().hold(SMALL_BODY + 1).is_err());
        drop(large);
        room.body().hold(SMALL_BODY * 4).unwrap();
    }
}

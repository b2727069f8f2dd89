//! The body of a client's request, with its limits in time and in memory.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::BoxError;
use http::Version;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

use crate::gateway::limits::{Limits, SMALL_BODY};
use crate::upstream::forward::{StreamProgress, StreamedBody};
use crate::upstream::http2;

/// The body of a client's request. The whole body must arrive within one time limit. Once it streams, another limit
/// applies to each pause between two frames.
#[derive(Debug)]
pub(crate) struct ClientBody {
    body: Incoming,
    is_http2: bool,
    limits: Limits,
    reservation: BodyReservation,
    /// The running time limit; none while no frame is awaited.
    timer: Option<Pin<Box<Sleep>>>,
    /// Set once the body streams.
    progress: Option<Arc<StreamProgress>>,
}

impl ClientBody {
    /// `version` is that of the request.
    pub(crate) fn new(body: Incoming, version: Version, limits: Limits, reservation: BodyReservation) -> Self {
        Self { body, is_http2: version == Version::HTTP_2, limits, reservation, timer: None, progress: None }
    }

    fn poll_received(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_http2 {
            return http2::poll_frame(&mut self.body, cx);
        }
        // In HTTP/1, hyper reports a body that is cut off as an error.
        Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    /// Reserves memory for a frame, or counts it as progress if the body streams.
    fn account(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, BoxError> {
        match &self.progress {
            Some(progress) => {
                progress.record_frame();
                self.timer = None;
            }
            None => self.reservation.reserve(frame.data_ref().map_or(0, Bytes::len))?,
        }
        Ok(frame)
    }

    fn time_limit(&self) -> Duration {
        if self.progress.is_some() { self.limits.stall } else { self.limits.body }
    }
}

impl StreamedBody for ClientBody {
    fn start_streaming(&mut self) -> Arc<StreamProgress> {
        let progress = Arc::<StreamProgress>::default();
        self.timer = None;
        // A streamed body does not stay in memory.
        self.reservation.free();
        self.progress = Some(Arc::clone(&progress));
        progress
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        // Without streaming, the timer keeps running over all frames: it limits the arrival of the whole body.
        if let Poll::Ready(frame) = self.poll_received(cx) {
            return Poll::Ready(frame.map(|frame| self.account(frame?)));
        }
        let limit = self.time_limit();
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        timer.as_mut().poll(cx).map(|()| Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The memory for bodies of protected requests, shared by all of them.
#[derive(Clone, Debug)]
pub(crate) struct BodyMemory(Arc<Semaphore>);

impl BodyMemory {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    pub(crate) fn reservation(&self) -> BodyReservation {
        BodyReservation { memory: self.clone(), reserved: Arc::default() }
    }
}

/// The memory that one request occupies. The memory is free again when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct BodyReservation {
    memory: BodyMemory,
    reserved: Arc<Mutex<ReservedBytes>>,
}

#[derive(Debug, Default)]
struct ReservedBytes {
    bytes: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl BodyReservation {
    /// Reserves this many more bytes. The first [`SMALL_BODY`] bytes are always granted, so that large bodies cannot
    /// block small ones.
    fn reserve(&self, bytes: usize) -> io::Result<()> {
        let mut reserved = self.reserved.lock();
        let before = reserved.bytes.max(SMALL_BODY);
        reserved.bytes += bytes;
        let more = u32::try_from(reserved.bytes.saturating_sub(before)).unwrap_or(u32::MAX);
        let exhausted = |_| io::Error::from(io::ErrorKind::QuotaExceeded);
        let permit = Arc::clone(&self.memory.0).try_acquire_many_owned(more).map_err(exhausted)?;
        match &mut reserved.permit {
            Some(earlier) => earlier.merge(permit),
            none => *none = Some(permit),
        }
        Ok(())
    }

    fn free(&self) {
        self.reserved.lock().permit = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_body_is_admitted_while_large_ones_occupy_all_memory() {
        let memory = BodyMemory::new(3 * SMALL_BODY);
        let large = memory.reservation();
        (0..4).for_each(|_| large.reserve(SMALL_BODY).unwrap());
        assert_eq!(large.reserve(1).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
        memory.reservation().reserve(SMALL_BODY).unwrap();
        assert!(memory.reservation().reserve(SMALL_BODY + 1).is_err());
        drop(large);
        memory.reservation().reserve(SMALL_BODY * 4).unwrap();
    }
}

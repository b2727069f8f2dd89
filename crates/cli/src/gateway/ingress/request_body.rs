//! The body of a client's request, with its limits in time and in memory.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::BoxError;
use http::header::TRANSFER_ENCODING;
use http::{Request, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

use crate::gateway::ingress::field_names::ProtectedFields;
use crate::gateway::limits::{Limits, SMALL_BODY};
use crate::upstream::fields::filter_trailers;
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
    /// The fields that are never trailers.
    protected: Option<Arc<ProtectedFields>>,
    chunked_end: Option<ChunkedEnd>,
}

/// Whether the chunked body of an HTTP/1 request was read to its end, and ended without trailers.
///
/// hyper 1.12 takes a line feed after the last chunk, or after a trailer, for the start of a trailer. It then reads on
/// to the next empty line and discards the request in between. It reports trailers in every such case, so a body
/// without trailers has ended where its client says.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkedEnd(Arc<AtomicBool>);

impl ChunkedEnd {
    /// None if the body of the request is not chunked.
    pub(crate) fn of<B>(request: &Request<B>) -> Option<Self> {
        request.headers().contains_key(TRANSFER_ENCODING).then(Self::default)
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl ClientBody {
    /// `version` is that of the request.
    pub(crate) fn new(body: Incoming, version: Version, limits: Limits, reservation: BodyReservation) -> Self {
        let is_http2 = version == Version::HTTP_2;
        let (timer, progress, protected, chunked_end) = (None, None, None, None);
        Self { body, is_http2, limits, reservation, timer, progress, protected, chunked_end }
    }

    /// The body leaves these fields out of its trailers, and reports its end.
    pub(crate) fn with_rules(mut self, protected: Arc<ProtectedFields>, chunked_end: Option<ChunkedEnd>) -> Self {
        (self.protected, self.chunked_end) = (Some(protected), chunked_end);
        self
    }

    fn poll_received(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.is_http2 {
            return http2::poll_frame(&mut self.body, cx);
        }
        // In HTTP/1, hyper reports a body that is cut off as an error.
        Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    /// Notes how the body ends, and removes the trailers that the API must not get.
    fn filter(&mut self, frame: Option<Frame<Bytes>>) -> Option<Frame<Bytes>> {
        let Some(frame) = frame else {
            if let Some(ChunkedEnd(is_clean)) = &self.chunked_end {
                is_clean.store(true, Ordering::Release);
            }
            return None;
        };
        if frame.is_trailers() {
            self.chunked_end = None;
        }
        filter_trailers(frame, |name| self.protected.as_ref().is_none_or(|protected| protected.is_never_trailer(name)))
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
            let frame = frame.transpose().map(|frame| self.filter(frame)).transpose();
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

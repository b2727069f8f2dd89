//! The body of a client's request, with its limits in time and in memory.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hapax::BoxError;
use hapax::http::BodyRefused;
use http::header::TRANSFER_ENCODING;
use http::{Request, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::gateway::ingress::field_names::ProtectedFields;
use crate::gateway::ingress::shared_window::{SharedWindow, UnreadBody};
use crate::gateway::ingress::upload_pace::UploadPace;
use crate::gateway::limits::shares::{AddressAccount, Resource, Taken};
use crate::gateway::limits::{Limits, SMALL_BODY};
use crate::gateway::listen::lingering_close::UnreadRest;
use crate::upstream::fields::filter_trailers;
use crate::upstream::forward::{StreamProgress, StreamedBody};
use crate::upstream::http2;

/// The body of a client's request. The whole body must arrive within one time limit. Once it streams, another limit
/// applies to each pause between two frames. A least rate applies to both.
#[derive(Debug)]
pub(crate) struct ClientBody {
    body: Incoming,
    is_http2: bool,
    limits: Limits,
    reservation: BodyReservation,
    pace: UploadPace,
    /// Until when a body that does not stream must be complete; none before it is awaited.
    ends_at: Option<Instant>,
    is_begun: bool,
    /// Set once the body streams.
    progress: Option<Arc<StreamProgress>>,
    /// The fields that are never trailers.
    protected: Option<Arc<ProtectedFields>>,
    chunked_end: Option<ChunkedEnd>,
    /// The first frame, or a failure in its place, if it was awaited before the others.
    first: Option<Result<Frame<Bytes>, BoxError>>,
    /// Says whether the layer discards the body. None if the body is empty.
    refused: Option<BodyRefused>,
    /// The window that an HTTP/2 connection has for all bodies.
    window: Option<SharedWindow>,
    /// In HTTP/2, while the gateway has not asked for the next frame.
    unread: Option<UnreadBody>,
    /// In HTTP/1, where the body notes that it is dropped before its end.
    unread_rest: Option<UnreadRest>,
    has_ended: bool,
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
        let pace = UploadPace::of_whole_body(&limits);
        let refused = (!body.is_end_stream()).then(BodyRefused::default);
        let (progress, protected, chunked_end) = (None, None, None);
        Self {
            body,
            is_http2,
            limits,
            reservation,
            pace,
            ends_at: None,
            is_begun: false,
            progress,
            protected,
            chunked_end,
            first: None,
            refused,
            window: None,
            unread: None,
            unread_rest: None,
            has_ended: false,
        }
    }

    /// The body occupies a part of this window while the gateway does not read it.
    pub(crate) fn in_window(mut self, window: Option<SharedWindow>) -> Self {
        self.pace = UploadPace::of_whole_body(&self.limits).sharing(window.clone());
        self.window = window;
        self.set_unread(!self.body.is_end_stream());
        self
    }

    /// Is set once the layer only discards the body. None if the body is empty.
    pub(crate) fn refused(&self) -> Option<BodyRefused> {
        self.refused.clone()
    }

    /// If the body is dropped before its end, it notes so here. The note of an earlier body is over: its end was read.
    pub(crate) fn reporting_rest(mut self, unread_rest: UnreadRest) -> Self {
        unread_rest.set(false);
        self.unread_rest = Some(unread_rest);
        self
    }

    fn is_refused(&self) -> bool {
        self.refused.as_ref().is_some_and(BodyRefused::is_set)
    }

    fn set_unread(&mut self, is_unread: bool) {
        if is_unread != self.unread.is_some() {
            self.unread = self.window.as_ref().filter(|_| is_unread).map(SharedWindow::count_unread);
        }
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
        self.has_ended = frame.as_ref().is_none_or(Frame::is_trailers);
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
        let length = frame.data_ref().map_or(0, Bytes::len);
        self.pace.record(length);
        match &self.progress {
            Some(progress) => progress.record_frame(),
            // The bytes are discarded as they arrive.
            None if self.is_refused() => {}
            // An HTTP/2 connection has many bodies at once, so that even small ones could fill the memory.
            None => self.reservation.reserve(length, if self.is_http2 { 0 } else { SMALL_BODY })?,
        }
        Ok(frame)
    }

    /// Only the body of a protected request is read before it streams.
    fn begin(&mut self) -> io::Result<()> {
        if !std::mem::replace(&mut self.is_begun, true) && self.progress.is_none() {
            self.reservation.begin_request()?;
        }
        Ok(())
    }

    /// Until when a body that does not stream must arrive.
    fn limit(&mut self) -> Option<Instant> {
        let is_whole = self.progress.is_none();
        is_whole.then(|| *self.ends_at.get_or_insert_with(|| Instant::now() + self.limits.body))
    }

    /// Whether the client may send nothing for as long as it wants. The calls of a stream in both directions end when
    /// one side ends them. Pings detect a client that has disappeared, which HTTP/1 does not have.
    fn may_pause(&self) -> bool {
        self.is_http2 && self.progress.as_ref().is_some_and(|progress| progress.is_answered())
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.begin()?;
        if self.is_refused() {
            self.reservation.free();
        }
        if let Poll::Ready(frame) = self.poll_received(cx) {
            let frame = frame.transpose().map(|frame| self.filter(frame)).transpose();
            return Poll::Ready(frame.map(|frame| self.account(frame?)));
        }
        if self.may_pause() {
            return Poll::Pending;
        }
        let limit = self.limit();
        self.pace.poll_too_slow(limit, cx).map(|()| Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())))
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        if let Some(unread_rest) = &self.unread_rest
            && !(self.has_ended || self.body.is_end_stream())
        {
            unread_rest.set(true);
        }
    }
}

impl StreamedBody for ClientBody {
    fn start_streaming(&mut self) -> Arc<StreamProgress> {
        let progress = Arc::<StreamProgress>::default();
        self.pace = UploadPace::of_stream(&self.limits).sharing(self.window.clone());
        // A streamed body does not stay in memory.
        self.reservation.free();
        self.progress = Some(Arc::clone(&progress));
        progress
    }

    fn poll_is_empty(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        while self.first.is_none() {
            let Some(first) = ready!(Pin::new(&mut *self).poll_frame(cx)) else { return Poll::Ready(true) };
            let is_empty = first.as_ref().is_ok_and(|frame| frame.data_ref().is_some_and(Bytes::is_empty));
            self.first = (!is_empty).then_some(first);
        }
        Poll::Ready(false)
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        let frame = self.poll_next(cx);
        if let (Poll::Ready(Some(Err(error))), Some(progress)) = (&frame, &self.progress) {
            progress.record_failure(error);
        }
        let has_more = matches!(frame, Poll::Ready(Some(Ok(_)))) && !self.body.is_end_stream();
        self.set_unread(has_more);
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The part of the shared resources that one request occupies. It is free again when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct BodyReservation(Arc<Mutex<ReservedBytes>>);

#[derive(Debug)]
struct ReservedBytes {
    account: Arc<AddressAccount>,
    bytes: usize,
    taken: Option<Taken>,
    /// Counts the request as running.
    running: Option<Taken>,
}

impl BodyReservation {
    pub(crate) fn new(account: Arc<AddressAccount>) -> Self {
        Self(Arc::new(Mutex::new(ReservedBytes { account, bytes: 0, taken: None, running: None })))
    }

    /// Counts a protected request. It fails while answers that clients do not read leave no room for another one.
    fn begin_request(&self) -> io::Result<()> {
        let mut reserved = self.0.lock();
        if !reserved.account.has_room(Resource::Answers) {
            reserved.account.warn_if_full(Resource::Answers);
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        reserved.running = Some(reserved.account.take_anyway(Resource::Attempts, 1));
        Ok(())
    }

    /// Reserves this many more bytes. The first `free` bytes are always granted, so that large bodies cannot block
    /// small ones.
    fn reserve(&self, bytes: usize, free: usize) -> io::Result<()> {
        let mut reserved = self.0.lock();
        let before = reserved.bytes.max(free);
        reserved.bytes += bytes;
        let more = reserved.bytes.saturating_sub(before);
        if more == 0 {
            return Ok(());
        }
        let ReservedBytes { account, taken, .. } = &mut *reserved;
        let taken = taken.get_or_insert_with(|| account.empty(Resource::Bodies));
        if taken.grow(more) { Ok(()) } else { Err(io::ErrorKind::QuotaExceeded.into()) }
    }

    fn free(&self) {
        self.0.lock().taken = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::limits::BODY_MEMORY;
    use crate::gateway::limits::shares::Shares;

    #[test]
    fn a_small_body_is_admitted_while_large_ones_occupy_all_memory() {
        let shares = Shares::new(&Limits { address_share: 100, ..Limits::default() });
        let reservation = || BodyReservation::new(shares.account([127, 0, 0, 1].into()));
        let large = reservation();
        large.reserve(BODY_MEMORY + SMALL_BODY, SMALL_BODY).unwrap();
        reservation().reserve(SMALL_BODY, SMALL_BODY).unwrap();
        let refused = reservation().reserve(SMALL_BODY + 1, SMALL_BODY).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
        assert!(reservation().reserve(1, 0).is_err(), "nothing is free over HTTP/2");
        drop(large);
        reservation().reserve(SMALL_BODY * 4, SMALL_BODY).unwrap();
    }

    #[test]
    fn large_bodies_of_one_address_leave_room_for_another() {
        let shares = Shares::new(&Limits::default());
        let reservation = |last| BodyReservation::new(shares.account([127, 0, 0, last].into()));
        let held: Vec<_> = (0..32).map(|_| reservation(1)).collect();
        let admitted = held.iter().filter(|one| one.reserve(1 << 20, SMALL_BODY).is_ok()).count();
        assert_eq!(admitted, (BODY_MEMORY >> 20) / 2);
        reservation(2).reserve(1 << 20, SMALL_BODY).unwrap();
    }
}

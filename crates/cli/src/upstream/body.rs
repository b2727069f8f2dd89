//! The body of a response to a client.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::BoxError;
use hapax::http::headers::is_reserved;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};

use crate::serve::metrics::UpstreamErrorKind;
use crate::upstream::fields::filter_trailers;
use crate::upstream::forward::StreamProgress;
use crate::upstream::http1::ResponseConnection;
use crate::upstream::http2::{self, StreamSlot};

/// The body of a response: from the API over either version of HTTP, or of a problem. Each frame from the API may have
/// a time limit.
#[derive(Debug)]
pub(crate) struct UpstreamBody<B> {
    content: UpstreamContent<B>,
    pub(super) frame_limit: Option<Duration>,
    /// How far the streamed body of the request has arrived.
    pub(super) upload: Option<Arc<StreamProgress>>,
    /// The running time limit; none while no frame is awaited.
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
pub(super) enum UpstreamContent<B> {
    Http1 {
        body: Incoming,
        connection: ResponseConnection<B>,
    },
    /// The slot keeps the stream of the connection occupied until the body is dropped.
    Http2 {
        body: Incoming,
        _slot: StreamSlot,
    },
    Whole(Bytes),
}

impl<B> From<UpstreamContent<B>> for UpstreamBody<B> {
    fn from(content: UpstreamContent<B>) -> Self {
        Self { content, frame_limit: None, upload: None, timer: None }
    }
}

/// The body of a problem.
impl<B> From<Bytes> for UpstreamBody<B> {
    fn from(body: Bytes) -> Self {
        UpstreamContent::Whole(body).into()
    }
}

impl<B> UpstreamBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.content {
            UpstreamContent::Http1 { body, connection } => connection.poll_frame(body, cx).map_err(Into::into),
            UpstreamContent::Http2 { body, .. } => http2::poll_frame(body, cx),
            UpstreamContent::Whole(body) if body.is_empty() => Poll::Ready(None),
            UpstreamContent::Whole(body) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(body))))),
        }
    }
}

impl<B> Body for UpstreamBody<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = self.poll_content(cx) {
            // Each frame has the whole limit.
            self.timer = None;
            // An upload that its client breaks ends the answer, too, and is no failure of the API.
            let is_upload_whole = self.upload.as_ref().is_none_or(|upload| !upload.has_failed());
            if matches!(frame, Some(Err(_))) && is_upload_whole {
                UpstreamErrorKind::Cut.count();
            }
            return Poll::Ready(
                frame.and_then(|frame| frame.map(|frame| filter_trailers(frame, is_reserved)).transpose()),
            );
        }
        let Some(limit) = self.frame_limit else {
            return Poll::Pending;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        timer.as_mut().poll(cx).map(|()| {
            UpstreamErrorKind::Timeout.count();
            Some(Err(io::Error::from(io::ErrorKind::TimedOut).into()))
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            UpstreamContent::Http1 { body, .. } | UpstreamContent::Http2 { body, .. } => body.is_end_stream(),
            UpstreamContent::Whole(body) => body.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            UpstreamContent::Http1 { body, .. } | UpstreamContent::Http2 { body, .. } => body.size_hint(),
            UpstreamContent::Whole(body) => SizeHint::with_exact(u64::try_from(body.len()).unwrap_or(u64::MAX)),
        }
    }
}

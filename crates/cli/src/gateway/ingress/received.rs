use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hapax::BoxError;
use http::Version;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// A body as it comes from the other side of a connection, which ends only where that side has ended it.
///
/// In HTTP/2 a stream that is reset without an error just stops (RFC 9113, 8.1), and hyper takes that for an end: half a body would
/// pass for all of it.
#[derive(Debug)]
pub(crate) struct Received {
    body: Incoming,
    is_h2: bool,
}

impl Received {
    /// `version` is that of the message that has the body.
    pub(crate) fn new(body: Incoming, version: Version) -> Self {
        Self { body, is_h2: version == Version::HTTP_2 }
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        // Of HTTP/1 a body that is cut off is an error already, and a chunked one does not say that it has ended.
        let is_cut = frame.is_none() && self.is_h2 && !self.body.is_end_stream();
        if is_cut {
            return Poll::Ready(Some(Err("the stream was reset before the end of the body".into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

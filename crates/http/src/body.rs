use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

/// The body of a request as the inner service gets it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use bytes::Bytes;
/// use hapax_http::RequestBody;
/// use http_body_util::{BodyExt, Full};
///
/// // A body like any other, whichever it is.
/// let body: RequestBody<Full<Bytes>> = RequestBody::Whole("amount=5".into());
/// assert_eq!(body.collect().await?.to_bytes(), "amount=5");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum RequestBody<B> {
    /// Of a protected request: read to its end before anything else happened.
    Whole(Bytes),
    /// Of an unprotected request: as it comes.
    Streaming(Pin<Box<B>>),
}

/// The body of a response as the caller gets it.
#[derive(Debug)]
pub struct ResponseBody<R> {
    /// What is at hand, given first.
    ready: Bytes,
    /// What is still to come.
    rest: Option<Pin<Box<R>>>,
}

impl<R> ResponseBody<R> {
    pub(crate) fn whole(body: Bytes) -> Self {
        Self { ready: body, rest: None }
    }

    pub(crate) fn streaming(body: R) -> Self {
        Self { ready: Bytes::new(), rest: Some(Box::pin(body)) }
    }

    fn resumed(ready: Bytes, rest: Pin<Box<R>>) -> Self {
        Self { ready, rest: Some(rest) }
    }
}

/// An empty body, as layers around make one that answer for themselves.
impl<R> Default for ResponseBody<R> {
    fn default() -> Self {
        Self::whole(Bytes::new())
    }
}

impl<B: Body<Data = Bytes>> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.get_mut() {
            Self::Whole(body) => Poll::Ready(take(body).map(Ok)),
            Self::Streaming(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_empty(),
            Self::Streaming(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => SizeHint::with_exact(length(body)),
            Self::Streaming(body) => body.size_hint(),
        }
    }
}

impl<R: Body<Data = Bytes>> Body for ResponseBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        if let Some(frame) = take(&mut self.ready) {
            return Poll::Ready(Some(Ok(frame)));
        }
        match &mut self.rest {
            Some(rest) => rest.as_mut().poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let ready = length(&self.ready);
        let rest = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(ready));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(ready)) {
            hint.set_upper(upper);
        }
        hint
    }
}

fn take(body: &mut Bytes) -> Option<Frame<Bytes>> {
    (!body.is_empty()).then(|| Frame::data(std::mem::take(body)))
}

fn length(body: &Bytes) -> u64 {
    u64::try_from(body.len()).unwrap_or(u64::MAX)
}

/// A body that was read up to a limit.
pub(crate) enum Collected<B: Body> {
    /// All of it. Trailers are left out.
    Whole(Bytes),
    /// More than the limit: what was read, and the rest.
    Over(ResponseBody<B>),
    /// It failed on the way.
    Cut(B::Error),
}

/// Reads a body to its end, or until it is longer than `limit` bytes.
pub(crate) async fn collect<B: Body<Data = Bytes>>(body: B, limit: usize) -> Collected<B> {
    let mut body = Box::pin(body);
    let mut read = Read::default();
    if usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX) > limit {
        return Collected::Over(ResponseBody::resumed(Bytes::new(), body));
    }
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => read.push(data),
            Ok(Err(_trailers)) => {}
            Err(error) => return Collected::Cut(error),
        }
        if read.len > limit {
            return Collected::Over(ResponseBody::resumed(read.into_bytes(), body));
        }
    }
    Collected::Whole(read.into_bytes())
}

/// Reads the rest of a body and forgets it, up to about `limit` bytes.
pub(crate) async fn drain<B: Body<Data = Bytes>>(mut body: ResponseBody<B>, limit: usize) {
    let mut read = 0_usize;
    while let Some(Ok(frame)) = body.frame().await {
        read = read.saturating_add(frame.data_ref().map_or(0, Bytes::len));
        if read > limit {
            return;
        }
    }
}

/// Pieces of a body; a body of one piece, the usual case, is not copied.
#[derive(Default)]
struct Read {
    pieces: Vec<Bytes>,
    len: usize,
}

impl Read {
    fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        self.pieces.push(piece);
    }

    fn into_bytes(mut self) -> Bytes {
        if self.pieces.len() <= 1 {
            return self.pieces.pop().unwrap_or_default();
        }
        let mut whole = BytesMut::with_capacity(self.len);
        self.pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
        whole.freeze()
    }
}

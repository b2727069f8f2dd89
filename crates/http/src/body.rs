use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

/// The body of a request as the inner service gets it.
#[derive(Debug)]
pub enum RequestBody<B> {
    /// The body of a protected request, which was read completely before anything else happened.
    Whole(Bytes),
    /// The body of an unprotected request, passed on frame by frame.
    Streaming(Pin<Box<B>>),
}

/// The body of a response as the caller gets it: bytes in memory, the frames of an inner body, or both in this order.
#[derive(Debug)]
pub struct ResponseBody<R> {
    /// Bytes in memory, returned first.
    ready: Bytes,
    /// The frames that follow.
    rest: Option<Pin<Box<R>>>,
}

impl<R> ResponseBody<R> {
    /// A body that is complete already, for a service around the layer that answers by itself.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use hapax::http::ResponseBody;
    /// use http::{Response, StatusCode};
    /// use http_body_util::Full;
    ///
    /// /// The same type as the layer returns, so that no `Either` of two bodies is needed.
    /// fn refuse() -> Response<ResponseBody<Full<Bytes>>> {
    ///     let mut response = Response::new(ResponseBody::whole("closed for maintenance"));
    ///     *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    ///     response
    /// }
    /// # refuse();
    /// ```
    pub fn whole(body: impl Into<Bytes>) -> Self {
        Self { ready: body.into(), rest: None }
    }

    /// The number of bytes that are in memory already.
    pub fn bytes_in_memory(&self) -> usize {
        self.ready.len()
    }

    /// A body whose frames are passed on as they arrive.
    pub fn streaming(body: R) -> Self {
        Self { ready: Bytes::new(), rest: Some(Box::pin(body)) }
    }

    /// A body of which the first bytes were read already.
    fn resume(ready: Bytes, rest: Pin<Box<R>>) -> Self {
        Self { ready, rest: Some(rest) }
    }
}

/// An empty body.
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
            Self::Whole(body) => Poll::Ready(take_frame(body).map(Ok)),
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
        if let Some(frame) = take_frame(&mut self.ready) {
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

/// The rest of a body in memory as one frame. `None` if nothing is left.
fn take_frame(body: &mut Bytes) -> Option<Frame<Bytes>> {
    (!body.is_empty()).then(|| Frame::data(std::mem::take(body)))
}

fn length(body: &Bytes) -> u64 {
    u64::try_from(body.len()).unwrap_or(u64::MAX)
}

/// The result of reading a body up to a limit.
pub(crate) enum BodyRead<B: Body> {
    /// The whole body, without its trailers.
    Complete(Bytes),
    /// The body is longer than the limit. It still yields all of its bytes.
    TooLong(ResponseBody<B>),
    /// The body failed before its end.
    Failed(B::Error),
}

/// Reads a body to its end, or until it is longer than `limit` bytes.
pub(crate) async fn read_body<B: Body<Data = Bytes>>(body: B, limit: usize) -> BodyRead<B> {
    let mut body = Box::pin(body);
    let mut buffer = BodyBuffer::default();
    // The declared length is over the limit: the body is refused before memory is spent on it.
    if usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX) > limit {
        return BodyRead::TooLong(ResponseBody::resume(Bytes::new(), body));
    }
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => buffer.push(data),
            // Trailers are not stored, so the first answer has none either (H20).
            Ok(Err(_trailers)) => {}
            Err(error) => return BodyRead::Failed(error),
        }
        if buffer.len() > limit {
            return BodyRead::TooLong(ResponseBody::resume(buffer.into_bytes(), body));
        }
    }
    BodyRead::Complete(buffer.into_bytes())
}

/// Reads the rest of a body and discards it, up to about `limit` bytes.
pub(crate) async fn discard<B: Body<Data = Bytes>>(mut body: ResponseBody<B>, limit: usize) {
    let mut discarded = 0_usize;
    while let Some(Ok(frame)) = body.frame().await {
        discarded = discarded.saturating_add(frame.data_ref().map_or(0, Bytes::len));
        if discarded > limit {
            return;
        }
    }
}

/// The bytes read from a body so far.
///
/// A body of one piece, the usual case, is not copied. Several pieces are copied into blocks, which are joined at the
/// end. Blocks never grow: a growing buffer would leave free memory of each earlier size behind. Each piece is freed as
/// soon as it is copied, because a piece of one byte can keep a large buffer alive.
#[derive(Default)]
struct BodyBuffer {
    first: Bytes,
    blocks: Vec<Vec<u8>>,
    length: usize,
}

/// The largest size of a block.
const BLOCK: usize = 64 << 10;

impl BodyBuffer {
    fn push(&mut self, piece: Bytes) {
        if self.length == 0 {
            self.length = piece.len();
            self.first = piece;
        } else if !piece.is_empty() {
            let first = std::mem::take(&mut self.first);
            self.append(&first);
            self.append(&piece);
            self.length += piece.len();
        }
    }

    /// Fills the last block, and adds blocks for what does not fit into it.
    fn append(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            match self.blocks.last_mut().filter(|block| block.len() < block.capacity()) {
                Some(block) => {
                    let (fits, remaining) = piece.split_at(piece.len().min(block.capacity() - block.len()));
                    block.extend_from_slice(fits);
                    piece = remaining;
                }
                // At most doubles the memory, so that a small body does not take a whole block.
                None => self.blocks.push(Vec::with_capacity(piece.len().max(self.length).min(BLOCK))),
            }
        }
    }

    fn len(&self) -> usize {
        self.length
    }

    fn into_bytes(self) -> Bytes {
        if self.blocks.is_empty() { self.first } else { self.blocks.concat().into() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::Full;

    use super::*;

    fn buffer(pieces: &[&'static str]) -> BodyBuffer {
        let mut buffer = BodyBuffer::default();
        pieces.iter().for_each(|piece| buffer.push(Bytes::from_static(piece.as_bytes())));
        buffer
    }

    #[test]
    fn pieces_are_joined_in_their_order() {
        for pieces in [&[][..], &[""], &["ab"], &["", "ab"], &["ab", ""], &["a", "b"], &["", "a", "", "b", ""]] {
            let buffer = buffer(pieces);
            assert_eq!(buffer.len(), pieces.concat().len());
            assert_eq!(buffer.into_bytes(), pieces.concat());
        }
    }

    #[test]
    fn a_body_of_one_piece_is_not_copied() {
        const PIECE: &str = "amount=5";
        assert_eq!(buffer(&["", PIECE, ""]).into_bytes().as_ptr(), PIECE.as_ptr());
    }

    #[test]
    fn the_size_hint_counts_ready_bytes_and_the_rest() {
        let body = |ready, rest| {
            let rest = Full::new(Bytes::from_static(rest));
            ResponseBody::resume(Bytes::from_static(ready), Box::pin(rest))
        };
        let size_and_end = |body: &ResponseBody<Full<Bytes>>| (body.size_hint().exact(), body.is_end_stream());
        assert_eq!(size_and_end(&body(b"ab", b"c")), (Some(3), false));
        assert_eq!(size_and_end(&body(b"ab", b"")), (Some(2), false));
        assert_eq!(size_and_end(&body(b"", b"c")), (Some(1), false));
        assert_eq!(size_and_end(&body(b"", b"")), (Some(0), true));
    }

    #[test]
    fn unused_capacity_is_at_most_one_block() {
        for length in [1, 100, 10 << 10, 3 * BLOCK] {
            let mut buffer = BodyBuffer::default();
            let piece = Bytes::from(vec![7; length]);
            for count in 1..=100 {
                buffer.push(piece.clone());
                let capacity: usize = buffer.blocks.iter().map(Vec::capacity).sum();
                assert!(
                    capacity <= buffer.len() + buffer.len().min(BLOCK),
                    "{capacity} bytes allocated for {count} pieces of {length}"
                );
                assert!(buffer.blocks.iter().all(|block| block.capacity() <= BLOCK), "no block grows");
            }
            assert_eq!(buffer.into_bytes(), vec![7; 100 * length]);
        }
    }

    /// A piece may be one byte of a large buffer, or empty, and a body may have a million pieces.
    #[test]
    fn copied_pieces_are_freed_at_once() {
        struct Piece {
            text: &'static str,
            _counted: Arc<()>,
        }
        impl AsRef<[u8]> for Piece {
            fn as_ref(&self) -> &[u8] {
                self.text.as_bytes()
            }
        }
        for text in ["", "a"] {
            let (mut buffer, counted) = (BodyBuffer::default(), Arc::new(()));
            for _ in 0..100 {
                buffer.push(Bytes::from_owner(Piece { text, _counted: Arc::clone(&counted) }));
                assert!(Arc::strong_count(&counted) <= 2, "more than the first piece is alive");
            }
            assert_eq!(buffer.into_bytes(), text.repeat(100));
        }
    }
}

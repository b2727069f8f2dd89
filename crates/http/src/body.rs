use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
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
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use bytes::Bytes;
/// use hapax_http::ResponseBody;
/// use http::Response;
/// use http_body_util::{BodyExt, Full};
///
/// /// What a layer around this one does with an answer, live or replayed.
/// async fn text(response: Response<ResponseBody<Full<Bytes>>>) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
///     Ok(String::from_utf8(response.into_body().collect().await?.to_bytes().into())?)
/// }
///
/// assert_eq!(text(Response::new(ResponseBody::default())).await?, "");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ResponseBody<R> {
    /// What is at hand, given first.
    ready: Bytes,
    /// What is still to come.
    rest: Option<Pin<Box<R>>>,
}

impl<R> ResponseBody<R> {
    /// A body that is complete already, for a service around the layer that answers by itself.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use hapax_http::ResponseBody;
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

    /// A body whose frames are passed on as they arrive.
    pub fn streaming(body: R) -> Self {
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
        if read.len() > limit {
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

/// What has been read of a body. One of one piece, the usual case, is not copied; of many, also empty ones, little more is held than
/// their bytes, in blocks that are joined in the end: a buffer that grows leaves one of each former size behind.
#[derive(Default)]
struct Read {
    first: Bytes,
    blocks: Vec<Vec<u8>>,
    length: usize,
}

/// How long a block becomes.
const BLOCK: usize = 64 << 10;

impl Read {
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

    fn append(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            match self.blocks.last_mut().filter(|block| block.len() < block.capacity()) {
                Some(block) => {
                    let (now, later) = piece.split_at(piece.len().min(block.capacity() - block.len()));
                    block.extend_from_slice(now);
                    piece = later;
                }
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

    fn read(pieces: &[&'static str]) -> Read {
        let mut read = Read::default();
        pieces.iter().for_each(|piece| read.push(Bytes::from_static(piece.as_bytes())));
        read
    }

    #[test]
    fn pieces_become_one_body_in_their_order() {
        for pieces in [&[][..], &[""], &["ab"], &["", "ab"], &["ab", ""], &["a", "b"], &["", "a", "", "b", ""]] {
            let read = read(pieces);
            assert_eq!(read.len(), pieces.concat().len());
            assert_eq!(read.into_bytes(), pieces.concat());
        }
    }

    #[test]
    fn a_body_of_one_piece_is_not_copied() {
        const PIECE: &str = "amount=5";
        assert_eq!(read(&["", PIECE, ""]).into_bytes().as_ptr(), PIECE.as_ptr());
    }

    #[test]
    fn what_is_at_hand_counts_beside_what_is_to_come() {
        let body = |ready, rest| {
            let rest = Full::new(Bytes::from_static(rest));
            ResponseBody::resumed(Bytes::from_static(ready), Box::pin(rest))
        };
        let told = |body: &ResponseBody<Full<Bytes>>| (body.size_hint().exact(), body.is_end_stream());
        assert_eq!(told(&body(b"ab", b"c")), (Some(3), false));
        assert_eq!(told(&body(b"ab", b"")), (Some(2), false));
        assert_eq!(told(&body(b"", b"c")), (Some(1), false));
        assert_eq!(told(&body(b"", b"")), (Some(0), true));
    }

    #[test]
    fn no_more_room_is_made_than_one_block() {
        for length in [1, 100, 10 << 10, 3 * BLOCK] {
            let mut read = Read::default();
            let piece = Bytes::from(vec![7; length]);
            for count in 1..=100 {
                read.push(piece.clone());
                let room: usize = read.blocks.iter().map(Vec::capacity).sum();
                assert!(room <= read.len() + read.len().min(BLOCK), "{room} for {count} times {length}");
                assert!(read.blocks.iter().all(|block| block.capacity() <= BLOCK), "none has to be grown");
            }
            assert_eq!(read.into_bytes(), vec![7; 100 * length]);
        }
    }

    /// A piece may be one byte of a large buffer, or nothing at all, and there may be a million of them.
    #[test]
    fn pieces_are_not_held_once_they_are_read() {
        struct Piece {
            text: &'static str,
            _held: Arc<()>,
        }
        impl AsRef<[u8]> for Piece {
            fn as_ref(&self) -> &[u8] {
                self.text.as_bytes()
            }
        }
        for text in ["", "a"] {
            let (mut read, held) = (Read::default(), Arc::new(()));
            for _ in 0..100 {
                read.push(Bytes::from_owner(Piece { text, _held: Arc::clone(&held) }));
                assert!(Arc::strong_count(&held) <= 2, "more than the first piece is held");
            }
            assert_eq!(read.into_bytes(), text.repeat(100));
        }
    }
}

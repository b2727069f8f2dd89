//! A service with several awaits before and after its effect, and bodies that arrive in chunks.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax_core::BoxError;
use hapax_http::RequestBody;
use hapax_testkit::yield_now;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};

/// The longest body that is stored.
pub(crate) const LIMIT: usize = 32;

/// What the service does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceScript {
    Creates,
    CreatesInChunks,
    /// A body longer than the limit for stored bodies.
    CreatesTooMuch,
    /// An event stream.
    Streams,
    /// 422, without an effect.
    Rejects,
    /// 503 with Retry-After, without an effect.
    IsUnavailable,
    /// 500.
    Fails {
        after_effect: bool,
    },
}

impl ServiceScript {
    fn has_effect(self) -> bool {
        match self {
            Self::Creates | Self::CreatesInChunks | Self::CreatesTooMuch | Self::Streams => true,
            Self::Rejects | Self::IsUnavailable => false,
            Self::Fails { after_effect } => after_effect,
        }
    }

    fn response(self) -> Response<ChunkedBody> {
        let (status, chunks): (_, &[&'static str]) = match self {
            Self::Creates => (StatusCode::CREATED, &["created"]),
            Self::CreatesInChunks => (StatusCode::CREATED, &["cre", "at", "ed"]),
            Self::CreatesTooMuch => (StatusCode::CREATED, &["created, and here are more details of it", ", and more"]),
            Self::Streams => (StatusCode::OK, &["data: 1\n\n", "data: 2\n\n"]),
            Self::Rejects => (StatusCode::UNPROCESSABLE_ENTITY, &["no such account"]),
            Self::IsUnavailable => (StatusCode::SERVICE_UNAVAILABLE, &["later"]),
            Self::Fails { .. } => (StatusCode::INTERNAL_SERVER_ERROR, &["broken"]),
        };
        let mut response = Response::new(ChunkedBody::of(chunks));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        if self == Self::Streams {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        }
        if self == Self::IsUnavailable {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

pub(crate) async fn serve(
    script: ServiceScript,
    request: Request<RequestBody<ChunkedBody>>,
    effects: Arc<AtomicUsize>,
) -> Result<Response<ChunkedBody>, BoxError> {
    yield_now().await;
    drop(request);
    yield_now().await;
    if script.has_effect() {
        effects.fetch_add(1, Ordering::Relaxed);
    }
    yield_now().await;
    yield_now().await;
    Ok(script.response())
}

/// A body that yields to other tasks before each chunk and before its end.
#[derive(Debug)]
pub(crate) struct ChunkedBody {
    left: VecDeque<&'static str>,
    paused: bool,
}

impl ChunkedBody {
    pub(crate) fn of(chunks: &[&'static str]) -> Self {
        Self { left: chunks.iter().copied().collect(), paused: false }
    }
}

impl Body for ChunkedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let body = self.get_mut();
        body.paused = !body.paused;
        if body.paused {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let chunk = body.left.pop_front().map(str::as_bytes).map(Bytes::from_static);
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

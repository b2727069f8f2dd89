//! A service with several awaits before its effect and after it, and bodies that come in pieces.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax_core::BoxError;
use hapax_http::RequestBody;
use hapax_testkit::turn;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};

/// How long a stored body may be.
pub(crate) const LIMIT: usize = 32;

/// What the service does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Creates,
    CreatesInPieces,
    /// More than is stored.
    CreatesTooMuch,
    /// Events without an end.
    Streams,
    /// 422, without an effect.
    Refuses,
    /// 503 with Retry-After, without an effect.
    TriesLater,
    /// 500.
    FailsAfterIts {
        effect: bool,
    },
}

impl Act {
    fn effect(self) -> bool {
        match self {
            Self::Creates | Self::CreatesInPieces | Self::CreatesTooMuch | Self::Streams => true,
            Self::Refuses | Self::TriesLater => false,
            Self::FailsAfterIts { effect } => effect,
        }
    }

    fn response(self) -> Response<Pieces> {
        let (status, pieces): (_, &[&'static str]) = match self {
            Self::Creates => (StatusCode::CREATED, &["created"]),
            Self::CreatesInPieces => (StatusCode::CREATED, &["cre", "at", "ed"]),
            Self::CreatesTooMuch => (StatusCode::CREATED, &["created, as is to be read here in detail", ", and more"]),
            Self::Streams => (StatusCode::OK, &["data: 1\n\n", "data: 2\n\n"]),
            Self::Refuses => (StatusCode::UNPROCESSABLE_ENTITY, &["no such account"]),
            Self::TriesLater => (StatusCode::SERVICE_UNAVAILABLE, &["later"]),
            Self::FailsAfterIts { .. } => (StatusCode::INTERNAL_SERVER_ERROR, &["broken"]),
        };
        let mut response = Response::new(Pieces::of(pieces));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        if self == Self::Streams {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        }
        if self == Self::TriesLater {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// The service.
pub(crate) async fn serve(
    act: Act,
    request: Request<RequestBody<Pieces>>,
    effects: Arc<AtomicUsize>,
) -> Result<Response<Pieces>, BoxError> {
    turn().await;
    drop(request);
    turn().await;
    if act.effect() {
        effects.fetch_add(1, Ordering::Relaxed);
    }
    turn().await;
    turn().await;
    Ok(act.response())
}

/// A body that has others take a turn before each of its pieces, and before its end.
#[derive(Debug)]
pub(crate) struct Pieces {
    left: VecDeque<&'static str>,
    paused: bool,
}

impl Pieces {
    pub(crate) fn of(pieces: &[&'static str]) -> Self {
        Self { left: pieces.iter().copied().collect(), paused: false }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let body = self.get_mut();
        body.paused = !body.paused;
        if body.paused {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = body.left.pop_front().map(str::as_bytes).map(Bytes::from_static);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }
}

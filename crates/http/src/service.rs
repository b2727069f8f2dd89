use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax_core::gate::{Attempt, Failure, How, Ran, Refused, Told};
use hapax_core::runtime::BoxFuture;
use hapax_core::{BoxError, Call, Error, ErrorKind, Rule};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::body::{Collected, RequestBody, ResponseBody, collect};
use crate::key;
use crate::layer::Config;
use crate::outcome::Outcome;
use crate::problem::Problem;
use crate::stored::Stored;

/// The rule of fingerprints over method, path, query, content type and body, byte for byte.
const RAW: Rule = Rule(1);

const REPLAYED: &str = "idempotent-replayed";

/// The service that [`IdempotencyLayer`](crate::IdempotencyLayer) makes.
#[derive(Clone)]
pub struct Idempotency<S> {
    pub(crate) inner: S,
    pub(crate) config: Arc<Config>,
}

impl<S: fmt::Debug> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Send,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError> + Send,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready is the one to call; its clone waits for its own turn.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let config = Arc::clone(&self.config);
        Box::pin(async move {
            if config.protects(request.method()) {
                return protected(&config, inner, request).await;
            }
            let response = inner
                .call(request.map(|body| RequestBody::Streaming(Box::pin(body))))
                .await?;
            Ok(response.map(ResponseBody::streaming))
        })
    }
}

/// What the inner service answered, for the caller who waits now. Only the one whose request ran it finds something here.
type Live<R, E> = Arc<Mutex<Option<Answered<R, E>>>>;

enum Answered<R, E> {
    /// To be given out once it is recorded.
    ToRecord(Response<ResponseBody<R>>),
    /// Not recorded: passed on as it is.
    ToPassOn(Result<Response<ResponseBody<R>>, E>),
}

async fn protected<S, B, R>(
    config: &Config,
    inner: S,
    request: Request<B>,
) -> Result<Response<ResponseBody<R>>, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError> + Send,
{
    let (call, request) = match identify(config, request).await {
        Ok(identified) => identified,
        Err(problem) => return Ok(problem.response(None).map(ResponseBody::whole)),
    };
    let live = Live::default();
    let (slot, max_stored_body) = (Arc::clone(&live), config.max_stored_body);
    let ran = config
        .gate
        .run(call, move |attempt| {
            run(inner, request, attempt, slot, max_stored_body)
        })
        .await;
    let live = live.lock().unwrap_or_else(PoisonError::into_inner).take();
    answer(&call, ran, live)
}

/// Key, scope, body and fingerprint, in this order: nothing is recorded before the request has arrived whole.
async fn identify<B>(
    config: &Config,
    request: Request<B>,
) -> Result<(Call, Request<RequestBody<B>>), Problem>
where
    B: Body<Data = Bytes>,
{
    let (parts, body) = request.into_parts();
    let key = key::parse(&parts.headers)?;
    let scope = config
        .scope
        .scope(&parts)
        .map_err(|unknown| Problem::CallerUnknown(unknown.0))?;
    let body = match collect(body, config.max_request_body).await {
        Collected::Whole(body) => body,
        Collected::Over(_) => {
            return Err(Problem::BodyTooLarge {
                limit: config.max_request_body,
            });
        }
        Collected::Cut(_) => return Err(Problem::BodyCut),
    };
    let fingerprint = config.identity.fingerprint(RAW, &counted(&parts, &body));
    let call = config.identity.call(&scope, &key).fingerprint(fingerprint);
    Ok((call, Request::from_parts(parts, RequestBody::Whole(body))))
}

fn counted<'a>(parts: &'a Parts, body: &'a [u8]) -> [&'a [u8]; 5] {
    let content_type = parts
        .headers
        .get(CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
    [
        parts.method.as_str().as_bytes(),
        path.as_bytes(),
        query.as_bytes(),
        content_type,
        body,
    ]
}

/// The gate's handler: calls the inner service, leaves its response for the caller and says what it means.
async fn run<S, B, R>(
    mut inner: S,
    mut request: Request<RequestBody<B>>,
    attempt: Attempt,
    live: Live<R, S::Error>,
    max_stored_body: usize,
) -> Result<Stored, Failure<Stored>>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    let leave = |answered| *live.lock().unwrap_or_else(PoisonError::into_inner) = Some(answered);
    let rk = attempt.grant().rk;
    request.extensions_mut().insert(attempt);
    let (head, body) = match inner.call(request).await {
        Ok(response) => response.into_parts(),
        Err(error) => {
            leave(Answered::ToPassOn(Err(error)));
            return Err(Failure::unknown(Error::new(
                ErrorKind::Unknown,
                "the inner service failed",
            )));
        }
    };
    let outcome = Outcome::of(&head);
    if matches!(outcome, Outcome::NotApplied | Outcome::Unknown) {
        leave(Answered::ToPassOn(Ok(Response::from_parts(
            head,
            ResponseBody::streaming(body),
        ))));
        let told = Told::Error(Error::new(ErrorKind::NotApplied, "see the response").into());
        return Err(if outcome == Outcome::NotApplied {
            Failure::NotApplied(told)
        } else {
            Failure::Unknown(told)
        });
    }
    // A stream of events has no end to wait for.
    let limit = if streams(&head) { 0 } else { max_stored_body };
    let (stored, body) = match collect(body, limit).await {
        Collected::Whole(body) => (
            Stored::response(&head, body.clone()),
            ResponseBody::whole(body),
        ),
        Collected::Over(body) => (Stored::NotReplayable, body),
        Collected::Cut(error) => {
            tracing::warn!(error = %error.into(), "a response was cut off; the outcome is unknown");
            leave(Answered::ToPassOn(Ok(Problem::UpstreamCut
                .response(Some(&rk))
                .map(ResponseBody::whole))));
            return Err(Failure::unknown(Error::new(
                ErrorKind::Unknown,
                "the response was cut off",
            )));
        }
    };
    leave(Answered::ToRecord(Response::from_parts(head, body)));
    if outcome == Outcome::Final {
        Err(Failure::finally(stored))
    } else {
        Ok(stored)
    }
}

fn streams(head: &http::response::Parts) -> bool {
    head.headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}

/// What the caller gets: the live response where this very request ran and its outcome stands, else what is recorded or why not.
fn answer<R, E>(
    call: &Call,
    ran: Result<Ran<Stored>, Refused<Stored>>,
    live: Option<Answered<R, E>>,
) -> Result<Response<ResponseBody<R>>, E> {
    let rk = call.record_key();
    let problem = match (ran, live) {
        (
            Ok(Ran {
                how: How::Fresh, ..
            }),
            Some(Answered::ToRecord(response)),
        ) => return Ok(response),
        (Err(Refused::NotApplied(_) | Refused::Unknown(_)), Some(Answered::ToPassOn(response))) => {
            return response;
        }
        (Ok(ran), _) => match ran.answer {
            Stored::Response {
                status,
                headers,
                body,
            } => {
                let mut response = Response::new(ResponseBody::whole(body));
                *response.status_mut() = status;
                *response.headers_mut() = headers;
                response
                    .headers_mut()
                    .insert(REPLAYED, HeaderValue::from_static("true"));
                response
                    .headers_mut()
                    .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                return Ok(response);
            }
            Stored::NotReplayable => Problem::NotReplayable,
        },
        (Err(Refused::Busy { retry_after }), _) => Problem::InProgress { retry_after },
        (Err(Refused::Mismatch), _) => Problem::KeyReused,
        (
            Err(
                Refused::Indeterminate { .. }
                | Refused::Dead
                | Refused::NotApplied(_)
                | Refused::Unknown(_),
            ),
            _,
        ) => Problem::OutcomeUnknown,
        (Err(Refused::Unrecorded(_)), _) => Problem::OutcomeUnrecorded,
        (Err(Refused::Store(error)), _) => {
            tracing::error!(?rk, ?error, "the store cannot be used");
            Problem::StoreUnavailable
        }
    };
    Ok(problem.response(Some(&rk)).map(ResponseBody::whole))
}

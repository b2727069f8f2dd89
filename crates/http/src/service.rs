use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax_core::gate::{Attempt, Failure, How, Ran, Recorded, Refused};
use hapax_core::runtime::BoxFuture;
use hapax_core::{BoxError, Call, Error, ErrorKind, RecordKey, Rule};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, response};
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
        f.debug_struct("Idempotency").field("inner", &self.inner).finish_non_exhaustive()
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
            let response = inner.call(request.map(|body| RequestBody::Streaming(Box::pin(body)))).await?;
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
    let desk = Desk { live: Arc::clone(&live), max_stored_body: config.max_stored_body };
    let ran = config.gate.run(call, move |attempt| run(inner, request, attempt, desk)).await;
    let live = live.lock().unwrap_or_else(PoisonError::into_inner).take();
    answer(&call, ran, live)
}

/// Key, scope, body and fingerprint, in this order: nothing is recorded before the request has arrived whole.
async fn identify<B>(config: &Config, request: Request<B>) -> Result<(Call, Request<RequestBody<B>>), Problem>
where
    B: Body<Data = Bytes>,
{
    let (parts, body) = request.into_parts();
    let key = key::parse(&parts.headers)?;
    let scope = config.scope.scope(&parts).map_err(|unknown| Problem::CallerUnknown(unknown.0))?;
    let body = match collect(body, config.max_request_body).await {
        Collected::Whole(body) => body,
        Collected::Over(_) => {
            return Err(Problem::BodyTooLarge { limit: config.max_request_body });
        }
        Collected::Cut(_) => return Err(Problem::BodyCut),
    };
    let fingerprint = config.identity.fingerprint(RAW, &counted(&parts, &body));
    let call = config.identity.call(&scope, &key).fingerprint(fingerprint);
    Ok((call, Request::from_parts(parts, RequestBody::Whole(body))))
}

/// The parts that count. Every Content-Type field is one, so that none can be hidden behind another.
fn counted<'a>(parts: &'a Parts, body: &'a [u8]) -> Vec<&'a [u8]> {
    let (path, query) = (parts.uri.path(), parts.uri.query().unwrap_or_default());
    let mut counted = vec![parts.method.as_str().as_bytes(), path.as_bytes(), query.as_bytes(), body];
    counted.extend(parts.headers.get_all(CONTENT_TYPE).iter().map(HeaderValue::as_bytes));
    counted
}

/// The gate's handler: calls the inner service, leaves its response for the caller and says what it means.
async fn run<S, B, R>(
    mut inner: S,
    mut request: Request<RequestBody<B>>,
    attempt: Attempt,
    desk: Desk<R, S::Error>,
) -> Result<Stored, Failure<Stored>>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    let rk = attempt.record_key();
    request.extensions_mut().insert(attempt);
    let (head, body) = match inner.call(request).await {
        Ok(response) => response.into_parts(),
        Err(error) => {
            desk.leave(Answered::ToPassOn(Err(error)));
            return Err(unknown("the inner service failed"));
        }
    };
    match Outcome::of(&head) {
        Outcome::Applied => desk.capture(rk, head, body).await,
        Outcome::Final => Err(Failure::finally(desk.capture(rk, head, body).await?)),
        Outcome::NotApplied => {
            desk.pass_on(Response::from_parts(head, ResponseBody::streaming(body)));
            Err(Failure::not_applied(Error::new(ErrorKind::NotApplied, "see the response")))
        }
        Outcome::Unknown => {
            desk.pass_on(Response::from_parts(head, ResponseBody::streaming(body)));
            Err(unknown("see the response"))
        }
    }
}

/// Where a response is left for the caller who waits.
struct Desk<R, E> {
    live: Live<R, E>,
    max_stored_body: usize,
}

impl<R, E> Desk<R, E> {
    fn leave(&self, answered: Answered<R, E>) {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = Some(answered);
    }

    fn pass_on(&self, response: Response<ResponseBody<R>>) {
        self.leave(Answered::ToPassOn(Ok(response)));
    }

    /// Reads the body as far as it is kept.
    async fn capture(&self, rk: RecordKey, head: response::Parts, body: R) -> Result<Stored, Failure<Stored>>
    where
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        let collected = if streams(&head) {
            Collected::Over(ResponseBody::streaming(body))
        } else {
            collect(body, self.max_stored_body).await
        };
        let (stored, body) = match collected {
            Collected::Whole(body) => (Stored::response(&head, body.clone()), ResponseBody::whole(body)),
            Collected::Over(body) => (Stored::NotReplayable, body),
            Collected::Cut(error) => {
                let error = error.into();
                tracing::warn!(?rk, %error, "a response was cut off; the outcome is unknown");
                let problem = if timed_out(&*error) { Problem::UpstreamTimeout } else { Problem::UpstreamCut };
                self.pass_on(problem.response(Some(&rk)).map(ResponseBody::whole));
                return Err(unknown("the response was cut off"));
            }
        };
        self.leave(Answered::ToRecord(Response::from_parts(head, body)));
        Ok(stored)
    }
}

fn unknown<A>(message: &'static str) -> Failure<A> {
    Failure::unknown(Error::new(ErrorKind::Unknown, message))
}

/// A stream of events has no end to wait for. Media types are compared without regard to case.
fn streams(head: &response::Parts) -> bool {
    const EVENTS: &[u8] = b"text/event-stream";
    let content_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.and_then(|value| value.get(..EVENTS.len())).is_some_and(|start| start.eq_ignore_ascii_case(EVENTS))
}

fn timed_out(error: &(dyn StdError + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
}

/// What the caller gets: the live response where this very request ran and its outcome stands, else what is recorded or why not.
fn answer<R, E>(
    call: &Call,
    ran: Result<Ran<Stored>, Refused<Stored>>,
    live: Option<Answered<R, E>>,
) -> Result<Response<ResponseBody<R>>, E> {
    let rk = call.record_key();
    let problem = match (ran, live) {
        (Ok(Ran { how: How::Fresh, recorded, .. }), Some(Answered::ToRecord(response))) => {
            return Ok(marked(response, recorded));
        }
        (Err(Refused::NotApplied(_) | Refused::Unknown(_)), Some(Answered::ToPassOn(response))) => {
            return response;
        }
        (Ok(ran), _) => match replayed(ran.answer) {
            Some(response) => return Ok(response),
            None => Problem::NotReplayable,
        },
        (Err(refused), _) => problem_of(&rk, refused),
    };
    Ok(problem.response(Some(&rk)).map(ResponseBody::whole))
}

/// The recorded response; none if it was not kept.
fn replayed<R>(stored: Stored) -> Option<Response<ResponseBody<R>>> {
    let Stored::Response { status, headers, body } = stored else {
        return None;
    };
    let mut response = Response::new(ResponseBody::whole(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(response)
}

fn problem_of(rk: &RecordKey, refused: Refused<Stored>) -> Problem {
    match refused {
        Refused::Busy { retry_after } => Problem::InProgress { retry_after },
        Refused::Mismatch => Problem::KeyReused,
        Refused::Indeterminate { .. } | Refused::Dead => Problem::OutcomeUnknown,
        Refused::NotApplied(_) | Refused::Unknown(_) => Problem::OutcomeUnknown,
        Refused::Unrecorded(_) => Problem::OutcomeUnrecorded,
        Refused::Overloaded => Problem::Overloaded,
        Refused::Store(error) => {
            tracing::error!(?rk, ?error, "the store cannot be used");
            if error.kind() == ErrorKind::Damaged { Problem::RecordDamaged } else { Problem::StoreUnavailable }
        }
    }
}

/// Says where the store does not have the answer.
fn marked<R>(mut response: Response<R>, recorded: Recorded) -> Response<R> {
    let mark = match recorded {
        Recorded::Yes => return response,
        Recorded::Pending => ("hapax-recorded", "pending"),
        Recorded::No => ("hapax-unrecorded", "true"),
    };
    response.headers_mut().insert(HeaderName::from_static(mark.0), HeaderValue::from_static(mark.1));
    response
}

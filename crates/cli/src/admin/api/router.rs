//! From a request over HTTP to a call of the API, and back.

use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{Extension, RawPathParams, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{BoxError, Router};
use bytes::Bytes;
use http::StatusCode;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::admin::access::AdminAccess;
use crate::admin::api::calls::{ApiCall, ListEvents, PREFIX, ShowOpenApi, ShowPolicy, read};
use crate::admin::api::dead::{DropLetter, ListLetters, RedriveLetter, ShowLetter};
use crate::admin::api::guard::check_write;
use crate::admin::api::history::ShowHistory;
use crate::admin::api::outbox::waiting::ListWaiting;
use crate::admin::api::outbox::{DropEvent, ListParked, Republish, ResumeKey, ShowEvent};
use crate::admin::api::records::writes::{
    PurgeDecision, ReleaseDecision, ReopenDecision, ResolveDecision, WriteRecord,
};
use crate::admin::api::records::{ListRecords, ShowRecord};
use crate::admin::api::{ApiError, Requester};
use crate::admin::listener::AdminState;

/// The largest body of a write. A recorded answer that an operator writes is small.
const LARGEST_BODY: usize = 64 << 10;

/// How long a body may take to arrive.
const BODY_TIME: Duration = Duration::from_secs(10);

/// How long the body of a refused write is read.
const DISCARD_TIME: Duration = Duration::from_secs(1);

/// The calls of the API, for clients that may read. A request has its [`Requester`] as an extension.
pub(crate) fn router() -> Router<AdminState> {
    [
        route::<ListRecords>,
        route::<ShowRecord>,
        route::<WriteRecord<ResolveDecision>>,
        route::<WriteRecord<ReopenDecision>>,
        route::<WriteRecord<ReleaseDecision>>,
        route::<WriteRecord<PurgeDecision>>,
        route::<ListLetters>,
        route::<ShowLetter>,
        route::<RedriveLetter>,
        route::<DropLetter>,
        route::<ListParked>,
        route::<ListWaiting>,
        route::<ShowEvent>,
        route::<ResumeKey>,
        route::<DropEvent>,
        route::<Republish>,
        route::<ShowPolicy>,
        route::<ShowHistory>,
        route::<ListEvents>,
        route::<ShowOpenApi>,
    ]
    .into_iter()
    .fold(Router::new(), |router, add| add(router))
}

fn route<C: ApiCall>(router: Router<AdminState>) -> Router<AdminState> {
    router.route(&format!("{PREFIX}{}", C::PATH), any(respond::<C>))
}

async fn respond<C: ApiCall>(
    State(AdminState { api, access, .. }): State<AdminState>,
    Extension(requester): Extension<Requester>,
    path: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let (head, mut body) = request.into_parts();
    let allowed = if C::WRITE.is_some() { "POST" } else { "GET" };
    if head.method != allowed {
        let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", format!("use {allowed}"));
        return Ok(([(ALLOW, allowed)], error).into_response());
    }
    if C::WRITE.is_none() {
        let query = form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes());
        let query = query.map(|(name, value)| (name.into_owned(), Value::from(value.into_owned())));
        let call: C = read(in_path(path)?.into_iter().chain(query))?;
        return Ok(to_response(StatusCode::OK, &api.call(&requester, &call).await?));
    }
    let call = async {
        let members = allowed_body(&head, &mut body, &access).await?;
        read::<C>(in_path(path)?.into_iter().chain(members))
    };
    let call = match call.await {
        Ok(call) => call,
        Err(refusal) => {
            log_refusal(&requester, head.uri.path(), &refusal);
            discard(body).await;
            return Err(refusal);
        }
    };
    // In a task of its own: a client that hangs up must not end a write without its audit event.
    let task = tokio::spawn(async move { api.call(&requester, &call).await });
    let failed = |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", "failed");
    Ok(to_response(StatusCode::OK, &task.await.map_err(failed)??))
}

/// The arguments in a path.
fn in_path(path: Result<RawPathParams, RawPathParamsRejection>) -> Result<Vec<(String, Value)>, ApiError> {
    let path = path.map_err(|_| ApiError::invalid("the path is not UTF-8"))?;
    Ok(path.iter().map(|(name, value)| (name.to_owned(), value.into())).collect())
}

/// Reads the rest of a body, within bounds. A client that still sends when its connection is closed may lose the
/// answer.
async fn discard(mut body: Body) {
    const LARGEST: usize = 4 * LARGEST_BODY;
    let read = async {
        let mut left = LARGEST;
        while let Some(Ok(frame)) = body.frame().await {
            let Some(less) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { break };
            left = less;
        }
    };
    // Nothing to do if it does not end in time: the answer is written anyway.
    let _ = tokio::time::timeout(DISCARD_TIME, read).await;
}

/// Logs a write that was refused before it reached the system. It changed nothing, so it is no audit event: everybody
/// who can connect could fill the file. The log has at most ten of these lines a second, and counts the others.
fn log_refusal(requester: &Requester, path: &str, refusal: &ApiError) {
    /// A path may have 64 KiB.
    const LONGEST: usize = 120;
    let path = path.get(..path.floor_char_boundary(LONGEST)).unwrap_or_default();
    let (client, error) = (&requester.name, &*refusal.code);
    tracing::warn!(client, path, error, "a write over the admin API is refused, and nothing is changed");
}

/// Reads the body of a write that may be carried out.
async fn allowed_body(head: &Parts, body: &mut Body, access: &AdminAccess) -> Result<Map<String, Value>, ApiError> {
    if let Some(refusal) = access.write_refusal(&head.headers) {
        return Err(refusal);
    }
    check_write(&head.headers, access.names())?;
    if head.uri.query().is_some() {
        return Err(ApiError::invalid("a write takes no query"));
    }
    let declared = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > LARGEST_BODY as u64) {
        return Err(too_large());
    }
    let collected = tokio::time::timeout(BODY_TIME, Limited::new(body, LARGEST_BODY).collect()).await;
    let slow = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "slow-body", format!("send the body in {BODY_TIME:?}"));
    let cut = |error: BoxError| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => too_large(),
        None => ApiError::invalid("the body was cut"),
    };
    let body = collected.map_err(slow)?.map_err(cut)?.to_bytes();
    serde_json::from_slice(&body).map_err(|_| ApiError::invalid("the body must be one JSON object"))
}

fn too_large() -> ApiError {
    let detail = format!("a body may have {LARGEST_BODY} bytes; use `hapax keys --store` for a larger answer");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", detail)
}

pub(crate) fn unknown_path() -> ApiError {
    ApiError::not_found(format!("the API has no such path; {PREFIX}openapi.json lists all of them"))
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        to_response(self.status, &self)
    }
}

fn to_response(status: StatusCode, body: &impl Serialize) -> Response {
    let Ok(text) = serde_json::to_string(body) else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let headers =
        [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, text + "\n").into_response()
}

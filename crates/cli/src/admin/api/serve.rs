//! From a request over HTTP to a call of the API, and back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde_json::{Map, Value};

use crate::admin::access::AdminAccess;
use crate::admin::api::call::{ApiCall, PREFIX, is_write};
use crate::admin::api::guard::check_write;
use crate::admin::api::{AdminApi, ApiError, Requester};

/// The largest body of a write. A recorded answer that an operator writes is small.
const LARGEST_BODY: usize = 64 << 10;

/// How long a body may take to arrive.
const BODY_TIME: Duration = Duration::from_secs(10);

/// How long the body of a refused write is read.
const DISCARD_TIME: Duration = Duration::from_secs(1);

/// Answers a request whose path begins with [`PREFIX`]. The client may read: `access` has allowed that.
pub(crate) async fn respond(
    request: Request<Incoming>,
    api: &Arc<AdminApi>,
    access: &AdminAccess,
    requester: Requester,
) -> Response<Full<Bytes>> {
    let (head, mut body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let path: Vec<&str> = path.strip_prefix(PREFIX).unwrap_or_default().split('/').collect();
    let result = match is_write(&head.method, &path) {
        Ok(false) => read(&head, &path, api, &requester).await,
        Ok(true) => match allowed_write(&head, &mut body, &path, access).await {
            Ok(call) => {
                let (api, requester) = (Arc::clone(api), requester);
                // In a task of its own: a client that hangs up must not end a write without its audit event.
                let task = tokio::spawn(async move { api.handle(&requester, &call).await });
                task.await.unwrap_or_else(|_| Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", "failed")))
            }
            Err(refusal) => {
                log_refusal(&requester, head.uri.path(), &refusal);
                discard(body).await;
                Err(refusal)
            }
        },
        Err(error) => Err(error),
    };
    to_response(result)
}

/// Reads the rest of a body, within bounds. A client that still sends when its connection is closed may lose the
/// answer.
async fn discard(mut body: Incoming) {
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
    let (client, error) = (&requester.name, refusal.code);
    tracing::warn!(client, path, error, "a write over the admin API is refused, and nothing is changed");
}

async fn read(head: &Parts, path: &[&str], api: &AdminApi, requester: &Requester) -> Result<Value, ApiError> {
    let call = ApiCall::read(path, head.uri.query().unwrap_or_default())?;
    api.handle(requester, &call).await
}

/// Reads a write that may be carried out.
async fn allowed_write(
    head: &Parts,
    body: &mut Incoming,
    path: &[&str],
    access: &AdminAccess,
) -> Result<ApiCall, ApiError> {
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
    let body = collected.map_err(slow)?.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => too_large(),
        None => ApiError::invalid("the body was cut"),
    })?;
    let members: Map<String, Value> =
        serde_json::from_slice(&body.to_bytes()).map_err(|_| ApiError::invalid("the body must be one JSON object"))?;
    ApiCall::write(path, members)
}

fn too_large() -> ApiError {
    let detail = format!("a body may have {LARGEST_BODY} bytes; use `hapax keys --store` for a larger answer");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", detail)
}

/// The answer to a request that may not even read.
pub(crate) fn refused(refusal: ApiError) -> Response<Full<Bytes>> {
    to_response(Err(refusal))
}

fn to_response(result: Result<Value, ApiError>) -> Response<Full<Bytes>> {
    let (status, body) = match &result {
        Ok(value) => (StatusCode::OK, value.to_string()),
        Err(error) => (error.status, error.to_json().to_string()),
    };
    let mut response = Response::new(Full::from(body + "\n"));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Err(ApiError { allow: Some(method), .. }) = &result {
        headers.insert(ALLOW, HeaderValue::from_static(method.as_str()));
    }
    response
}

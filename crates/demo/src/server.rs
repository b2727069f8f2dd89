//! The HTTP side of the ingest service.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::pipeline::Ingest;
use super::traffic::PaymentOrder;

/// Serves the connections of this listener.
pub(super) async fn accept(listener: TcpListener, service: Arc<Ingest>) -> Infallible {
    let mut connections = JoinSet::new();
    loop {
        // A failed accept concerns one connection, or the process is out of file descriptors for a moment.
        match listener.accept().await {
            Ok((stream, _)) => drop(connections.spawn(serve(stream, Arc::clone(&service)))),
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, service: Arc<Ingest>) {
    let respond = service_fn(move |request| respond(request, Arc::clone(&service)));
    // An error means that the client closed the connection, which some clients of the demo do.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), respond).await;
}

async fn respond(request: Request<Incoming>, service: Arc<Ingest>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (head, body) = request.into_parts();
    if head.method != Method::POST || head.uri.path() != "/charges" {
        return Ok(response(StatusCode::NOT_FOUND, &json!({})));
    }
    // An incomplete body fails here, and nothing is charged.
    let body = body.collect().await?.to_bytes();
    let Some(order) = serde_json::from_slice(&body).ok().and_then(|json| PaymentOrder::read(&json)) else {
        return Ok(response(StatusCode::BAD_REQUEST, &json!({})));
    };
    // A task of its own finishes the charge even if the client closes the connection.
    let charging = tokio::spawn(async move { service.charge(order, &head.headers).await });
    Ok(charging.await.unwrap_or_else(|_| failure()))
}

/// Nothing was done.
pub(super) fn busy() -> Response<Full<Bytes>> {
    let body = json!({ "error": "too busy, nothing was charged" });
    let mut response = response(StatusCode::SERVICE_UNAVAILABLE, &body);
    let in_a_second = header::HeaderValue::from_static("1");
    response.headers_mut().insert(header::RETRY_AFTER, in_a_second);
    response
}

/// A failure that says nothing about the outcome.
pub(super) fn failure() -> Response<Full<Bytes>> {
    let body = json!({ "error": "internal error" });
    response(StatusCode::INTERNAL_SERVER_ERROR, &body)
}

/// A response with a JSON body.
pub(super) fn response(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() = status;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// The value of a header.
pub(super) fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// A permanent refusal. `number` differs for every refusal, so that an audit notices a second one for the same payment.
pub(super) fn declined(number: &str, order: &PaymentOrder) -> Response<Full<Bytes>> {
    let body = json!({ "declined": format!("no_{number}"), "payment": order.payment });
    response(StatusCode::PAYMENT_REQUIRED, &body)
}

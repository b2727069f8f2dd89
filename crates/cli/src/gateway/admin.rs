use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax::Inspect;
use hapax::store::Severity;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

/// How long the store may take over a check before it counts as not ready.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// How many records one step of a sweep removes: few enough that no request waits for it.
const SWEEP_STEP: usize = 200;

/// Answers /healthz (the process runs) and /readyz (its store answers).
pub(crate) async fn serve(listener: TcpListener, inspect: Arc<dyn Inspect>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let inspect = Arc::clone(&inspect);
        let service = service_fn(move |request| answer(request, Arc::clone(&inspect)));
        let connection = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an admin connection ended badly");
            }
        });
    }
}

async fn answer(request: Request<Incoming>, inspect: Arc<dyn Inspect>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, text) = match request.uri().path() {
        "/healthz" => (StatusCode::OK, "ok\n".into()),
        "/readyz" => ready(&*inspect).await,
        _ => (StatusCode::NOT_FOUND, "there are /healthz and /readyz\n".into()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    Ok(response)
}

async fn ready(inspect: &dyn Inspect) -> (StatusCode, String) {
    let not_ready = |why: &dyn std::fmt::Display| (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n"));
    match tokio::time::timeout(CHECK_TIMEOUT, inspect.check()).await {
        Err(_) => not_ready(&"the store does not answer"),
        Ok(Err(error)) => not_ready(&error),
        Ok(Ok(findings)) => match findings.iter().find(|finding| finding.severity == Severity::Refuse) {
            Some(finding) => not_ready(&finding.message),
            None => (StatusCode::OK, "ready\n".into()),
        },
    }
}

/// Removes expired records, a few at a time, for as long as the process runs.
pub(crate) async fn sweep(inspect: Arc<dyn Inspect>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        loop {
            match inspect.sweep(SWEEP_STEP).await {
                Ok(0) => break,
                Ok(swept) => tracing::debug!(swept, "expired records were removed"),
                Err(error) => {
                    tracing::warn!(?error, "a sweep failed; it is tried again");
                    break;
                }
            }
        }
    }
}

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax::Inspect;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::watch::Watch;

const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// How many records one step of a sweep removes: few enough that no request waits for it.
const SWEEP_STEP: usize = 200;

/// The text format of Prometheus.
const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// How long a client of this listener may take over the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections at once: probes and scrapers are few.
const CONNECTIONS: usize = 64;

/// What the pages of this listener are made of.
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    pub(crate) watch: Arc<Watch>,
    pub(crate) metrics: PrometheusHandle,
}

/// Answers /healthz (the process runs), /readyz (requests can be taken: the store passed its checks, answers and takes records) and /metrics.
pub(crate) async fn serve(listener: TcpListener, admin: Admin) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            tracing::warn!(limit = CONNECTIONS, "an admin connection was refused; there are too many");
            continue;
        };
        let admin = admin.clone();
        let service = service_fn(move |request| answer(request, admin.clone()));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            let _place = place;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an admin connection ended badly");
            }
        });
    }
}

async fn answer(request: Request<Incoming>, admin: Admin) -> Result<Response<Full<Bytes>>, Infallible> {
    let (mut format, mut status) = (TEXT, StatusCode::OK);
    let text = match request.uri().path() {
        "/healthz" => "ok\n".into(),
        "/readyz" => match admin.watch.is_ready().await {
            Ok(()) => "ready\n".into(),
            Err(why) => {
                status = StatusCode::SERVICE_UNAVAILABLE;
                format!("not ready: {why}\n")
            }
        },
        "/metrics" => {
            format = METRICS;
            admin.metrics.render()
        }
        _ => {
            status = StatusCode::NOT_FOUND;
            "there are /healthz, /readyz and /metrics\n".into()
        }
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, format);
    Ok(response)
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

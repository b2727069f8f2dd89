//! The admin listener: health, readiness, metrics, the API and the dashboard.

mod answering;
mod connections;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::admin::access::AdminAccess;
use crate::admin::api::call::PREFIX;
use crate::admin::api::{AdminApi, Requester, serve as api};
use crate::admin::dashboard;
use crate::admin::listener::connections::{AdminConnections, ConnectionLimits};
use crate::serve::shutdown::Shutdown;

/// The text format of Prometheus.
const METRICS_TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const TEXT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Whether a process can do its work.
#[async_trait]
pub(crate) trait ReportReadiness: fmt::Debug + Send + Sync {
    /// Whether requests should be sent to this process now.
    ///
    /// # Errors
    /// The reason why not, for `/readyz`.
    async fn readiness(&self) -> Result<(), String>;
}

/// The data that the pages of this listener show, and who may read them.
#[derive(Clone, Debug)]
pub(crate) struct AdminState {
    pub(crate) health: Arc<dyn ReportReadiness>,
    pub(crate) metrics: PrometheusHandle,
    pub(crate) access: AdminAccess,
    pub(crate) api: Arc<AdminApi>,
    pub(crate) shutdown: Arc<Shutdown>,
}

impl AdminState {
    /// Whether requests should be sent to this process now, or the reason why not.
    async fn readiness(&self) -> Result<(), String> {
        if self.shutdown.has_begun() {
            return Err("the process is stopping".into());
        }
        self.health.readiness().await
    }
}

/// Serves /healthz (the process runs), /readyz (the store passed its checks, replies and takes records), /metrics and
/// the API.
pub(crate) async fn serve(listener: TcpListener, admin: AdminState) {
    let mut connections = AdminConnections::new(ConnectionLimits::default());
    loop {
        let Ok((stream, client)) = listener.accept().await else {
            // The usual cause is a lack of file descriptors, which lasts a while.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let admin = admin.clone();
        connections.serve(stream, client.ip(), move |request| respond(request, client.ip(), admin.clone()));
    }
}

async fn respond(request: Request<Incoming>, client: IpAddr, admin: AdminState) -> Response<Full<Bytes>> {
    if let Some(file) = dashboard::respond(request.method(), request.uri().path()) {
        return file;
    }
    let (mut format, mut status) = (TEXT_TYPE, StatusCode::OK);
    let text = match request.uri().path() {
        // The first two need no token, because load balancers and probes send none.
        "/healthz" => "ok\n".into(),
        "/readyz" => match admin.readiness().await {
            Ok(()) => "ready\n".into(),
            Err(reason) => {
                status = StatusCode::SERVICE_UNAVAILABLE;
                format!("not ready: {reason}\n")
            }
        },
        path => {
            if let Some(refusal) = admin.access.refusal(request.headers()) {
                if path.starts_with(PREFIX) {
                    return api::refused(refusal);
                }
                status = refusal.status;
                format!("{}\n", refusal.detail)
            } else if path.starts_with(PREFIX) {
                return api::respond(request, &admin.api, &admin.access, Requester::client(client)).await;
            } else if path == "/metrics" {
                format = METRICS_TYPE;
                admin.metrics.render()
            } else {
                status = StatusCode::NOT_FOUND;
                format!(
                    "the pages are /, /healthz, /readyz, /metrics and those below {PREFIX}; see {PREFIX}openapi.json\n"
                )
            }
        }
    };
    let mut response = Response::new(Full::from(text));
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, format);
    response
}

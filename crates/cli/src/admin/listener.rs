//! The admin listener: health, readiness, metrics, the API and the dashboard.

mod answering;
mod connections;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tower_service::Service;

use crate::admin::access::AdminAccess;
use crate::admin::api::calls::PREFIX;
use crate::admin::api::{AdminApi, Requester, router as api};
use crate::admin::dashboard;
use crate::admin::listener::connections::{AdminConnections, ConnectionLimits};
use crate::serve::shutdown::Shutdown;

/// The text format of Prometheus.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

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
    let router = router(admin);
    loop {
        let Ok((stream, client)) = listener.accept().await else {
            // The usual cause is a lack of file descriptors, which lasts a while.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let router = router.clone();
        connections.serve(stream, client.ip(), move |mut request| {
            request.extensions_mut().insert(Requester::client(client.ip()));
            take_authority(request.uri().authority().cloned(), request.headers_mut());
            router.clone().call(request)
        });
    }
}

/// The authority of a target in absolute form names the host, whatever the Host field says (RFC 9112, section 3.2.2).
/// Two Host fields stay two, and are refused.
fn take_authority(authority: Option<Authority>, headers: &mut HeaderMap) {
    let Some(authority) = authority.filter(|_| headers.get_all(HOST).iter().count() < 2) else { return };
    let host = authority.as_str().rsplit('@').next().unwrap_or_default();
    headers.insert(HOST, HeaderValue::from_str(host).unwrap_or(HeaderValue::from_static("")));
}

/// The fields of the page of metrics. They show what the process does, so nothing in between keeps them.
const METRICS_FIELDS: [(HeaderName, &str); 3] =
    [(CONTENT_TYPE, METRICS_TYPE), (CACHE_CONTROL, "no-store"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];

fn router(admin: AdminState) -> Router {
    let metrics = async |State(admin): State<AdminState>| (METRICS_FIELDS, admin.metrics.render());
    api::router()
        .route("/metrics", any(metrics))
        .fallback(unknown_page)
        .layer(from_fn_with_state(admin.clone(), check_access))
        // The routes from here on need no token: load balancers and probes send none.
        .route("/healthz", any("ok\n"))
        .route("/readyz", any(readyz))
        .merge(dashboard::router())
        .with_state(admin)
        .layer(from_fn(check_target))
}

/// Refuses a target that is neither a path nor the URL of a page: this listener is no proxy.
async fn check_target(request: Request, next: Next) -> Response {
    let uri = request.uri();
    let is_ours = uri.scheme_str().is_none_or(|scheme| matches!(scheme, "http" | "https"));
    if is_ours && uri.path().starts_with('/') {
        return next.run(request).await;
    }
    (StatusCode::BAD_REQUEST, "write a path, such as /readyz, or its URL with http or https\n").into_response()
}

/// Refuses a client that may not read.
async fn check_access(State(admin): State<AdminState>, request: Request, next: Next) -> Response {
    let mut response = match admin.access.refusal(request.headers()) {
        None => return next.run(request).await,
        Some(refusal) if request.uri().path().starts_with(PREFIX) => refusal.into_response(),
        Some(refusal) => (refusal.status, format!("{}\n", refusal.detail)).into_response(),
    };
    if response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

async fn readyz(State(admin): State<AdminState>) -> (StatusCode, String) {
    match admin.readiness().await {
        Ok(()) => (StatusCode::OK, "ready\n".into()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
    }
}

async fn unknown_page(uri: Uri) -> Response {
    if uri.path().starts_with(PREFIX) {
        return api::unknown_path().into_response();
    }
    let pages =
        format!("the pages are /, /healthz, /readyz, /metrics and those below {PREFIX}; see {PREFIX}openapi.json\n");
    (StatusCode::NOT_FOUND, pages).into_response()
}

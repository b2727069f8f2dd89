//! The admin listener: health, readiness and metrics. Also the task that removes expired records.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax::Inspect;
use http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::config::AdminToken;
use crate::store::health::StoreHealth;

const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// How many records one step removes: few enough that requests are not delayed.
const SWEEP_STEP: usize = 200;

/// The text format of Prometheus.
const METRICS_TYPE: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const TEXT_TYPE: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections at once: probes and scrapers are few.
const CONNECTIONS: usize = 64;

/// The data that the pages of this listener show, and who may read them.
#[derive(Clone, Debug)]
pub(crate) struct AdminState {
    pub(crate) health: Arc<StoreHealth>,
    pub(crate) metrics: PrometheusHandle,
    pub(crate) access: AdminAccess,
}

/// The clients that may read the pages other than /healthz and /readyz.
#[derive(Clone, Debug)]
pub(crate) enum AdminAccess {
    /// Every client: only this host can connect.
    Everyone,
    /// Only clients that send this token.
    WithToken(AdminToken),
    /// No client: other hosts can connect, and no token is configured.
    NoClient,
}

impl AdminAccess {
    pub(crate) fn new(token: Option<&AdminToken>, listen: SocketAddr) -> Self {
        match token {
            Some(token) => Self::WithToken(token.clone()),
            None if listen.ip().to_canonical().is_loopback() => Self::Everyone,
            None => Self::NoClient,
        }
    }

    /// The status and the text of a refusal; none if the client has access.
    fn refusal(&self, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        match self {
            Self::Everyone => None,
            Self::WithToken(token) if bearer(headers).is_some_and(|shown| token.is(shown)) => None,
            Self::WithToken(_) => Some((StatusCode::UNAUTHORIZED, "send the token: Authorization: Bearer TOKEN\n")),
            Self::NoClient => Some((
                StatusCode::FORBIDDEN,
                "other hosts can reach this listener, and no token is configured; start with --admin-token-file\n",
            )),
        }
    }
}

/// The bearer token of a request that has exactly one Authorization field.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    // With two fields, a proxy and the gateway could read different ones.
    let (field, None) = (fields.next()?, fields.next()) else { return None };
    let (scheme, token) = field.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Serves /healthz (the process runs), /readyz (the store passed its checks, replies and takes records) and /metrics.
pub(crate) async fn serve(listener: TcpListener, admin: AdminState) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // The usual cause is a lack of file descriptors, which lasts a while.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            tracing::warn!(limit = CONNECTIONS, "an admin connection was refused: the limit is reached");
            continue;
        };
        let admin = admin.clone();
        let service = service_fn(move |request| respond(request, admin.clone()));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an admin connection failed");
            }
        });
    }
}

async fn respond(request: Request<Incoming>, admin: AdminState) -> Result<Response<Full<Bytes>>, Infallible> {
    let (mut format, mut status) = (TEXT_TYPE, StatusCode::OK);
    let text = match request.uri().path() {
        // The first two need no token, because load balancers and probes send none.
        "/healthz" => "ok\n".into(),
        "/readyz" => match admin.health.readiness().await {
            Ok(()) => "ready\n".into(),
            Err(reason) => {
                status = StatusCode::SERVICE_UNAVAILABLE;
                format!("not ready: {reason}\n")
            }
        },
        path => {
            if let Some((refusal, explanation)) = admin.access.refusal(request.headers()) {
                status = refusal;
                explanation.into()
            } else if path == "/metrics" {
                format = METRICS_TYPE;
                admin.metrics.render()
            } else {
                status = StatusCode::NOT_FOUND;
                "the pages are /healthz, /readyz and /metrics\n".into()
            }
        }
    };
    let mut response = Response::new(Full::from(text));
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, format);
    Ok(response)
}

/// Removes expired records in small steps until the process ends.
pub(crate) async fn sweep(inspect: Arc<dyn Inspect>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        loop {
            match inspect.sweep(SWEEP_STEP).await {
                Ok(0) => break,
                Ok(swept) => tracing::debug!(swept, "expired records were removed"),
                Err(error) => {
                    tracing::warn!(?error, "cannot remove expired records; the next try is in {SWEEP_EVERY:?}");
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> AdminToken {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
        AdminToken::read(file.path()).unwrap()
    }

    fn refused(access: &AdminAccess, credentials: &[&str]) -> Option<u16> {
        let mut headers = HeaderMap::new();
        for credential in credentials {
            headers.append(AUTHORIZATION, HeaderValue::from_str(credential).unwrap());
        }
        access.refusal(&headers).map(|(status, _)| status.as_u16())
    }

    #[test]
    fn a_token_is_required_when_configured_and_from_other_hosts() {
        for (listen, refusal) in [
            ("127.0.0.1:1", None),
            ("127.8.8.8:1", None),
            ("[::1]:1", None),
            ("[::ffff:127.0.0.1]:1", None),
            ("0.0.0.0:1", Some(403)),
            ("[::]:1", Some(403)),
            ("10.0.0.1:1", Some(403)),
        ] {
            let listen = listen.parse().unwrap();
            assert_eq!(refused(&AdminAccess::new(None, listen), &["Bearer 0123456789abcdef"]), refusal, "{listen}");
            let access = AdminAccess::new(Some(&token()), listen);
            assert_eq!(refused(&access, &["bearer 0123456789abcdef"]), None, "{listen}");
            for credentials in [
                &[][..],
                &["Bearer 0123456789abcdee"],
                &["Bearer "],
                &["Basic 0123456789abcdef"],
                &["0123456789abcdef"],
                &["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"],
            ] {
                assert_eq!(refused(&access, credentials), Some(401), "{listen} {credentials:?}");
            }
        }
    }
}

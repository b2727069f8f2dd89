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
pub(crate) struct AdminState {
    pub(crate) watch: Arc<StoreHealth>,
    pub(crate) metrics: PrometheusHandle,
    pub(crate) access: AdminAccess,
}

/// Who is shown more than whether this process is well.
#[derive(Clone, Debug)]
pub(crate) enum AdminAccess {
    Everybody,
    /// Whoever shows this.
    With(AdminToken),
    /// Nobody: others than this host can connect, and there is no token.
    Nobody,
}

impl AdminAccess {
    pub(crate) fn of(token: Option<&AdminToken>, listen: SocketAddr) -> Self {
        match token {
            Some(token) => Self::With(token.clone()),
            None if listen.ip().to_canonical().is_loopback() => Self::Everybody,
            None => Self::Nobody,
        }
    }

    /// What to say to one who is shown no more.
    fn refusal(&self, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
        match self {
            Self::Everybody => None,
            Self::With(token) if bearer(headers).is_some_and(|shown| token.is(shown)) => None,
            Self::With(_) => Some((StatusCode::UNAUTHORIZED, "show the token: Authorization: Bearer TOKEN\n")),
            Self::Nobody => {
                Some((StatusCode::FORBIDDEN, "not off loopback without a token; start with --admin-token-file\n"))
            }
        }
    }
}

/// The one credential of a request, if it is a bearer token.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    let (field, None) = (fields.next()?, fields.next()) else { return None };
    let (scheme, token) = field.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Answers /healthz (the process runs), /readyz (requests can be taken: the store passed its checks, answers and takes records) and /metrics.
pub(crate) async fn serve(listener: TcpListener, admin: AdminState) {
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

async fn answer(request: Request<Incoming>, admin: AdminState) -> Result<Response<Full<Bytes>>, Infallible> {
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
        path => {
            if let Some((refusal, why)) = admin.access.refusal(request.headers()) {
                status = refusal;
                why.into()
            } else if path == "/metrics" {
                format = METRICS;
                admin.metrics.render()
            } else {
                status = StatusCode::NOT_FOUND;
                "there are /healthz, /readyz and /metrics\n".into()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> AdminToken {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
        AdminToken::read(file.path()).unwrap()
    }

    fn shown(access: &AdminAccess, credentials: &[&str]) -> Option<u16> {
        let mut headers = HeaderMap::new();
        for credential in credentials {
            headers.append(AUTHORIZATION, HeaderValue::from_str(credential).unwrap());
        }
        access.refusal(&headers).map(|(status, _)| status.as_u16())
    }

    #[test]
    fn off_loopback_nobody_is_shown_anything_without_a_token() {
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
            assert_eq!(shown(&AdminAccess::of(None, listen), &["Bearer 0123456789abcdef"]), refusal, "{listen}");
            let access = AdminAccess::of(Some(&token()), listen);
            assert_eq!(shown(&access, &["bearer 0123456789abcdef"]), None, "{listen}");
            for credentials in [
                &[][..],
                &["Bearer 0123456789abcdee"],
                &["Bearer "],
                &["Basic 0123456789abcdef"],
                &["0123456789abcdef"],
                &["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"],
            ] {
                assert_eq!(shown(&access, credentials), Some(401), "{listen} {credentials:?}");
            }
        }
    }
}

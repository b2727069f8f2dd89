//! The dashboard and the guide: static files for a browser. All data comes from the admin API, so the files need no
//! token.

use axum::Router;
use axum::extract::Path;
use axum::response::IntoResponse;
use axum::routing::any;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, Method, StatusCode};

use crate::admin::listener::AdminState;
use crate::guide::chapter;

/// The path, the media type and the content of each file.
const FILES: [(&str, &str, &str); 11] = [
    ("/", "text/html; charset=utf-8", include_str!("dashboard/index.html")),
    ("/dashboard.css", "text/css; charset=utf-8", include_str!("dashboard/dashboard.css")),
    ("/main.js", SCRIPT, include_str!("dashboard/main.js")),
    ("/api.js", SCRIPT, include_str!("dashboard/api.js")),
    ("/charts.js", SCRIPT, include_str!("dashboard/charts.js")),
    ("/confirm.js", SCRIPT, include_str!("dashboard/confirm.js")),
    ("/dom.js", SCRIPT, include_str!("dashboard/dom.js")),
    ("/overview.js", SCRIPT, include_str!("dashboard/overview.js")),
    ("/records.js", SCRIPT, include_str!("dashboard/records.js")),
    ("/dead.js", SCRIPT, include_str!("dashboard/dead.js")),
    ("/outbox.js", SCRIPT, include_str!("dashboard/outbox.js")),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The browser loads and calls nothing but this listener, runs no inline script, and shows the page in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// The headers of each file.
const HEADERS: [(HeaderName, &str); 4] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    // The files change with the binary.
    (CACHE_CONTROL, "no-cache"),
];

pub(crate) fn router() -> Router<AdminState> {
    let guide = Router::new().route("/guide/{chapter}", any(show_chapter));
    FILES.into_iter().fold(guide, |router, (path, media_type, content)| {
        let respond = async move |method: Method| match method {
            Method::GET | Method::HEAD => Ok(([(CONTENT_TYPE, media_type)], HEADERS, content)),
            _ => Err((StatusCode::METHOD_NOT_ALLOWED, "read the dashboard with GET\n")),
        };
        router.route(path, any(respond))
    })
}

/// A chapter of the guide as text, for the addresses in alerts.
async fn show_chapter(
    method: Method,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, (StatusCode, &'static str)> {
    if !matches!(method, Method::GET | Method::HEAD) {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "read the guide with GET\n"));
    }
    let text = chapter(&name).ok_or((StatusCode::NOT_FOUND, "there is no such chapter; `hapax guide` lists them\n"))?;
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], HEADERS, text))
}

//! The dashboard: static files for a browser. All data comes from the admin API, so the files need no token.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::Full;

/// The path, the media type and the content of each file.
const FILES: [(&str, &str, &str); 10] = [
    ("/", "text/html; charset=utf-8", include_str!("dashboard/index.html")),
    ("/dashboard.css", "text/css; charset=utf-8", include_str!("dashboard/dashboard.css")),
    ("/main.js", SCRIPT, include_str!("dashboard/main.js")),
    ("/api.js", SCRIPT, include_str!("dashboard/api.js")),
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

/// The response with a file of the dashboard, if the path is one.
pub(crate) fn respond(method: &Method, path: &str) -> Option<Response<Full<Bytes>>> {
    let (_, media_type, content) = FILES.iter().find(|(own, ..)| *own == path)?;
    if method != Method::GET && method != Method::HEAD {
        let mut refusal = Response::new(Full::from("read the dashboard with GET\n"));
        *refusal.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        return Some(refusal);
    }
    let mut response = Response::new(Full::from(*content));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response.headers_mut().extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    Some(response)
}

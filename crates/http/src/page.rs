use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue, Method, Response};
use serde_json::{Value, json};

use crate::layer::{Config, IdempotencyLayer};
use crate::problem::TABLE;

/// The contract of a layer for its clients: retention, how keys are written, what is protected, and what each problem means.
///
/// ```
/// # fn served(layer: &hapax_http::IdempotencyLayer, request: &http::Request<()>) -> http::Response<bytes::Bytes> {
/// // At `hapax_http::PAGE`, in the router of your choice:
/// layer.page().response(request.headers())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPage {
    policy: Value,
}

impl PolicyPage {
    pub(crate) fn of(config: &Config) -> Self {
        let problems = TABLE
            .iter()
            .map(|row| json!({ "name": row.name, "status": row.status, "title": row.title, "retry": row.retry }));
        let policy = json!({
            "specification": "draft-ietf-httpapi-idempotency-key-header-07",
            "key": config.key.published(),
            "keyRequired": config.key_required,
            "caller": config.scope.published(),
            "methods": names(&config.methods),
            "retention": published(config.gate.policy().retention),
            "limits": { "requestBody": config.max_request_body, "storedBody": config.max_stored_body },
            "problems": problems.collect::<Vec<_>>(),
        });
        Self { policy }
    }

    /// Says that requests of these methods to this path are protected as `layer` does it, in its member `routes`. For a router whose
    /// routes have contracts of their own; the first one that is named for a request is the one that holds.
    #[must_use]
    pub fn route(self, path: &str, layer: &IdempotencyLayer) -> Self {
        let config = layer.config();
        self.named(json!({
            "methods": names(&config.methods),
            "path": path,
            "protected": true,
            "key": config.key.published(),
            "keyRequired": config.key_required,
            "retention": published(config.gate.policy().retention),
        }))
    }

    /// Says that requests of these methods to this path stream past.
    #[must_use]
    pub fn unprotected_route(self, path: &str, methods: &[Method]) -> Self {
        self.named(json!({ "methods": names(methods), "path": path, "protected": false }))
    }

    fn named(mut self, route: Value) -> Self {
        let routes = &mut self.policy["routes"];
        if routes.is_null() {
            *routes = json!([]);
        }
        if let Value::Array(routes) = routes {
            routes.push(route);
        }
        self
    }

    /// The page as data.
    pub fn json(&self) -> &Value {
        &self.policy
    }

    /// The page as JSON, or as HTML for whoever asks for that.
    pub fn response(&self, headers: &HeaderMap) -> Response<Bytes> {
        let asked = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
        let (content_type, body) = if asked.into_iter().any(|accept| accept.contains("text/html")) {
            ("text/html; charset=utf-8", self.html())
        } else {
            ("application/json", format!("{:#}\n", self.policy))
        };
        let mut response = Response::new(Bytes::from(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=300"));
        headers.insert(VARY, HeaderValue::from_static("accept"));
        response
    }

    fn html(&self) -> String {
        let problems = TABLE.iter().map(|row| {
            format!(
                "<tr id=\"{0}\"><td><code>{0}</code></td><td>{1}</td><td>{2}</td><td>{3}</td></tr>\n",
                row.name, row.status, row.title, row.retry
            )
        });
        let policy = format!("{:#}", self.policy);
        include_str!("page.html")
            .replace("{problems}", &problems.collect::<String>())
            .replace("{policy}", &policy.replace('&', "&amp;").replace('<', "&lt;"))
    }
}

fn names(methods: &[Method]) -> Vec<&str> {
    methods.iter().map(Method::as_str).collect()
}

fn published(retention: Duration) -> Value {
    json!({ "seconds": retention.as_secs(), "duration": iso_8601(retention) })
}

/// A duration as ISO 8601 writes it, whole seconds.
fn iso_8601(duration: Duration) -> String {
    const DAY: u64 = 24 * 3600;
    match duration.as_secs() {
        seconds if seconds.is_multiple_of(DAY) && seconds > 0 => format!("P{}D", seconds / DAY),
        seconds => format!("PT{seconds}S"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_iso_8601() {
        let written = |seconds| iso_8601(Duration::from_secs(seconds));
        assert_eq!(
            (written(0), written(90), written(86_400), written(172_800)),
            ("PT0S".into(), "PT90S".into(), "P1D".into(), "P2D".into())
        );
    }
}

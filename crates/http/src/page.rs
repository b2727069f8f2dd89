use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue, Method, Response};
use serde_json::{Value, json};

use crate::layer::{IdempotencyLayer, LayerConfig};
use crate::problem::PROBLEMS;

/// The contract of a layer for its clients: retention, the grammar of keys, the protected methods, and every problem.
///
/// ```
/// # fn serve(layer: &hapax::http::IdempotencyLayer, request: &http::Request<()>) -> http::Response<bytes::Bytes> {
/// // Call this for `hapax::http::PAGE` in the router of your choice.
/// layer.page().response(request.headers())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPage {
    policy: Value,
}

impl IdempotencyLayer {
    /// The page that publishes the contract of this layer. Serve it at [`PAGE`](crate::PAGE).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// # use std::sync::Arc;
    /// # use hapax::store::Memory;
    /// # use hapax::{Gate, Settings};
    /// # use hapax::http::{IdempotencyLayer, Tenant};
    /// # let store = Memory::new();
    /// # let gate = Gate::builder(Arc::new(store), Settings::default()).build()?;
    /// # let layer = IdempotencyLayer::new(gate).tenant("payments", Tenant::Authorization)?;
    /// assert_eq!(layer.page().json()["retention"]["seconds"], 86_400);
    /// # Ok(())
    /// # }
    /// ```
    pub fn page(&self) -> PolicyPage {
        PolicyPage::new(&self.config)
    }
}

impl PolicyPage {
    fn new(config: &LayerConfig) -> Self {
        let problems = PROBLEMS.iter().map(|problem| {
            json!({
                "name": problem.name,
                "status": problem.status.as_u16(),
                "title": problem.title,
                "retry": problem.retry,
            })
        });
        let policy = json!({
            "specification": "draft-ietf-httpapi-idempotency-key-header-07",
            "key": config.key.describe(),
            "keyRequired": config.key_required,
            "caller": config.scope.describe(),
            "fingerprint": config.fingerprint.describe(),
            "methods": method_names(&config.methods),
            "retention": duration_json(config.gate.policy().retention),
            "finalRetention": duration_json(final_retention(config)),
            "limits": { "requestBody": config.max_request_body, "storedBody": config.max_stored_body },
            "problems": problems.collect::<Vec<_>>(),
        });
        Self { policy }
    }

    /// Adds a route that `layer` protects to the member `routes`, for a router whose routes have different contracts.
    /// The first route that matches a request applies.
    #[must_use]
    pub fn route(self, path: &str, layer: &IdempotencyLayer) -> Self {
        let config = &layer.config;
        self.add_route(json!({
            "methods": method_names(&config.methods),
            "path": path,
            "protected": true,
            "key": config.key.describe(),
            "keyRequired": config.key_required,
            "caller": config.scope.describe(),
            "fingerprint": config.fingerprint.describe(),
            "retention": duration_json(config.gate.policy().retention),
            "finalRetention": duration_json(final_retention(config)),
        }))
    }

    /// Adds an unprotected route to the member `routes`.
    #[must_use]
    pub fn unprotected_route(self, path: &str, methods: &[Method]) -> Self {
        self.add_route(json!({ "methods": method_names(methods), "path": path, "protected": false }))
    }

    fn add_route(mut self, route: Value) -> Self {
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

    /// The page as JSON, or as HTML if the `Accept` field of the request names `text/html`.
    pub fn response(&self, headers: &HeaderMap) -> Response<Bytes> {
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
        let (content_type, body) = if accepted.into_iter().any(|accept| accept.contains("text/html")) {
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
        let problems = PROBLEMS.iter().map(|problem| {
            format!(
                "<tr id=\"{0}\"><td><code>{0}</code></td><td>{1}</td><td>{2}</td><td>{3}</td></tr>\n",
                problem.name,
                problem.status.as_u16(),
                problem.title,
                problem.retry
            )
        });
        let policy = format!("{:#}", self.policy);
        // The policy is last: its text could contain the name of another placeholder.
        include_str!("page.html")
            .replace("{problems}", &problems.collect::<String>())
            .replace("{policy}", &policy.replace('&', "&amp;").replace('<', "&lt;"))
    }
}

fn method_names(methods: &[Method]) -> Vec<&str> {
    methods.iter().map(Method::as_str).collect()
}

/// How long final answers are replayed.
fn final_retention(config: &LayerConfig) -> Duration {
    let policy = config.gate.policy();
    policy.final_retention.unwrap_or(policy.retention)
}

fn duration_json(retention: Duration) -> Value {
    json!({ "seconds": retention.as_secs(), "duration": iso_8601(retention) })
}

/// A duration in the format of ISO 8601: whole days if possible, else seconds.
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
    fn durations_have_the_format_of_iso_8601() {
        let format = |seconds| iso_8601(Duration::from_secs(seconds));
        assert_eq!(
            (format(0), format(90), format(86_400), format(172_800)),
            ("PT0S".into(), "PT90S".into(), "P1D".into(), "P2D".into())
        );
    }
}

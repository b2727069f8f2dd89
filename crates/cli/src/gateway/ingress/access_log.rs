//! The requests in progress: one access log entry each, and a count for each connection.

use std::sync::Arc;
use std::time::Duration;

use hapax::http::{Problem, RecordKeySlot, RequestSummary};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tracing::Span;

use crate::gateway::ingress::IngressRules;
use crate::serve::logs::AccessLine;
use crate::serve::metrics::count_problem;
use crate::serve::otlp::spans;

/// One entry of the access log, written when it is dropped: the request has ended. It contains no query, header field
/// or body, because these may contain keys.
#[derive(Debug)]
pub(crate) struct AccessLogEntry {
    method: Method,
    path: String,
    trace: Option<String>,
    span: Span,
    started_at: std::time::Instant,
    status: Option<StatusCode>,
    outcome: &'static str,
    is_refused: bool,
    /// Filled as soon as the record is known, so that a request without a response has it too.
    rk: RecordKeySlot,
    /// The name of the problem that the client gets, if it gets one.
    problem: Option<&'static str>,
    is_complete: bool,
    rules: Arc<IngressRules>,
    _open: OpenRequest,
}

impl AccessLogEntry {
    /// The rules of the listener that the request came to.
    pub(crate) fn rules(&self) -> &IngressRules {
        &self.rules
    }

    pub(crate) fn new<B>(request: &Request<B>, open: OpenRequest, rules: Arc<IngressRules>) -> Self {
        Self {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            trace: trace_id(request.headers()),
            span: spans::request(request),
            started_at: std::time::Instant::now(),
            status: None,
            outcome: "passed",
            is_refused: false,
            rk: RecordKeySlot::default(),
            problem: None,
            is_complete: false,
            rules,
            _open: open,
        }
    }

    /// The span of the request. It ends with the entry.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Where the layer notes the record of the request.
    pub(crate) fn record_key_slot(&self) -> RecordKeySlot {
        self.rk.clone()
    }

    /// Notes that the gateway refuses the request before it picks a route.
    pub(crate) fn set_refused(&mut self) {
        self.is_refused = true;
        self.outcome = "refused";
    }

    pub(crate) fn set_response<B>(&mut self, response: &Response<B>) {
        self.status = Some(response.status());
        self.problem = response.extensions().get::<Problem>().map(Problem::name);
        if let Some(handled) = response.extensions().get::<RequestSummary>() {
            self.outcome = handled.outcome.as_str();
        } else if let Some(problem) = self.problem {
            // An unprotected request that could not be forwarded.
            self.outcome = problem;
        }
    }

    /// The outcome of the request.
    fn outcome(&self) -> &'static str {
        match self.status {
            Some(_) => self.outcome,
            None if self.rules.is_cutting() => "cut-at-stop",
            None => "client-gone",
        }
    }

    /// Notes that the last byte of the response was handed to the connection.
    pub(crate) fn set_complete(&mut self) {
        self.is_complete = true;
    }
}

impl Drop for AccessLogEntry {
    fn drop(&mut self) {
        let duration = self.started_at.elapsed();
        self.rules.metrics.record_request(self.status, duration);
        if self.problem.is_some() || self.is_refused {
            count_problem(self.problem);
        }
        let rk = self.rk.get();
        spans::end_request(&self.span, self.status, self.outcome(), rk);
        let line = AccessLine {
            method: &self.method,
            path: &self.path,
            status: self.status.map(|status| status.as_u16()),
            outcome: self.outcome(),
            rk,
            ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            trace: self.trace.as_deref(),
            is_cut: self.status.is_some() && !self.is_complete,
        };
        line.log();
    }
}

/// The trace id of a `traceparent` field (W3C Trace Context): version, trace id, parent id and flags.
fn trace_id(headers: &HeaderMap) -> Option<String> {
    let mut parts = headers.get("traceparent")?.to_str().ok()?.split('-');
    let (version, id) = (parts.next()?, parts.next()?);
    let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (version.len() == 2 && id.len() == 32 && is_hex(version) && is_hex(id)).then(|| id.to_owned())
}

/// Counts the open requests of one connection, to detect when the connection is idle.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionActivity(Arc<Mutex<RequestCount>>);

#[derive(Debug)]
struct RequestCount {
    open: usize,
    last_ended_at: Instant,
}

/// Counts as an open request of its connection until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenRequest(ConnectionActivity);

impl Default for ConnectionActivity {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(RequestCount { open: 0, last_ended_at: Instant::now() })))
    }
}

impl ConnectionActivity {
    pub(crate) fn open_request(&self) -> OpenRequest {
        self.0.lock().open += 1;
        OpenRequest(self.clone())
    }

    /// Waits until no request has been open for this long. It polls by timer, so that requests need not wake it.
    pub(crate) async fn wait_until_idle(&self, limit: Duration) {
        let start = self.0.lock().last_ended_at;
        self.wait_until_idle_from(start, limit).await;
    }

    /// Waits until no request has been open for this long, counted from `start` or later.
    pub(crate) async fn wait_until_idle_from(&self, start: Instant, limit: Duration) {
        loop {
            let now = Instant::now();
            let idle_since = self.idle_since().unwrap_or(now).max(start);
            if now.duration_since(idle_since) >= limit {
                return;
            }
            sleep_until(idle_since + limit).await;
        }
    }

    fn idle_since(&self) -> Option<Instant> {
        let requests = self.0.lock();
        (requests.open == 0).then_some(requests.last_ended_at)
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut requests = self.0.0.lock();
        requests.open -= 1;
        requests.last_ended_at = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::time::advance;

    #[test]
    fn a_trace_id_is_32_hexadecimal_digits() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let found = |field: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", field.parse().unwrap());
            trace_id(&headers)
        };
        assert_eq!(found(&format!("00-{id}-00f067aa0ba902b7-01")).as_deref(), Some(id));
        for field in ["", "00", "00-secret", &format!("00-{}-00f067aa0ba902b7-01", id.to_uppercase())] {
            assert_eq!(found(field), None, "{field}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_after_the_limit_without_an_open_request() {
        let limit = Duration::from_secs(10);
        let activity = ConnectionActivity::default();
        let mut idle = Box::pin(activity.wait_until_idle(limit));
        assert!(idle.as_mut().now_or_never().is_none());
        advance(limit / 2).await;
        let open = activity.open_request();
        assert!(idle.as_mut().now_or_never().is_none());
        advance(limit * 5).await;
        assert!(idle.as_mut().now_or_never().is_none(), "a request is open");
        drop(open);
        drop(activity.open_request());
        assert!(idle.as_mut().now_or_never().is_none());
        advance(limit / 2).await;
        assert!(idle.as_mut().now_or_never().is_none());
        advance(limit).await;
        assert!(idle.as_mut().now_or_never().is_some());
    }
}

use std::sync::Arc;
use std::time::Instant;

use hapax::RecordKey;
use hapax::http::Handled;
use http::{HeaderMap, Method, Request, Response, StatusCode};

use crate::gateway::ingress::activity::OpenRequest;
use crate::ops::metrics::ListenerMetrics;

/// One line of the access log, written when the request is over. It has no query, no field and no body: keys may stand in them.
#[derive(Debug)]
pub(crate) struct AccessLogEntry {
    method: Method,
    path: String,
    trace: Option<String>,
    began: Instant,
    status: Option<StatusCode>,
    outcome: &'static str,
    rk: Option<RecordKey>,
    is_whole: bool,
    meters: Arc<ListenerMetrics>,
    _open: OpenRequest,
}

impl AccessLogEntry {
    pub(crate) fn of<B>(request: &Request<B>, open: OpenRequest, meters: Arc<ListenerMetrics>) -> Self {
        Self {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            trace: trace_id(request.headers()),
            began: Instant::now(),
            status: None,
            outcome: "passed",
            rk: None,
            is_whole: false,
            meters,
            _open: open,
        }
    }

    pub(crate) fn refused(&mut self) {
        self.outcome = "refused";
    }

    pub(crate) fn answered<B>(&mut self, response: &Response<B>) {
        self.status = Some(response.status());
        if let Some(handled) = response.extensions().get::<Handled>() {
            self.outcome = handled.outcome;
            self.rk = handled.record_key;
        }
    }

    /// The answer has gone out to its last byte.
    pub(crate) fn ended(&mut self) {
        self.is_whole = true;
    }
}

impl Drop for AccessLogEntry {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        self.meters.request_ended(self.status, took);
        tracing::info!(
            target: "hapax::access",
            method = %self.method,
            path = %self.path,
            // None: the client went away before there was an answer.
            status = self.status.map(|status| status.as_u16()),
            outcome = if self.status.is_some() { self.outcome } else { "client-gone" },
            rk = self.rk.as_ref().map(tracing::field::debug),
            ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            trace = self.trace,
            cut = (self.status.is_some() && !self.is_whole).then_some(true),
            "request"
        );
    }
}

/// The trace id of a `traceparent` field (W3C Trace Context): version, trace id, parent id and flags.
fn trace_id(headers: &HeaderMap) -> Option<String> {
    let mut parts = headers.get("traceparent")?.to_str().ok()?.split('-');
    let (version, id) = (parts.next()?, parts.next()?);
    let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (version.len() == 2 && id.len() == 32 && is_hex(version) && is_hex(id)).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}

//! Sends exports to the collector. Each has a time limit and counts in a metric; one that fails is dropped.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax::runtime::Tokio;
use hapax_net::http::{HttpClient, HttpSettings};
use http::{Request, Response};
use metrics::counter;
use opentelemetry_http::HttpError;
use tokio::runtime::Handle;

use crate::serve::metrics::OTLP_EXPORTS;
use crate::tls;

/// A client for one kind of data. Its requests run in the runtime in which it was made, whoever waits for them.
#[derive(Clone)]
pub(super) struct CollectorClient {
    client: HttpClient,
    runtime: Handle,
    signal: &'static str,
}

impl fmt::Debug for CollectorClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectorClient").field("signal", &self.signal).finish_non_exhaustive()
    }
}

impl CollectorClient {
    pub(super) fn new(url: &str, signal: &'static str, timeout: Duration) -> Result<Self, anyhow::Error> {
        let trust = url.starts_with("https:").then(|| tls::client_config(None, None)).transpose()?;
        let settings = HttpSettings::new(Arc::new(Tokio::current()));
        let client = HttpClient::new(HttpSettings { tls: trust, time_limit: timeout, ..settings })?;
        Ok(Self { client, runtime: Handle::current(), signal })
    }

    /// Sends an export, and logs a failure without the address, which may be confidential.
    pub(super) async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        // The thread that waits has no runtime of its own, so the clock starts in the task.
        let sent = self.runtime.spawn(async move { client.send(request).await }).await;
        let sent = sent.map_err(HttpError::from).and_then(|sent| sent.map_err(HttpError::from));
        let is_taken = sent.as_ref().is_ok_and(|response| response.status().is_success());
        let result = if is_taken { "yes" } else { "failed" };
        counter!(OTLP_EXPORTS, "signal" => self.signal, "result" => result).increment(1);
        if !is_taken {
            let status = sent.as_ref().ok().map(|response| response.status().as_u16());
            let error = sent.as_ref().err().map(tracing::field::display);
            let signal = self.signal;
            tracing::warn!(signal, status, error, "the OTLP collector did not take an export; it is dropped");
        }
        sent
    }
}

#[async_trait]
impl opentelemetry_http::HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.send(request).await
    }
}

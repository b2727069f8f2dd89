//! Sends exports to the collector. Each has a time limit and counts in a metric; one that fails is dropped.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::Handle;

use crate::serve::metrics::count_export;
use crate::tls;

/// How much of an answer of the collector is read.
const MAX_ANSWER: usize = 64 << 10;

/// A client for one kind of data. Its requests run in the runtime in which it was made, whoever waits for them.
#[derive(Clone)]
pub(super) struct CollectorClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
    signal: &'static str,
    timeout: Duration,
}

impl fmt::Debug for CollectorClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectorClient").field("signal", &self.signal).finish_non_exhaustive()
    }
}

impl CollectorClient {
    pub(super) fn new(url: &str, signal: &'static str, timeout: Duration) -> Result<Self, anyhow::Error> {
        let trust = if url.starts_with("https:") { tls::client_config(None, None)? } else { tls::unused_config()? };
        let connector = HttpsConnectorBuilder::new().with_tls_config(trust).https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, runtime: Handle::current(), signal, timeout })
    }

    /// Sends an export, and logs a failure without the address, which may be confidential.
    pub(super) async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (client, timeout) = (self.client.clone(), self.timeout);
        let sending = async move {
            let response = client.request(request.map(Full::new)).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        };
        // The thread that waits has no runtime of its own, so the clock starts in the task.
        let sent = self.runtime.spawn(async move { tokio::time::timeout(timeout, sending).await }).await;
        let sent = sent.map_err(HttpError::from).and_then(|sent| sent.map_err(HttpError::from)).flatten();
        let is_taken = sent.as_ref().is_ok_and(|response| response.status().is_success());
        count_export(self.signal, is_taken);
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
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.send(request).await
    }
}

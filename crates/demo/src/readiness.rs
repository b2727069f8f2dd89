//! Asks a gateway whether it can use its store.

use std::net::SocketAddr;

use anyhow::Result;
use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Reads `/readyz`.
#[derive(Debug)]
pub(super) struct ReadinessClient(Client<HttpConnector, Empty<Bytes>>);

/// The response of `/readyz`.
#[derive(Debug)]
pub(super) enum Readiness {
    Ready,
    NotReady(String),
}

impl ReadinessClient {
    pub(super) fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }

    /// Asks the gateway with this admin address.
    pub(super) async fn ask(&self, admin: SocketAddr) -> Result<Readiness> {
        let uri = Uri::try_from(format!("http://{admin}/readyz"))?;
        let (head, body) = self.0.get(uri).await?.into_parts();
        if head.status.is_success() {
            return Ok(Readiness::Ready);
        }
        let reason = String::from_utf8_lossy(&body.collect().await?.to_bytes()).trim_end().to_owned();
        Ok(Readiness::NotReady(reason.strip_prefix("not ready: ").map(str::to_owned).unwrap_or(reason)))
    }
}

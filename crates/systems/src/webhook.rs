//! Endpoints of webhooks.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use async_trait::async_trait;
use hapax::brokers::{WebhookEndpoint, WebhookSecret, WebhookSink, WebhookSinkConfig};
use hapax::outbox::{Sink, TopicTemplate};
use hapax::runtime::Runtime;

use crate::sink::NamedSink;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    sink: Some(Offer { form: "https://HOST/PATH", read: |url| Ok(Arc::new(endpoint(url)?)) }),
    ..Offers::NONE
};

/// The name of the endpoint of an https:// sink.
pub const DEFAULT_ENDPOINT: &str = "default";

/// The endpoints by their names.
#[derive(Debug)]
pub(crate) struct Endpoints(pub(crate) BTreeMap<String, EndpointSettings>);

/// Reads `https://HOST/PATH`.
fn endpoint(url: &str) -> Result<Endpoints> {
    if url.starts_with("http:") {
        bail!(
            "everybody on the way reads a webhook over http://; write https://, or an endpoint with \
             allow-http = \"on\" in the file"
        );
    }
    Ok(Endpoints([(DEFAULT_ENDPOINT.into(), EndpointSettings::new(url))].into()))
}

impl Endpoints {
    pub(crate) fn signed_with(&self, secrets: &[u8]) -> Self {
        let signed = |endpoint: &EndpointSettings| EndpointSettings { secrets: secrets.to_vec(), ..endpoint.clone() };
        Self(self.0.iter().map(|(name, endpoint)| (name.clone(), signed(endpoint))).collect())
    }
}

#[async_trait]
impl NamedSink for Endpoints {
    fn name(&self) -> String {
        WebhookSink::NAME.to_owned()
    }

    async fn open(&self, template: Option<TopicTemplate>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn Sink>> {
        let mut config = WebhookSinkConfig::default();
        config.endpoints = self.0.iter().map(|(name, endpoint)| (name.clone(), endpoint.to_endpoint())).collect();
        config.template = template.unwrap_or_default();
        Ok(Arc::new(WebhookSink::open(config, runtime)?))
    }

    fn endpoints(&self) -> Option<&Endpoints> {
        Some(self)
    }
}

/// An endpoint of webhooks. `Debug` shows neither its secrets nor its URL, whose path may be one.
#[derive(Clone)]
pub struct EndpointSettings {
    /// Where events go.
    pub url: String,
    /// The text of a file with one secret a line.
    pub secrets: Vec<u8>,
    /// The header fields of every request.
    pub headers: Vec<(String, String)>,
    /// How long a request may take.
    pub timeout: Duration,
    /// How many requests run at once.
    pub max_in_flight: usize,
    /// The headers of events that the receiver gets.
    pub forwarded: Vec<String>,
    /// Whether the URL may be an http:// one.
    pub allows_http: bool,
    /// The networks that are used although they are not public.
    pub networks: Vec<String>,
    /// The file with the certificates that are trusted. None: those of the system.
    pub ca: Option<PathBuf>,
}

impl EndpointSettings {
    /// The defaults for this URL, without secrets.
    pub fn new(url: &str) -> Self {
        let endpoint = WebhookEndpoint::new(url);
        Self {
            url: endpoint.url,
            secrets: Vec::new(),
            headers: endpoint.headers,
            timeout: endpoint.time_limit,
            max_in_flight: endpoint.max_in_flight,
            forwarded: endpoint.forwarded,
            allows_http: endpoint.allow_http,
            networks: endpoint.allowed_networks,
            ca: endpoint.authorities,
        }
    }

    fn to_endpoint(&self) -> WebhookEndpoint {
        let mut endpoint = WebhookEndpoint::new(&self.url);
        endpoint.secrets = WebhookSecret::from_lines(&String::from_utf8_lossy(&self.secrets));
        endpoint.headers = self.headers.clone();
        endpoint.forwarded = self.forwarded.clone();
        endpoint.time_limit = self.timeout;
        endpoint.max_in_flight = self.max_in_flight;
        endpoint.allow_http = self.allows_http;
        endpoint.allowed_networks = self.networks.clone();
        endpoint.authorities = self.ca.clone();
        endpoint
    }
}

impl fmt::Debug for EndpointSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointSettings").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

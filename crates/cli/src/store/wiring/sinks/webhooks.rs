use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hapax::brokers::{WebhookEndpoint, WebhookSecret, WebhookSink, WebhookSinkConfig};
use hapax::outbox::{Sink, TopicTemplate};
use hapax::runtime::Runtime;

/// An endpoint of webhooks. `Debug` shows neither its secrets nor its URL, whose path may be one.
#[derive(Clone)]
pub(crate) struct EndpointSettings {
    pub(crate) url: String,
    /// The text of a file with one secret a line.
    pub(crate) secrets: Vec<u8>,
    /// The header fields of every request.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) timeout: Duration,
    pub(crate) max_in_flight: usize,
    /// The headers of events that the receiver gets.
    pub(crate) forwarded: Vec<String>,
    pub(crate) allows_http: bool,
    /// The networks that are used although they are not public.
    pub(crate) networks: Vec<String>,
    pub(crate) ca: Option<PathBuf>,
}

impl EndpointSettings {
    /// The defaults for this URL, without secrets.
    pub(crate) fn new(url: &str) -> Self {
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

/// Opens the endpoints. Sends nothing.
pub(super) fn open(
    endpoints: &BTreeMap<String, EndpointSettings>,
    template: TopicTemplate,
    runtime: Arc<dyn Runtime>,
) -> Result<Arc<dyn Sink>, hapax::Error> {
    let mut config = WebhookSinkConfig::default();
    config.endpoints = endpoints.iter().map(|(name, endpoint)| (name.clone(), endpoint.to_endpoint())).collect();
    config.template = template;
    Ok(Arc::new(WebhookSink::open(config, runtime)?))
}

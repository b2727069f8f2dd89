//! The endpoints as the user gives them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::outbox::TopicTemplate;

use crate::webhook::{ResolveHost, SystemResolver, WebhookSecret};

/// The configuration of a [`WebhookSink`](crate::WebhookSink).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WebhookSinkConfig {
    /// The endpoints by their names.
    pub endpoints: BTreeMap<String, WebhookEndpoint>,
    /// Maps an event to the name of its endpoint. Default: its topic.
    pub template: TopicTemplate,
    /// The largest event that is sent, in bytes of payload and headers. Default: 16 MiB, more than an outbox takes.
    pub max_len: usize,
    /// Resolves the names of hosts. Default: the system.
    pub resolver: Arc<dyn ResolveHost>,
}

impl Default for WebhookSinkConfig {
    fn default() -> Self {
        Self {
            endpoints: BTreeMap::new(),
            template: TopicTemplate::default(),
            max_len: 16 * 1024 * 1024,
            resolver: Arc::new(SystemResolver),
        }
    }
}

/// Where the events of one name go. `Debug` hides the values of the headers, and the URL, whose path may be a secret.
#[derive(Clone)]
#[non_exhaustive]
pub struct WebhookEndpoint {
    /// An `https` URL without user and password. Redirects are not followed, so it names the final place.
    pub url: String,
    /// Every one signs each request, so that the receiver can change from one secret to the next at any time. At least
    /// one.
    pub secrets: Vec<WebhookSecret>,
    /// Headers of every request, for instance `authorization`.
    pub headers: Vec<(String, String)>,
    /// Own headers of events that the receiver gets, beside CloudEvents attributes, `traceparent` and `tracestate`.
    pub forwarded: Vec<String>,
    /// How long a request may take, from the resolution of the name to the head of the answer. Default: 15 s.
    pub time_limit: Duration,
    /// How many requests run at once. Default: 64.
    pub max_in_flight: usize,
    /// Whether the URL may be an `http` one, whose requests everybody on the way can read. Default: no.
    pub allow_http: bool,
    /// Networks whose addresses are used although they are not public, for instance `10.1.0.0/16`. Default: none.
    pub allowed_networks: Vec<String>,
    /// A PEM file with the authorities that may have signed the certificate of the endpoint. Default: those of the
    /// system.
    pub authorities: Option<PathBuf>,
}

impl fmt::Debug for WebhookEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("WebhookEndpoint")
            .field("headers", &headers)
            .field("time_limit", &self.time_limit)
            .field("max_in_flight", &self.max_in_flight)
            .finish_non_exhaustive()
    }
}

impl WebhookEndpoint {
    /// An endpoint with this URL, without secrets.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            secrets: Vec::new(),
            headers: Vec::new(),
            forwarded: Vec::new(),
            time_limit: Duration::from_secs(15),
            max_in_flight: 64,
            allow_http: false,
            allowed_networks: Vec::new(),
            authorities: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_the_name_of_a_header_and_neither_its_value_nor_the_url() {
        let mut endpoint = WebhookEndpoint::new("https://shop.example/hidden");
        endpoint.headers.push(("authorization".into(), "Bearer hidden".into()));
        let shown = format!("{endpoint:?}");
        assert!(shown.contains("authorization") && !shown.contains("hidden"), "{shown}");
    }
}

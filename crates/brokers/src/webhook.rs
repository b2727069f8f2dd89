//! Webhooks: a POST to the endpoint of each event, signed as Standard Webhooks says.
//!
//! ```text
//! config.rs     the endpoints as the user gives them
//! addresses.rs  which addresses are used, checked after a name is resolved; pure
//! secrets.rs    secrets and signatures; pure
//! request.rs    from an event to a request; pure
//! answers.rs    what an answer means; pure. answers.md numbers its rows
//! health.rs     whether an endpoint is tried now: breaker, Retry-After, answers that refuse everything; pure
//! endpoint.rs   one endpoint: its room, its client and its health
//! ```

mod addresses;
mod answers;
mod config;
mod endpoint;
mod health;
mod request;
mod secrets;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use hapax_core::ledger::Event;
use hapax_core::outbox::{OutgoingEvent, Published, Sink, TopicTemplate};
use hapax_core::runtime::Runtime;
use hapax_core::store::Finding;
use hapax_core::{Error, ErrorKind, Result};

use self::endpoint::{Endpoint, EndpointSurroundings};

pub use self::config::{WebhookEndpoint, WebhookSinkConfig};
pub use self::secrets::WebhookSecret;
pub use hapax_net::http::{ResolveHost, SystemResolver};

/// Publishes each event as a signed POST to an endpoint.
///
/// The template maps the topic of an event to the name of its endpoint. An event for an endpoint that the configuration
/// does not have is refused: its key is parked with a reason that names the endpoint, and goes on when the operator has
/// added the endpoint and resumes the key.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax::Error> {
/// use std::sync::Arc;
/// use hapax::brokers::{WebhookEndpoint, WebhookSecret, WebhookSink, WebhookSinkConfig};
/// use hapax::runtime::Tokio;
///
/// let mut orders = WebhookEndpoint::new("https://shop.example/hooks/orders");
/// orders.secrets = vec![WebhookSecret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")];
/// let mut config = WebhookSinkConfig::default();
/// config.endpoints.insert("orders".into(), orders);
/// let sink = WebhookSink::open(config, Arc::new(Tokio::current()))?;
/// # drop(sink);
/// # Ok(())
/// # }
/// ```
pub struct WebhookSink {
    name: Arc<str>,
    template: TopicTemplate,
    max_len: usize,
    endpoints: BTreeMap<Arc<str>, Endpoint>,
}

impl WebhookSink {
    /// The name of the sink in logs and metrics.
    pub const NAME: &str = "webhook";

    /// Checks the configuration. Sends nothing, and resolves no name.
    ///
    /// # Errors
    /// `Invalid` with the name of the endpoint: a URL, a secret, a header or a network that cannot be used, or no
    /// endpoint at all.
    pub fn open(config: WebhookSinkConfig, runtime: Arc<dyn Runtime>) -> Result<Self> {
        if config.endpoints.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a webhook sink needs at least one endpoint"));
        }
        let around = EndpointSurroundings { resolver: config.resolver, runtime, count: config.endpoints.len() };
        let open = |(name, endpoint): (String, WebhookEndpoint)| {
            Endpoint::open(&name, &endpoint, &around).map(|opened| (name.into(), opened))
        };
        let endpoints = config.endpoints.into_iter().map(open).collect::<Result<_>>()?;
        Ok(Self { name: Self::NAME.into(), template: config.template, max_len: config.max_len, endpoints })
    }
}

#[async_trait]
impl Sink for WebhookSink {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn max_len(&self) -> usize {
        self.max_len.min(Event::MAX_LEN)
    }

    fn endpoint(&self, event: &OutgoingEvent) -> Option<Arc<str>> {
        let (name, _) = self.endpoints.get_key_value(&*self.template.name(event))?;
        Some(Arc::clone(name))
    }

    /// None: whether a receiver recognizes a repeated `webhook-id`, and for how long, is its own matter.
    fn window(&self) -> Option<Duration> {
        None
    }

    /// Resolves the host of each endpoint, and checks its addresses. Sends nothing: a receiver would take a request
    /// for an event.
    async fn check(&self) -> Result<Vec<Finding>> {
        Ok(join_all(self.endpoints.values().map(Endpoint::check)).await.into_iter().flatten().collect())
    }

    async fn undeliverable(&self) -> Vec<String> {
        join_all(self.endpoints.values().map(Endpoint::undeliverable)).await.into_iter().flatten().collect()
    }

    async fn publish(&self, event: &Arc<OutgoingEvent>) -> Published {
        let name = self.template.name(event);
        let Some(endpoint) = self.endpoints.get(&*name) else {
            return Published::Refused(format!("no endpoint has the name `{name}`: add it, then resume the key"));
        };
        if event.size() > self.max_len {
            let (size, max_len) = (event.size(), self.max_len);
            return Published::Refused(format!("payload and headers have {size} bytes, more than {max_len}"));
        }
        endpoint.publish(event).await
    }

    async fn close(&self) {
        join_all(self.endpoints.values().map(Endpoint::close)).await;
    }
}

impl fmt::Debug for WebhookSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookSink").field("endpoints", &self.endpoints.keys()).finish_non_exhaustive()
    }
}

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use hapax::brokers::{WebhookEndpoint, WebhookSecret};
use hapax::outbox::{Sink, TopicTemplate};
use hapax::runtime::Runtime;

use crate::table::UrlRole;
use crate::webhook::Endpoints;

/// A sink of events that a URL names. It is not open.
#[async_trait]
pub(crate) trait NamedSink: fmt::Debug + Send + Sync {
    /// The name that the open sink has in logs and metrics.
    fn name(&self) -> String;

    /// Opens the sink. Without a template, it has the one of the URL.
    async fn open(&self, template: Option<TopicTemplate>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn Sink>>;

    /// Refuses a database without tables, which opening the sink would create.
    fn refuse_missing_tables(&self) -> Result<()> {
        Ok(())
    }

    /// The endpoints of webhooks, which sign what they publish.
    fn endpoints(&self) -> Option<&Endpoints> {
        None
    }
}

/// A parsed URL of a sink of events, and the template of its topics.
#[derive(Clone, Debug)]
pub struct SinkUrl {
    named: Arc<dyn NamedSink>,
    /// None: that of the URL.
    template: Option<TopicTemplate>,
}

const ROLE: UrlRole<dyn NamedSink> = UrlRole { name: "sink", offer: |offers| offers.sink.as_ref() };

impl SinkUrl {
    /// The URLs of sinks in this build, for help and errors.
    pub fn forms() -> String {
        ROLE.forms()
    }

    /// Endpoints of webhooks by their names. The topic of an event is the name of its endpoint.
    pub fn webhooks(endpoints: BTreeMap<String, WebhookEndpoint>) -> Self {
        Self { named: Arc::new(Endpoints(endpoints)), template: None }
    }

    /// The same sink with another template of its topics.
    #[must_use]
    pub fn with_topic(self, template: TopicTemplate) -> Self {
        Self { template: Some(template), ..self }
    }

    /// The template of its topics. None: that of the URL.
    pub fn template(&self) -> Option<&TopicTemplate> {
        self.template.as_ref()
    }

    /// The name that the open sink has in logs and metrics.
    pub fn name(&self) -> String {
        self.named.name()
    }

    /// The names of its endpoints. Only webhooks have them.
    pub fn endpoints(&self) -> impl Iterator<Item = &str> + Clone {
        self.named.endpoints().into_iter().flat_map(|endpoints| endpoints.0.keys().map(String::as_str))
    }

    /// Whether what it publishes is signed with a secret.
    pub fn is_signed(&self) -> bool {
        self.named.endpoints().is_some()
    }

    /// The same sink, which signs with these secrets. A sink that does not sign stays as it is.
    #[must_use]
    pub fn signed_with(self, secrets: &[WebhookSecret]) -> Self {
        match self.named.endpoints() {
            Some(endpoints) => Self { named: Arc::new(endpoints.signed_with(secrets)), ..self },
            None => self,
        }
    }

    /// Refuses a file without queues, which opening the sink would create. Writes nothing.
    ///
    /// # Errors
    /// The error names the file.
    pub fn refuse_missing_tables(&self) -> Result<()> {
        self.named.refuse_missing_tables()
    }

    /// Opens the sink.
    ///
    /// # Errors
    /// As the sink says.
    pub async fn open(&self, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn Sink>> {
        self.named.open(self.template.clone(), runtime).await
    }
}

impl FromStr for SinkUrl {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self> {
        Ok(Self { named: ROLE.read(url)?, template: None })
    }
}

#[cfg(all(test, feature = "nats", feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_sink() {
        for url in [
            "sqlite://orders.db?queue=orders",
            "sqlite:///var/lib/orders.db",
            "nats://relay:secret@nats.example",
            "https://shop.example/hooks",
        ] {
            url.parse::<SinkUrl>().unwrap();
        }
        for (url, remedy) in [
            ("orders.db", "must be a URL"),
            ("sqlite://?queue=orders", "?queue=NAME"),
            ("sqlite://orders.db?table=orders", "?queue=NAME"),
            ("sqlite://orders.db?queue={other}", "{topic}"),
            ("nats://relay:secret@nats.example/orders?durable=billing", "durable"),
            ("http://shop.example/hooks", "https://"),
            ("gopher://broker.example", "there is no sink for the scheme"),
        ] {
            let error = format!("{:#}", url.parse::<SinkUrl>().unwrap_err());
            assert!(error.contains(remedy) && !error.contains("secret"), "{url}: {error}");
        }
    }
}

//! Endpoints of webhooks.

use std::collections::BTreeMap;
use std::sync::Arc;

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
pub(crate) struct Endpoints(pub(crate) BTreeMap<String, WebhookEndpoint>);

/// Reads `https://HOST/PATH`.
fn endpoint(url: &str) -> Result<Endpoints> {
    if url.starts_with("http:") {
        bail!(
            "everybody on the way reads a webhook over http://; write https://, or an endpoint with \
             allow-http = \"on\" in the file"
        );
    }
    Ok(Endpoints([(DEFAULT_ENDPOINT.into(), WebhookEndpoint::new(url))].into()))
}

impl Endpoints {
    pub(crate) fn signed_with(&self, secrets: &[WebhookSecret]) -> Self {
        let mut endpoints = self.0.clone();
        for endpoint in endpoints.values_mut() {
            endpoint.secrets = secrets.to_vec();
        }
        Self(endpoints)
    }
}

#[async_trait]
impl NamedSink for Endpoints {
    fn name(&self) -> String {
        WebhookSink::NAME.to_owned()
    }

    async fn open(&self, template: Option<TopicTemplate>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn Sink>> {
        let mut config = WebhookSinkConfig::default();
        config.endpoints = self.0.clone();
        config.template = template.unwrap_or_default();
        Ok(Arc::new(WebhookSink::open(config, runtime)?))
    }

    fn endpoints(&self) -> Option<&Endpoints> {
        Some(self)
    }
}

//! Streams of NATS JetStream.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use hapax::broker::Source;
use hapax::brokers::{NatsSink, NatsSinkConfig, NatsSource, NatsUrl};
use hapax::outbox::{Sink, TopicTemplate};
use hapax::runtime::Runtime;

use crate::sink::NamedSink;
use crate::source::NamedSource;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    source: Some(Offer { form: "nats://HOST/STREAM?durable=NAME", read: |url| Ok(Arc::new(url.parse::<NatsUrl>()?)) }),
    sink: Some(Offer { form: "nats://HOST[/SUBJECT]", read: |url| Ok(Arc::new(url.parse::<NatsSinkConfig>()?)) }),
    ..Offers::NONE
};

#[async_trait]
impl NamedSource for NatsUrl {
    fn group(&self) -> &str {
        self.durable()
    }

    fn ordered_by_header(&self, name: &str) -> Result<Arc<dyn NamedSource>> {
        Ok(Arc::new(self.clone().ordered_by_header(name)))
    }

    async fn open(&self, runtime: Arc<dyn Runtime>, _lease: Duration) -> hapax::Result<Box<dyn Source>> {
        Ok(Box::new(NatsSource::connect(self, runtime).await?))
    }
}

#[async_trait]
impl NamedSink for NatsSinkConfig {
    fn name(&self) -> String {
        self.name()
    }

    async fn open(&self, template: Option<TopicTemplate>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn Sink>> {
        let config = template.into_iter().fold(self.clone(), Self::topic);
        Ok(Arc::new(NatsSink::open(config, runtime).await?))
    }
}

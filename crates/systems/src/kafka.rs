//! Topics of Kafka.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use async_trait::async_trait;
use hapax::broker::Source;
use hapax::brokers::{KafkaSink, KafkaSinkConfig, KafkaSource, KafkaUrl};
use hapax::outbox::{Sink, TopicTemplate};
use hapax::runtime::Runtime;

use crate::sink::NamedSink;
use crate::source::NamedSource;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    source: Some(Offer { form: "kafka://HOST/TOPIC?group=NAME", read: |url| Ok(Arc::new(url.parse::<KafkaUrl>()?)) }),
    sink: Some(Offer { form: "kafka://HOST[/TOPIC]", read: |url| Ok(Arc::new(url.parse::<KafkaSinkConfig>()?)) }),
    ..Offers::NONE
};

#[async_trait]
impl NamedSource for KafkaUrl {
    fn group(&self) -> &str {
        self.group()
    }

    fn ordered_by_header(&self, _name: &str) -> Result<Arc<dyn NamedSource>> {
        bail!("Kafka orders by the key of a record; remove the setting")
    }

    async fn open(&self, runtime: Arc<dyn Runtime>, _lease: Duration) -> hapax::Result<Box<dyn Source>> {
        Ok(Box::new(KafkaSource::connect(self, runtime).await?))
    }
}

#[async_trait]
impl NamedSink for KafkaSinkConfig {
    fn name(&self) -> String {
        self.name()
    }

    async fn open(&self, template: Option<TopicTemplate>, runtime: Arc<dyn Runtime>) -> hapax::Result<Arc<dyn Sink>> {
        let config = template.into_iter().fold(self.clone(), Self::topic);
        Ok(Arc::new(KafkaSink::open(config, runtime).await?))
    }
}

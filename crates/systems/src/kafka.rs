//! Topics of Kafka.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use async_trait::async_trait;
use hapax::broker::Source;
use hapax::brokers::{KafkaSource, KafkaUrl};
use hapax::runtime::Runtime;

use crate::source::NamedSource;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    source: Some(Offer { form: "kafka://HOST/TOPIC?group=NAME", read: |url| Ok(Arc::new(url.parse::<KafkaUrl>()?)) }),
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

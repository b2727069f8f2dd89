//! Streams of NATS JetStream.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use hapax::broker::Source;
use hapax::brokers::{NatsSource, NatsUrl};
use hapax::runtime::Runtime;

use crate::source::NamedSource;
use crate::table::{Offer, Offers};

pub(crate) const OFFERS: Offers = Offers {
    source: Some(Offer { form: "nats://HOST/STREAM?durable=NAME", read: |url| Ok(Arc::new(url.parse::<NatsUrl>()?)) }),
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

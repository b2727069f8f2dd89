use std::future::IntoFuture;

use async_nats::jetstream;
use futures_util::future::try_join_all;

use super::{StagePlaces, payment};

/// Publishes events itself, after the commit: an event is lost if the process dies in between.
pub(super) struct DirectPublisher {
    jetstream: jetstream::Context,
    subject: String,
}

impl DirectPublisher {
    pub(super) async fn connect(places: &StagePlaces) -> anyhow::Result<Self> {
        let jetstream = jetstream::new(async_nats::connect(&places.nats).await?);
        Ok(Self { jetstream, subject: places.subject.clone() })
    }

    /// Publishes the events of these payments, and waits until the stream has confirmed them.
    pub(super) async fn publish(&self, numbers: &[u64]) -> anyhow::Result<()> {
        let mut sent = Vec::with_capacity(numbers.len());
        for number in numbers {
            sent.push(self.jetstream.publish(self.subject.clone(), payment(*number).into()).await?);
        }
        try_join_all(sent.into_iter().map(IntoFuture::into_future)).await?;
        Ok(())
    }
}

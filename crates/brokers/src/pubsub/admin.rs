use std::sync::Arc;

use hapax_core::Result;
use hapax_core::runtime::Runtime;

use super::PubSubUrl;
use super::answers::PubSubFailure;
use super::api::PubSubApi;

impl PubSubUrl {
    /// Creates a topic, and its subscription, which keeps the order of keys. Does nothing if they exist. It needs the
    /// rights `pubsub.topics.create`, `pubsub.topics.attachSubscription` and `pubsub.subscriptions.create`.
    ///
    /// # Errors
    /// - `NotApplied`: the service cannot be reached now, or refuses it.
    /// - `Unusable`: there are no credentials, or they have no right to do this.
    ///
    /// # Cancel safety
    /// If dropped, both may have been created.
    pub async fn create_subscription(&self, topic: &str, runtime: Arc<dyn Runtime>) -> Result<()> {
        let api = PubSubApi::new(&self.place, &runtime)?;
        let created = api.create_topic(topic).await;
        created.or_else(|failure| unless(failure, PubSubFailure::is_there, &format!("the topic `{topic}`")))?;
        let created = api.subscription(self.subscription()).create(topic).await;
        created.or_else(|failure| unless(failure, PubSubFailure::is_there, &self.what()))
    }

    /// Deletes the subscription with its messages, and a topic. Does nothing if they are missing. It needs the rights
    /// `pubsub.subscriptions.delete` and `pubsub.topics.delete`.
    ///
    /// # Errors
    /// As [`create_subscription`](Self::create_subscription).
    ///
    /// # Cancel safety
    /// If dropped, both may have been deleted.
    pub async fn delete_subscription(&self, topic: &str, runtime: Arc<dyn Runtime>) -> Result<()> {
        let api = PubSubApi::new(&self.place, &runtime)?;
        let deleted = api.subscription(self.subscription()).delete().await;
        deleted.or_else(|failure| unless(failure, PubSubFailure::is_missing, &self.what()))?;
        let deleted = api.delete_topic(topic).await;
        deleted.or_else(|failure| unless(failure, PubSubFailure::is_missing, &format!("the topic `{topic}`")))
    }

    fn what(&self) -> String {
        format!("the subscription `{}`", self.subscription())
    }
}

fn unless(failure: PubSubFailure, is_fine: fn(&PubSubFailure) -> bool, what: &str) -> Result<()> {
    if is_fine(&failure) { Ok(()) } else { Err(failure.asked(what)) }
}

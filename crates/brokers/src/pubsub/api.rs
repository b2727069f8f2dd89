//! The calls of Pub/Sub.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::Result;
use hapax_core::runtime::{BoxFuture, Runtime};
use hapax_net::google::{GoogleCall, GoogleClient, GoogleCredentials, GoogleEndpoint, GoogleStream};
use prost::Message;

use super::answers::PubSubFailure;
use super::messages::{
    AcknowledgeRequest, ModifyAckDeadlineRequest, Nothing, PublishRequest, PublishResponse, StreamingPullRequest,
    StreamingPullResponse, Subscription, SubscriptionName, TopicMessage, TopicName,
};
use super::url::PubSubPlace;

/// How long an answer may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How long the answer to a settlement may take. Others about the same deliveries wait for it, so several must fit into
/// a lease.
const SETTLED_WITHIN: Duration = Duration::from_secs(3);

/// How long a connection may take. Less than a settlement, so that it is known that nothing was sent.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// The result of a call.
pub(super) type PubSubResult<T> = Result<T, PubSubFailure>;

/// The topics and subscriptions of a project.
#[derive(Clone, Debug)]
pub(super) struct PubSubApi {
    client: GoogleClient,
    project: Arc<str>,
}

impl PubSubApi {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// `Unusable` if the system has no authorities for TLS.
    pub(super) fn new(place: &PubSubPlace, runtime: &Arc<dyn Runtime>) -> Result<Self> {
        let credentials = match place.is_google() {
            true => GoogleCredentials::from_usual_places(Arc::clone(runtime))?,
            false => GoogleCredentials::of_a_stand_in(),
        };
        let (uri, connect_within) = (place.endpoint().to_owned(), CONNECT_WITHIN);
        let client = GoogleClient::new(GoogleEndpoint { uri, credentials, connect_within }, Arc::clone(runtime))?;
        Ok(Self { client, project: place.project().into() })
    }

    /// The full name of a topic.
    fn topic_name(&self, topic: &str) -> String {
        format!("projects/{}/topics/{topic}", self.project)
    }

    /// A subscription of this name, which need not exist.
    pub(super) fn subscription(&self, name: &str) -> NamedSubscription {
        let full_name = format!("projects/{}/subscriptions/{name}", self.project);
        NamedSubscription { api: self.clone(), full_name: full_name.into() }
    }

    /// Whether there is a topic.
    pub(super) async fn find_topic(&self, topic: &str) -> PubSubResult<()> {
        let name = self.topic_name(topic);
        let request = TopicName { name: name.clone() };
        self.call::<_, TopicName>("/google.pubsub.v1.Publisher/GetTopic", ("topic", name), request).await.map(drop)
    }

    /// Creates a topic.
    pub(super) async fn create_topic(&self, topic: &str) -> PubSubResult<()> {
        let name = self.topic_name(topic);
        let request = TopicName { name: name.clone() };
        self.call::<_, TopicName>("/google.pubsub.v1.Publisher/CreateTopic", ("name", name), request).await.map(drop)
    }

    /// Deletes a topic.
    pub(super) async fn delete_topic(&self, topic: &str) -> PubSubResult<()> {
        let name = self.topic_name(topic);
        let request = TopicName { name: name.clone() };
        self.call::<_, Nothing>("/google.pubsub.v1.Publisher/DeleteTopic", ("topic", name), request).await.map(drop)
    }

    /// Publishes messages, all or none of them. Returns their ids.
    pub(super) async fn publish(
        &self,
        topic: &str,
        messages: Vec<TopicMessage>,
        limit: Duration,
    ) -> PubSubResult<Vec<String>> {
        let topic = self.topic_name(topic);
        let request = PublishRequest { topic: topic.clone(), messages };
        let (path, route) = ("/google.pubsub.v1.Publisher/Publish", ("topic", topic));
        let called = self.client.call::<_, PublishResponse>(GoogleCall { path, route, request, limit }).await;
        Ok(called.map_err(PubSubFailure::of)?.message_ids)
    }

    async fn call<Q, A>(&self, path: &'static str, route: (&'static str, String), request: Q) -> PubSubResult<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let call = GoogleCall { path, route, request, limit: PATIENCE };
        self.client.call(call).await.map_err(PubSubFailure::of)
    }
}

/// A subscription.
#[derive(Clone, Debug)]
pub(super) struct NamedSubscription {
    api: PubSubApi,
    full_name: Arc<str>,
}

/// How a stream of messages begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamLimits {
    pub(super) deadline: Duration,
    /// As many messages and bytes may be delivered and not settled.
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

impl NamedSubscription {
    fn route(&self) -> (&'static str, String) {
        ("subscription", self.full_name.to_string())
    }

    /// Looks at the subscription.
    pub(super) async fn find(&self) -> PubSubResult<Subscription> {
        let request = SubscriptionName { name: self.full_name.to_string() };
        self.api.call("/google.pubsub.v1.Subscriber/GetSubscription", self.route(), request).await
    }

    /// Creates the subscription of a topic, which keeps the order of keys.
    pub(super) async fn create(&self, topic: &str) -> PubSubResult<()> {
        let request = Subscription {
            name: self.full_name.to_string(),
            topic: self.api.topic_name(topic),
            ack_deadline_seconds: 10,
            enable_message_ordering: true,
            ..Subscription::default()
        };
        let route = ("name", self.full_name.to_string());
        let path = "/google.pubsub.v1.Subscriber/CreateSubscription";
        self.api.call::<_, Subscription>(path, route, request).await.map(drop)
    }

    /// Deletes the subscription with its messages.
    pub(super) async fn delete(&self) -> PubSubResult<()> {
        let request = SubscriptionName { name: self.full_name.to_string() };
        let path = "/google.pubsub.v1.Subscriber/DeleteSubscription";
        self.api.call::<_, Nothing>(path, self.route(), request).await.map(drop)
    }

    /// Begins a stream of messages. It returns with the first ones. `stopped` tells the service that no more are
    /// wanted.
    pub(super) async fn stream(
        &self,
        limits: StreamLimits,
        client_id: String,
        stopped: impl Fn() -> BoxFuture<'static, ()> + Send + Sync,
    ) -> PubSubResult<GoogleStream<StreamingPullResponse>> {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let request = StreamingPullRequest {
            subscription: self.full_name.to_string(),
            stream_ack_deadline_seconds: i32::try_from(limits.deadline.as_secs()).unwrap_or(i32::MAX),
            client_id,
            max_outstanding_messages: number(limits.messages),
            max_outstanding_bytes: number(limits.bytes),
        };
        let path = "/google.pubsub.v1.Subscriber/StreamingPull";
        // A stream has no limit.
        let call = GoogleCall { path, route: self.route(), request, limit: PATIENCE };
        self.api.client.stream(call, stopped).await.map_err(PubSubFailure::of)
    }

    /// Acknowledges messages, given by their ack ids.
    pub(super) async fn acknowledge(&self, ack_ids: Vec<String>) -> PubSubResult<()> {
        let request = AcknowledgeRequest { subscription: self.full_name.to_string(), ack_ids };
        self.settle("/google.pubsub.v1.Subscriber/Acknowledge", request).await
    }

    /// Moves the ends of leases: to so many seconds from now.
    pub(super) async fn modify_deadline(&self, ack_ids: Vec<String>, seconds: u64) -> PubSubResult<()> {
        let ack_deadline_seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
        let subscription = self.full_name.to_string();
        let request = ModifyAckDeadlineRequest { subscription, ack_deadline_seconds, ack_ids };
        self.settle("/google.pubsub.v1.Subscriber/ModifyAckDeadline", request).await
    }

    async fn settle<Q: Message + Clone + 'static>(&self, path: &'static str, request: Q) -> PubSubResult<()> {
        let call = GoogleCall { path, route: self.route(), request, limit: SETTLED_WITHIN };
        self.api.client.call::<_, Nothing>(call).await.map(drop).map_err(PubSubFailure::of)
    }
}

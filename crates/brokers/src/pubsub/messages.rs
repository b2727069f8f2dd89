//! The messages of the API, as `google/pubsub/v1/pubsub.proto` numbers their fields. Fields that are not used are left
//! out.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

/// A message of a topic.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TopicMessage {
    #[prost(bytes = "bytes", tag = "1")]
    pub(super) data: Bytes,
    #[prost(btree_map = "string, string", tag = "2")]
    pub(super) attributes: BTreeMap<String, String>,
    #[prost(string, tag = "3")]
    pub(super) message_id: String,
    #[prost(message, optional, tag = "4")]
    pub(super) publish_time: Option<ProtoTime>,
    #[prost(string, tag = "5")]
    pub(super) ordering_key: String,
}

/// A time since the unix epoch, or a duration.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct ProtoTime {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PulledMessage {
    #[prost(string, tag = "1")]
    pub(super) ack_id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) message: Option<TopicMessage>,
    /// 0 if the service does not count.
    #[prost(int32, tag = "3")]
    pub(super) delivery_attempt: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StreamingPullRequest {
    #[prost(string, tag = "1")]
    pub(super) subscription: String,
    #[prost(int32, tag = "5")]
    pub(super) stream_ack_deadline_seconds: i32,
    /// Streams with one id are one client.
    #[prost(string, tag = "6")]
    pub(super) client_id: String,
    #[prost(int64, tag = "7")]
    pub(super) max_outstanding_messages: i64,
    #[prost(int64, tag = "8")]
    pub(super) max_outstanding_bytes: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StreamingPullResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) received_messages: Vec<PulledMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AcknowledgeRequest {
    #[prost(string, tag = "1")]
    pub(super) subscription: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) ack_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModifyAckDeadlineRequest {
    #[prost(string, tag = "1")]
    pub(super) subscription: String,
    #[prost(int32, tag = "3")]
    pub(super) ack_deadline_seconds: i32,
    #[prost(string, repeated, tag = "4")]
    pub(super) ack_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PublishRequest {
    #[prost(string, tag = "1")]
    pub(super) topic: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) messages: Vec<TopicMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PublishResponse {
    #[prost(string, repeated, tag = "1")]
    pub(super) message_ids: Vec<String>,
}

/// A topic, or a request that only names one.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TopicName {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

/// A request that only names a subscription.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SubscriptionName {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Subscription {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) topic: String,
    #[prost(message, optional, tag = "4")]
    pub(super) push_config: Option<PushConfig>,
    #[prost(int32, tag = "5")]
    pub(super) ack_deadline_seconds: i32,
    #[prost(message, optional, tag = "8")]
    pub(super) message_retention_duration: Option<ProtoTime>,
    #[prost(bool, tag = "10")]
    pub(super) enable_message_ordering: bool,
    #[prost(message, optional, tag = "13")]
    pub(super) dead_letter_policy: Option<DeadLetterPolicy>,
    #[prost(bool, tag = "15")]
    pub(super) detached: bool,
    #[prost(bool, tag = "16")]
    pub(super) enable_exactly_once_delivery: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PushConfig {
    #[prost(string, tag = "1")]
    pub(super) push_endpoint: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeadLetterPolicy {
    #[prost(string, tag = "1")]
    pub(super) dead_letter_topic: String,
    #[prost(int32, tag = "2")]
    pub(super) max_delivery_attempts: i32,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct Nothing {}

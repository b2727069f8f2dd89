//! What an error of Kafka says of an event.

use std::time::Duration;

use hapax_core::outbox::Published;
use rdkafka::error::RDKafkaErrorCode as Code;

use crate::errors::{not_applied, unknown};
use crate::sinks::not_published;

/// How long to wait before an event is sent again that only an operator can help.
const OPERATOR_PAUSE: Duration = Duration::from_secs(1);

/// What the error means, but for [`Code::MessageSizeTooLarge`]: whose size was too large, the sink finds out.
///
/// An error that is not listed may come after the brokers have the event.
pub(super) fn of(code: Code, topic: &str) -> Published {
    let operator =
        |what: String| Published::NotPublished { after: OPERATOR_PAUSE, cause: not_applied(what).caused_by(code) };
    #[expect(clippy::wildcard_enum_match_arm, reason = "an enum of the driver")]
    match code {
        Code::QueueFull => not_published(not_applied("the queue of the Kafka driver is full").caused_by(code)),
        Code::PurgeQueue => not_published(not_applied("the producer of Kafka ends").caused_by(code)),
        Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicOrPartition => {
            operator(format!("the Kafka broker has no topic `{topic}`: create it"))
        }
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
            operator(format!("the Kafka broker does not let the relay write to the topic `{topic}`"))
        }
        Code::PolicyViolation => operator(format!("a policy of the Kafka broker forbids an event in `{topic}`")),
        Code::NotEnoughReplicas => operator(format!("too few replicas of the topic `{topic}` are in sync")),
        Code::InvalidTopic => Published::Refused(format!("Kafka cannot have a topic with the name `{topic}`")),
        Code::InvalidRecord => Published::Refused(format!(
            "the topic `{topic}` takes no such record: a compacted topic takes only events with an ordering key"
        )),
        code => Published::Unknown(unknown(format!("Kafka did not confirm an event for `{topic}`")).caused_by(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_kafka_never_takes_is_refused_and_what_it_may_have_is_unknown() {
        let outcome = |code| match of(code, "t") {
            Published::Yes { .. } => "yes",
            Published::NotPublished { .. } => "not published",
            Published::Unknown(_) => "unknown",
            Published::Refused(_) => "refused",
        };
        for (code, expected) in [
            (Code::QueueFull, "not published"),
            (Code::PurgeQueue, "not published"),
            (Code::UnknownTopicOrPartition, "not published"),
            (Code::TopicAuthorizationFailed, "not published"),
            (Code::NotEnoughReplicas, "not published"),
            (Code::NotEnoughReplicasAfterAppend, "unknown"),
            (Code::MessageTimedOut, "unknown"),
            (Code::RequestTimedOut, "unknown"),
            (Code::PurgeInflight, "unknown"),
            (Code::BrokerTransportFailure, "unknown"),
            (Code::Fatal, "unknown"),
            (Code::OutOfOrderSequenceNumber, "unknown"),
            (Code::InvalidTopic, "refused"),
            (Code::InvalidRecord, "refused"),
        ] {
            assert_eq!(outcome(code), expected, "{code:?}");
        }
    }
}

//! Sources of messages and sinks of events. Each is a feature of this crate, and none is on by default because drivers
//! cost build time.
//!
//! | feature | |
//! |---|---|
//! | `kafka` | [`KafkaSource`]: topics of Kafka for a consumer group; [`KafkaSink`]; builds a C library, which takes a minute or two |
//! | `kafka-tls` | TLS and SCRAM for `kafka`, with the OpenSSL of the system |
//! | `nats` | [`NatsSource`]: a durable consumer of NATS JetStream; [`NatsSink`] |
//! | `pubsub` | [`PubSubSource`]: a subscription of Google Cloud Pub/Sub; [`PubSubSink`] |
//! | `rabbitmq` | [`RabbitMqSource`]: a queue of RabbitMQ, by AMQP 0-9-1; [`RabbitMqSink`] |
//! | `sqs` | [`SqsSource`]: a queue of AWS SQS, standard or FIFO; [`SqsSink`] |
//! | `webhook` | [`WebhookSink`]: signed POSTs to endpoints |

#[cfg(any(feature = "pubsub", feature = "sqs"))]
mod batch;
#[cfg(any(feature = "kafka", feature = "nats", feature = "pubsub", feature = "rabbitmq", feature = "sqs"))]
mod errors;
#[cfg(any(feature = "pubsub", feature = "sqs"))]
mod folded;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(any(feature = "pubsub", feature = "sqs"))]
mod open;
#[cfg(feature = "pubsub")]
mod pubsub;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(any(feature = "kafka", feature = "nats", feature = "pubsub", feature = "rabbitmq", feature = "sqs"))]
mod sinks;
#[cfg(feature = "sqs")]
mod sqs;
#[cfg(any(feature = "pubsub", feature = "sqs"))]
mod waiting;
#[cfg(feature = "webhook")]
mod webhook;

#[cfg(feature = "kafka")]
pub use kafka::{KafkaSink, KafkaSinkConfig, KafkaSource, KafkaUrl};
#[cfg(feature = "nats")]
pub use nats::{NatsSink, NatsSinkConfig, NatsSource, NatsUrl};
#[cfg(feature = "pubsub")]
pub use pubsub::{PubSubSink, PubSubSinkConfig, PubSubSource, PubSubUrl};
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::{RabbitMqSink, RabbitMqSinkConfig, RabbitMqSource, RabbitMqUrl};
#[cfg(feature = "sqs")]
pub use sqs::{SqsSink, SqsSinkConfig, SqsSource, SqsUrl};
#[cfg(feature = "webhook")]
pub use webhook::{ResolveHost, SystemResolver, WebhookEndpoint, WebhookSecret, WebhookSink, WebhookSinkConfig};

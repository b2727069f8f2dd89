//! Sources of messages and sinks of events. Each is a feature of this crate, and none is on by default because drivers
//! cost build time.
//!
//! | feature | |
//! |---|---|
//! | `kafka` | [`KafkaSource`]: topics of Kafka for a consumer group; [`KafkaSink`]; builds a C library, which takes a minute or two |
//! | `kafka-tls` | TLS and SCRAM for `kafka`, with the OpenSSL of the system |
//! | `nats` | [`NatsSource`]: a durable consumer of NATS JetStream; [`NatsSink`] |
//! | `webhook` | [`WebhookSink`]: signed POSTs to endpoints |

#[cfg(any(feature = "kafka", feature = "nats"))]
mod errors;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod sinks;
#[cfg(feature = "webhook")]
mod webhook;

#[cfg(feature = "kafka")]
pub use kafka::{KafkaSink, KafkaSinkConfig, KafkaSource, KafkaUrl};
#[cfg(feature = "nats")]
pub use nats::{NatsSink, NatsSinkConfig, NatsSource, NatsUrl};
#[cfg(feature = "webhook")]
pub use webhook::{ResolveHost, SystemResolver, WebhookEndpoint, WebhookSecret, WebhookSink, WebhookSinkConfig};

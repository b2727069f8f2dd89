//! The source suite on real servers of Kafka, NATS and RabbitMQ, and on stand-ins for Pub/Sub and SQS.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]
#![expect(clippy::disallowed_methods, reason = "the deadline of a test is in real time")]

#[path = "../common/rabbitmq.rs"]
mod common;
#[path = "../common/elasticmq.rs"]
mod elasticmq;
#[path = "../common/elasticmq_send.rs"]
mod elasticmq_send;
#[path = "../common/pubsub.rs"]
#[allow(dead_code, reason = "each test needs another part")]
mod emulator;
mod kafka;
mod nats;
mod pubsub;
mod rabbitmq;
mod recorder;
mod sqs;

use std::process::ExitCode;
use std::time::Duration;

use hapax_brokers::{KafkaSource, NatsSource, PubSubSource, RabbitMqSource, SqsSource};
use hapax_core::Result;
use hapax_core::broker::Source;
use hapax_core::runtime::Tokio;
use hapax_testkit::{serve_source, source_main};

/// A test that takes longer has failed, even on a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    serve_source(|url| Box::pin(open(url)));
    let mut backends = vec![
        kafka::backend(),
        nats::backend(),
        pubsub::emulator(),
        pubsub::pstest(),
        rabbitmq::classic(),
        rabbitmq::quorum(),
        rabbitmq::quorum_of_version_3(),
        sqs::fifo(),
        sqs::standard(),
    ];
    if std::env::var_os("HAPAX_ALL_BACKENDS").is_some() {
        // Only `cargo xtask prove suites` runs it: it differs least from the others.
        backends.push(rabbitmq::classic_of_version_3());
    }
    source_main(&backends)
}

async fn open(url: String) -> Result<Box<dyn Source>> {
    let runtime = std::sync::Arc::new(Tokio::current());
    if url.starts_with("amqp") {
        return Ok(Box::new(RabbitMqSource::connect(url.parse()?, runtime).await?));
    }
    if url.starts_with("nats") {
        return Ok(Box::new(NatsSource::connect(&url.parse()?, runtime).await?));
    }
    if url.starts_with("pubsub") {
        return Ok(Box::new(PubSubSource::connect(&url.parse()?, runtime).await?));
    }
    if url.starts_with("sqs") {
        return Ok(Box::new(SqsSource::connect(&url.parse()?, runtime).await?));
    }
    Ok(Box::new(KafkaSource::connect(&url.parse()?, runtime).await?))
}

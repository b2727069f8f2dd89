//! The sink suite on real servers of Kafka, NATS and RabbitMQ, and on stand-ins for Pub/Sub and SQS.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]
#![expect(clippy::disallowed_methods, reason = "the deadline of a test is in real time")]

#[path = "../common/rabbitmq.rs"]
mod common;
#[path = "../common/elasticmq.rs"]
mod elasticmq;
#[path = "../common/pubsub.rs"]
#[allow(dead_code, reason = "each test needs another part")]
mod emulator;
mod kafka;
mod nats;
mod pubsub;
mod rabbitmq;
mod sqs;

use std::process::ExitCode;
use std::time::Duration;

use hapax_testkit::sink_main;

/// A test that takes longer has failed, even on a slow machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let mut backends = vec![
        kafka::backend(),
        nats::backend(),
        pubsub::backend(),
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
    sink_main(&backends)
}

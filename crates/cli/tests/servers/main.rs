//! Tests of the binary with real servers.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

#[path = "../it/admin_process.rs"]
mod admin_process;
mod any_language;
mod browser;
mod cross_origin;
mod dashboard;
mod dead;
#[path = "../it/dead_letters.rs"]
mod dead_letters;
mod demo;
#[cfg(feature = "dynamodb")]
mod dynamodb;
mod examples;
#[path = "../it/harness.rs"]
#[allow(dead_code, reason = "shared with the tests that need no server")]
mod harness;
#[cfg(feature = "kafka")]
mod kafka;
mod keys;
#[path = "../it/keys_commands.rs"]
mod keys_commands;
mod migrate;
mod outbox;
#[path = "../it/outbox_commands.rs"]
mod outbox_commands;
mod packaging;
mod postgres;
#[cfg(feature = "pubsub")]
mod pubsub;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "kafka")]
#[path = "../it/raw_http.rs"]
#[allow(dead_code, reason = "shared with the tests that need no server")]
mod raw_http;
mod reconcile;
#[path = "../it/reconciliation.rs"]
mod reconciliation;
mod redis;
mod relay;
#[cfg(feature = "s3")]
mod s3;
mod shell_blocks;
#[cfg(feature = "spanner")]
mod spanner;
#[cfg(feature = "sqs")]
mod sqs;
mod stripe;
#[path = "../it/torture.rs"]
mod torture;
mod worker;

use std::process::ExitCode;

use hapax_testkit::servers;

fn main() -> ExitCode {
    let tests = [
        redis::tests(),
        postgres::tests(),
        migrate::tests(),
        keys::tests(),
        dead::tests(),
        outbox::tests(),
        worker::tests(),
        relay::tests(),
        reconcile::tests(),
        any_language::tests(),
        examples::tests(),
        demo::tests(),
        packaging::tests(),
        cross_origin::tests(),
        dashboard::tests(),
        shell_blocks::tests(),
        stripe::tests(),
        #[cfg(feature = "dynamodb")]
        dynamodb::tests(),
        #[cfg(feature = "kafka")]
        kafka::tests(),
        #[cfg(feature = "pubsub")]
        pubsub::tests(),
        #[cfg(feature = "rabbitmq")]
        rabbitmq::tests(),
        #[cfg(feature = "s3")]
        s3::tests(),
        #[cfg(feature = "spanner")]
        spanner::tests(),
        #[cfg(feature = "sqs")]
        sqs::tests(),
    ];
    servers::main(tests.into_iter().flatten().collect::<Vec<_>>())
}

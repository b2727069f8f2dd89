//! A short run on real servers, and the same run without the ledger, which must fail.
//!
//! The tests run a binary of another package, which cargo builds for a test of the whole workspace. For a test of this
//! package alone, run `cargo build -p example-worker-kafka -p example-worker-rabbitmq` first.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::process::ExitCode;

use hapax_testkit::servers;
use hapax_worker_torture::{SourceBroker, WorkerFault, WorkerTortureOptions, WorkerTortureResult};

fn main() -> ExitCode {
    // A run needs both servers.
    let with = |broker| if servers::required(broker).is_ok() { "postgres" } else { broker };
    let (kafka, rabbitmq, sqs) = (with("kafka"), with("rabbitmq"), with("elasticmq"));
    servers::main([
        servers::test("no_fault_moves_money_twice_or_leaves_a_message", kafka, on_kafka),
        servers::test("the_audit_finds_second_effects_without_the_ledger", kafka, without_the_ledger_on_kafka),
        servers::test("no_fault_moves_money_twice_on_rabbitmq", rabbitmq, on_rabbitmq),
        servers::test("the_audit_finds_second_effects_on_rabbitmq", rabbitmq, without_the_ledger_on_rabbitmq),
        servers::test("no_fault_moves_money_twice_on_sqs", sqs, on_sqs),
        servers::test("the_audit_finds_second_effects_on_sqs", sqs, without_the_ledger_on_sqs),
    ])
}

async fn run(broker: SourceBroker, transfers: u32, seed: u64, has_ledger: bool) -> WorkerTortureResult {
    let folder = tempfile::tempdir().unwrap();
    let options = WorkerTortureOptions { transfers, seed, has_ledger, broker, brokers: 1 };
    let result = hapax_worker_torture::run(options, folder.path()).await.unwrap();
    println!("{result:?}");
    if has_ledger && !result.damages.is_empty() {
        println!("the log of the workers is in {}", folder.keep().display());
    }
    result
}

async fn on_kafka() {
    let result = with_the_ledger(SourceBroker::Kafka).await;
    assert!(result.offset_checks > 0, "{result:?}");
}

async fn on_rabbitmq() {
    with_the_ledger(SourceBroker::RabbitMq).await;
}

async fn on_sqs() {
    with_the_ledger(SourceBroker::Sqs).await;
}

async fn with_the_ledger(broker: SourceBroker) -> WorkerTortureResult {
    let result = run(broker, 2000, 1, true).await;
    assert_eq!(result.damages, Vec::<String>::new());
    assert_eq!(result.faults.keys().copied().collect::<Vec<_>>(), WorkerFault::ALL, "{result:?}");
    assert!(result.messages > 2000, "{result:?}");
    result
}

async fn without_the_ledger_on_kafka() {
    without_the_ledger(SourceBroker::Kafka).await;
}

async fn without_the_ledger_on_rabbitmq() {
    without_the_ledger(SourceBroker::RabbitMq).await;
}

async fn without_the_ledger_on_sqs() {
    without_the_ledger(SourceBroker::Sqs).await;
}

async fn without_the_ledger(broker: SourceBroker) {
    // On a slow machine the faults of one run may meet no message that was processed.
    for seed in 1..=4 {
        if run(broker, 300, seed, false).await.duplicates > 0 {
            return;
        }
    }
    panic!("no run has found a second effect");
}

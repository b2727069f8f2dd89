//! A short run on real servers, and the same run without the ledger, which must fail.
//!
//! The tests run a binary of another package, which cargo builds for a test of the whole workspace. For a test of this
//! package alone, run `cargo build -p example-worker-kafka` first.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::process::ExitCode;

use hapax_testkit::servers;
use hapax_worker_torture::{WorkerFault, WorkerTortureOptions, WorkerTortureResult};

fn main() -> ExitCode {
    // A run needs both servers.
    let service = if servers::required("kafka").is_ok() { "postgres" } else { "kafka" };
    servers::main([
        servers::test("no_fault_moves_money_twice_or_leaves_a_message", service, with_the_ledger),
        servers::test("the_audit_finds_second_effects_without_the_ledger", service, without_the_ledger),
    ])
}

async fn run(transfers: u32, seed: u64, has_ledger: bool) -> WorkerTortureResult {
    let folder = tempfile::tempdir().unwrap();
    let options = WorkerTortureOptions { transfers, seed, has_ledger, brokers: 1 };
    let result = hapax_worker_torture::run(options, folder.path()).await.unwrap();
    println!("{result:?}");
    if has_ledger && !result.damages.is_empty() {
        println!("the log of the workers is in {}", folder.keep().display());
    }
    result
}

async fn with_the_ledger() {
    let result = run(3000, 1, true).await;
    assert_eq!(result.damages, Vec::<String>::new());
    assert_eq!(result.faults.keys().copied().collect::<Vec<_>>(), WorkerFault::ALL, "{result:?}");
    assert!(result.messages > 3000 && result.offset_checks > 0, "{result:?}");
}

async fn without_the_ledger() {
    // On a slow machine the faults of one run may meet no message that was processed.
    for seed in 1..=4 {
        if run(300, seed, false).await.duplicates > 0 {
            return;
        }
    }
    panic!("no run has found a second effect");
}

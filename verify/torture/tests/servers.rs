//! A short run on real servers, and the same run without the ledger, which must fail.
//!
//! The tests run binaries of other packages, which cargo builds for a test of the whole workspace. For a test of this
//! package alone, run `cargo build -p hapax-cli -p example-transfer-postgres` first.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::process::ExitCode;

use hapax_testkit::servers;
use hapax_torture::{FaultSelection, TortureFault, TortureOptions, TortureResult, TorturedService, TransferDamage};

fn main() -> ExitCode {
    // A run needs both servers.
    let service = if servers::required("redis").is_ok() { "postgres" } else { "redis" };
    servers::main([
        servers::test("no_fault_moves_money_twice_or_loses_an_answer", service, with_the_ledger),
        servers::test("the_same_holds_if_the_ledger_runs_the_transaction", service, with_the_runner),
        servers::test("the_audit_finds_second_effects_without_the_ledger", service, without_the_ledger),
    ])
}

async fn run(transfers: u32, service: TorturedService) -> TortureResult {
    let folder = tempfile::tempdir().unwrap();
    let options = TortureOptions { transfers, seed: 1, service, faults: FaultSelection::Everything };
    let result = hapax_torture::run(options, folder.path()).await.unwrap();
    println!("{:?} {:?}", result.faults, result.counts);
    if service.has_ledger() && !result.damages.is_empty() {
        println!("the journal and the logs are in {}", folder.keep().display());
    }
    result
}

async fn with_the_ledger() {
    let result = run(2000, TorturedService::OwnTransaction).await;
    assert_eq!(result.damages, []);
    for fault in [TortureFault::KillService, TortureFault::KillGateway, TortureFault::KillRedis] {
        assert_eq!(result.faults[&fault], 4);
    }
    assert_eq!(result.faults[&TortureFault::KillDatabase], 4);
    assert!(result.cuts >= 40, "{}", result.cuts);
    assert_eq!(result.from_the_ledger, 2000);
}

async fn with_the_runner() {
    let result = run(500, TorturedService::Runner).await;
    assert_eq!((result.damages, result.from_the_ledger), (Vec::new(), 500));
}

async fn without_the_ledger() {
    let result = run(300, TorturedService::WithoutLedger).await;
    // Also before the records were removed: a run again after a COMMIT without a reply is enough.
    assert!(result.duplicates_in_run > 0, "{:?}", result.counts);
    for damage in [TransferDamage::Duplicate, TransferDamage::WrongBalance] {
        assert!(result.count(damage) > 0, "{damage:?} is not among {:?}", result.damages);
    }
    assert_eq!(result.count(TransferDamage::Lost), 0);
}

//! A short run on real servers, and the same run without the ledger, which must fail.
//!
//! The tests run binaries of other packages, which cargo builds for a test of the whole workspace. For a test of this
//! package alone, run `cargo build -p hapax-cli -p example-transfer-postgres` first.

#![expect(clippy::unwrap_used, reason = "a panic fails the test, also in a helper")]

use std::process::ExitCode;

use hapax_testkit::servers::{self, Trial};
use hapax_torture::target::{
    self, FoundMessageDamage, LapsePolicy, MessageDamage, MessageSource, TargetFault, TargetOptions, TargetResult,
};
use hapax_torture::{FaultSelection, TortureFault, TortureOptions, TortureResult, TorturedService, TransferDamage};
use libtest_mimic::Failed;

fn main() -> ExitCode {
    // A run needs both servers.
    let service = if servers::required("redis").is_ok() { "postgres" } else { "redis" };
    let python = if servers::required("psycopg").is_ok() { service } else { "psycopg" };
    servers::main([
        servers::test("no_fault_moves_money_twice_or_loses_an_answer", service, with_the_ledger),
        servers::test("the_same_holds_if_the_ledger_runs_the_transaction", service, with_the_runner),
        servers::test("the_same_holds_for_a_service_in_python_with_the_ledger_in_sql", python, in_python),
        servers::test(
            "two_gateways_on_postgresql_alone_run_an_operation_again_with_one_effect",
            "postgres",
            retried_by_two,
        ),
        servers::test("two_gateways_on_postgresql_alone_hold_what_may_have_run", "postgres", held_by_two),
        servers::test("the_audit_finds_second_effects_without_the_ledger", service, without_the_ledger),
        Trial::test("target::under_hold_no_message_has_a_second_effect_and_none_is_lost", || block_on(held())),
        servers::test("target::under_hold_the_same_holds_for_messages_of_nats", "nats", held_on_nats),
        servers::test("target::one_worker_keeps_the_order_of_messages_of_nats", "nats", in_order),
        Trial::test("target::without_faults_each_message_is_sent_once", || block_on(calm())),
        Trial::test("target::under_retry_only_unknown_attempts_are_sent_again", || block_on(retried())),
    ])
}

fn block_on(test: impl Future<Output = ()>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(test);
    Ok(())
}

async fn run(transfers: u32, service: TorturedService) -> TortureResult {
    run_with(transfers, service, FaultSelection::Everything).await
}

async fn run_with(transfers: u32, service: TorturedService, faults: FaultSelection) -> TortureResult {
    let folder = tempfile::tempdir().unwrap();
    let options = TortureOptions { transfers, seed: 1, service, faults };
    let result = hapax_torture::run(options, folder.path()).await.unwrap();
    println!("{:?} {:?}", result.faults, result.counts);
    if service.must_be_clean() && !result.damages.is_empty() {
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

async fn in_python() {
    let result = run(500, TorturedService::Python).await;
    assert_eq!((result.damages, result.from_the_ledger), (Vec::new(), 500));
    for fault in [TortureFault::KillService, TortureFault::KillGateway, TortureFault::KillRedis] {
        assert_eq!(result.faults[&fault], 1);
    }
    assert_eq!(result.faults[&TortureFault::KillDatabase], 1);
    assert!(result.cuts >= 10, "{}", result.cuts);
}

async fn retried_by_two() {
    let result = run_with(300, TorturedService::Gated, FaultSelection::KillEach(3)).await;
    assert_eq!(result.damages, []);
    assert_eq!((result.faults[&TortureFault::KillGateway], result.faults[&TortureFault::KillDatabase]), (6, 3));
    assert_eq!((result.unknown, result.from_the_ledger), (0, 300));
}

async fn held_by_two() {
    let result = run_with(300, TorturedService::Held, FaultSelection::KillEach(3)).await;
    assert_eq!(result.damages, []);
    assert_eq!((result.faults[&TortureFault::KillGateway], result.faults[&TortureFault::KillDatabase]), (6, 3));
    // The kills have hit running operations.
    assert!(result.unknown > 0, "{:?}", result.counts);
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

/// The audit of a run of a worker and a service behind HTTP. A run that fails keeps its files.
async fn run_target(options: TargetOptions) -> (TargetResult, Vec<FoundMessageDamage>) {
    let folder = tempfile::tempdir().unwrap();
    let result = match target::run(options, folder.path()).await {
        Ok(result) => result,
        Err(error) => panic!("{error:#}; the journal and the logs are in {}", folder.keep().display()),
    };
    println!("{:?} {:?}, {} doubles", result.faults, result.letters_by_reason(), result.doubles());
    let damages = target::audit(&result, options.policy);
    if !damages.is_empty() {
        println!("the journal and the logs are in {}", folder.keep().display());
    }
    (result, damages)
}

const HOSTILE: TargetOptions =
    TargetOptions { messages: 300, seed: 1, policy: LapsePolicy::Hold, source: MessageSource::Sqlite, is_calm: false };

async fn held() {
    let (result, damages) = run_target(HOSTILE).await;
    assert_eq!(damages, []);
    assert!(result.unknown_attempts() > 0);
    assert!(result.letters_by_reason()["outcome-unknown"] > 0);
    assert_eq!(result.doubles(), 0);
}

async fn held_on_nats() {
    let (result, damages) = run_target(TargetOptions { source: MessageSource::Nats, ..HOSTILE }).await;
    assert_eq!(damages, []);
    assert_eq!((result.doubles(), result.faults[&TargetFault::StartWithoutBroker]), (0, 1));
}

async fn in_order() {
    let (result, damages) = run_target(TargetOptions { source: MessageSource::NatsInOrder, ..HOSTILE }).await;
    assert_eq!(damages, []);
    assert_eq!((result.faults[&TargetFault::StopWorker], result.faults[&TargetFault::CutConnections]), (6, 6));
}

async fn retried() {
    let options = TargetOptions { policy: LapsePolicy::Retry, ..HOSTILE };
    let (result, damages) = run_target(options).await;
    assert_eq!(damages, []);
    // The faults that make second effects have happened, and the audit of the other policy finds them.
    let found = target::audit(&result, LapsePolicy::Hold);
    assert!(found.iter().any(|found| found.damage == MessageDamage::SecondEffect), "{found:?}");
}

async fn calm() {
    let (result, damages) = run_target(TargetOptions { is_calm: true, ..HOSTILE }).await;
    assert_eq!(damages, []);
    assert_eq!((result.attempts(), result.doubles(), result.letters.len()), (300, 0, 0));
}

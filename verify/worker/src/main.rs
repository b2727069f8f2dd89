//! `cargo xtask prove worker` calls this program.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use hapax_torture::harness::{self, Proof, ProofEnd, ReportArguments, one_of};
use hapax_worker_torture::{SourceBroker, WorkerTortureOptions};

mod report;

/// Tortures workers on a broker, and audits their database.
#[derive(Debug, Parser)]
struct WorkerArguments {
    /// The number of transfers.
    #[arg(long, value_name = "N", default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..))]
    transfers: u32,
    /// Decides the transfers, their copies and the faults.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The kind of the brokers: kafka, rabbitmq or sqs.
    #[arg(long, default_value = "kafka", value_parser = one_of(&SourceBroker::ALL, SourceBroker::word))]
    broker: SourceBroker,
    /// The number of brokers.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    brokers: u32,
    /// The workers have no ledger, to prove that the audit can fail.
    #[arg(long)]
    without_ledger: bool,
    #[command(flatten)]
    report: ReportArguments,
}

fn main() -> ExitCode {
    harness::main::<WorkerArguments>()
}

impl WorkerArguments {
    fn options(&self) -> WorkerTortureOptions {
        let Self { transfers, seed, broker, brokers, without_ledger, .. } = *self;
        WorkerTortureOptions { transfers, seed, has_ledger: !without_ledger, broker, brokers: brokers as usize }
    }
}

impl Proof for WorkerArguments {
    const FOLDER: &'static str = "hapax-worker-torture";

    fn report(&self) -> &ReportArguments {
        &self.report
    }

    fn command(&self) -> String {
        report::command(&self.options())
    }

    async fn run(&self, folder: &Path) -> anyhow::Result<ProofEnd> {
        let options = self.options();
        let result = hapax_worker_torture::run(options, folder).await?;
        let mut section = self.section(&report::heading(&options));
        report::fill(&mut section, &options, &result);
        Ok(ProofEnd::of(section, &result.damages))
    }
}

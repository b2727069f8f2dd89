//! `cargo xtask prove torture` calls this program.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use hapax_torture::harness::{self, Proof, ProofEnd, ReportArguments, one_of};
use hapax_torture::target::LapsePolicy;
use hapax_torture::{FaultSelection, TortureOptions, TorturedService};

mod report;

/// Tortures a service with a ledger, behind the gateway, and audits its database.
#[derive(Debug, Parser)]
struct TortureArguments {
    /// The number of transfers; default: 2000, or 100 for each fault that is counted.
    #[arg(long, value_name = "N")]
    transfers: Option<u32>,
    /// Decides the transfers, the behaviour of the client, and the faults.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The ledger runs the transaction.
    #[arg(long, group = "service")]
    runner: bool,
    /// The service is in Python.
    #[arg(long, group = "service")]
    python: bool,
    /// The service has no ledger, to prove that the audit can fail.
    #[arg(long, group = "service")]
    without_ledger: bool,
    /// The service is behind two gateways on PostgreSQL alone, which do this after a lease: retry or hold.
    #[arg(long, group = "service", value_name = "POLICY", value_parser = one_of(&LapsePolicy::ALL, LapsePolicy::name))]
    two_gateways: Option<LapsePolicy>,
    /// The only fault is that PostgreSQL is killed, so often.
    #[arg(long, group = "faults", value_name = "N")]
    kill_database: Option<u32>,
    /// The only fault is that a connection to PostgreSQL is cut at COMMIT, so often.
    #[arg(long, group = "faults", value_name = "N")]
    cut_commits: Option<u32>,
    /// The only fault is that PostgreSQL and each gateway are killed, so often.
    #[arg(long, group = "faults", value_name = "N")]
    kill_each: Option<u32>,
    #[command(flatten)]
    report: ReportArguments,
}

fn main() -> ExitCode {
    harness::main::<TortureArguments>()
}

impl TortureArguments {
    fn options(&self) -> TortureOptions {
        let faults = [
            self.kill_database.map(FaultSelection::KillDatabase),
            self.cut_commits.map(FaultSelection::CutCommits),
            self.kill_each.map(FaultSelection::KillEach),
        ];
        let faults = faults.into_iter().flatten().next().unwrap_or(FaultSelection::Everything);
        let enough = match faults {
            FaultSelection::Everything => 2000,
            FaultSelection::KillDatabase(times)
            | FaultSelection::CutCommits(times)
            | FaultSelection::KillEach(times) => times.saturating_mul(100),
        };
        let transfers = self.transfers.unwrap_or(enough).max(1);
        TortureOptions { transfers, seed: self.seed, service: self.service(), faults }
    }

    fn service(&self) -> TorturedService {
        match self.two_gateways {
            Some(LapsePolicy::Retry) => TorturedService::Gated,
            Some(LapsePolicy::Hold) => TorturedService::Held,
            None if self.runner => TorturedService::Runner,
            None if self.python => TorturedService::Python,
            None if self.without_ledger => TorturedService::WithoutLedger,
            None => TorturedService::OwnTransaction,
        }
    }
}

impl Proof for TortureArguments {
    const FOLDER: &'static str = "hapax-torture";

    fn report(&self) -> &ReportArguments {
        &self.report
    }

    fn command(&self) -> String {
        report::command(&self.options())
    }

    async fn run(&self, folder: &Path) -> anyhow::Result<ProofEnd> {
        let options = self.options();
        let result = hapax_torture::run(options, folder).await?;
        let mut section = self.section(&report::heading(&options));
        report::fill(&mut section, &options, &result);
        let end = ProofEnd::of(section, &result.damages);
        // A run without the ledger is recorded if it has found something.
        Ok(ProofEnd { is_recorded: end.has_passed == options.service.must_be_clean(), ..end })
    }
}

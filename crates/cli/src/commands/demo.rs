//! `hapax demo`: shows what the gateway prevents, on a payment service that does not deduplicate retries.
//!
//! ```text
//! clients ──► gateway (own process and store) ──────► payment service ──► charges.log
//!    │            ▲                                                          │
//!    │            └── kill -9, restart                                   │
//!    └── received responses ───────────────► audit ◄── charges ──────────────┘
//! ```

mod audit;
mod client;
mod client_log;
mod customer;
mod gateway;
mod number_format;
mod parent_death;
mod progress;
mod random;
mod report;
mod response;
mod service;
mod traffic;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use audit::Audit;
use client::PaymentClient;
use customer::{CustomerContext, Customers};
use gateway::GatewayProcess;
use progress::Progress;
use service::PaymentService;

pub(crate) use parent_death::end_with_demo;

use super::CommandError;
use crate::store::wiring::StoreUrl;

/// The arguments of `hapax demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Number of payments to make
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    payments: u32,

    /// Seed of the traffic; the same seed repeats the same traffic [default: random]
    ///
    /// The demo prints its seed at the start.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// Number of times to kill the gateway, at most --payments [default: one for every 100 payments]
    #[arg(long, value_name = "N")]
    crashes: Option<u32>,

    /// Store of the gateway [default: a SQLite file in the temporary folder of the run]
    #[arg(long, value_name = "URL", value_parser = store_url, conflicts_with = "direct")]
    store: Option<String>,

    /// Send the same traffic without the gateway, to show the damage
    #[arg(long, conflicts_with = "crashes")]
    direct: bool,

    /// Keep the files of the run and print their folder
    #[arg(long)]
    keep: bool,
}

/// Checks a store URL. It returns the text, since the gateway process parses it again.
fn store_url(url: &str) -> Result<String> {
    url.parse::<StoreUrl>().map(|_| url.to_owned())
}

/// Runs the demo. The exit code is 0 if the audit finds no damage.
pub(crate) async fn run(args: DemoArgs) -> Result<ExitCode, CommandError> {
    let keep = args.keep;
    let scenario = Scenario::from(args);
    scenario.check().map_err(CommandError::usage)?;
    let folder = RunFolder::new().map_err(CommandError::cannot_start)?;
    let end = tokio::select! {
        holds = play(&scenario, folder.path()) => holds.map(DemoEnd::Audited),
        interrupted = interrupted() => interrupted.map(|()| DemoEnd::Interrupted).map_err(CommandError::failed),
    };
    // A failed audit of the gateway keeps its files, so that the failure can be analysed.
    let is_evidence = !scenario.direct && matches!(end, Ok(DemoEnd::Audited(false)));
    folder.keep_or_remove(keep || is_evidence).map_err(CommandError::failed)?;
    Ok(end?.exit_code())
}

/// Runs the scenario and returns whether the audit holds.
async fn play(scenario: &Scenario, folder: &Path) -> Result<bool, CommandError> {
    report::introduce(scenario);
    let setup = DemoSetup::start(scenario, folder).await.map_err(CommandError::cannot_start)?;
    perform(scenario, folder, setup).await.map_err(CommandError::failed)
}

/// The running service and gateway.
#[derive(Debug)]
struct DemoSetup {
    log: PathBuf,
    service: Arc<PaymentService>,
    /// None with `--direct`.
    gateway: Option<GatewayProcess>,
}

impl DemoSetup {
    async fn start(scenario: &Scenario, folder: &Path) -> Result<Self> {
        let log = folder.join("charges.log");
        let service = Arc::new(PaymentService::start(scenario.seed, &log).await?);
        let gateway = match scenario.direct {
            true => None,
            false => Some(GatewayProcess::start(scenario, service.address(), folder).await?),
        };
        Ok(Self { log, service, gateway })
    }
}

async fn perform(scenario: &Scenario, folder: &Path, setup: DemoSetup) -> Result<bool> {
    let DemoSetup { log, service, gateway } = setup;
    let progress = Arc::new(Progress::new(scenario.payments, scenario.crashes));
    let customers = match gateway {
        None => pay_directly(scenario, &service, &progress).await?,
        Some(gateway) => pay_through(gateway, scenario, &service, &progress).await?,
    };
    service.finish().await;

    let log = fs::read_to_string(&log).context("cannot read the log of charges")?;
    let client_logs = customers.logs();
    client_log::save(&client_logs, &folder.join("answers.log"))?;
    let audit = Audit::new(&log, &client_logs);
    report::show(&audit, &progress);
    // Without all crashes, a clean audit would prove less than the introduction promises.
    let holds = audit.is_clean() && progress.crashes() >= scenario.crashes;
    report::conclude(scenario, &audit, holds);
    Ok(holds)
}

async fn pay_directly(
    scenario: &Scenario,
    service: &Arc<PaymentService>,
    progress: &Arc<Progress>,
) -> Result<Customers> {
    let customers = customers(scenario, service.address(), service, progress);
    tokio::select! {
        sent = send_all(&customers, progress) => sent?,
        never = progress.show() => match never {},
    }
    Ok(customers)
}

async fn pay_through(
    mut gateway: GatewayProcess,
    scenario: &Scenario,
    service: &Arc<PaymentService>,
    progress: &Arc<Progress>,
) -> Result<Customers> {
    let customers = customers(scenario, gateway.address(), service, progress);
    tokio::select! {
        sent = send_all(&customers, progress) => sent?,
        error = gateway.crash_repeatedly(scenario, progress) => return Err(error),
        never = progress.show() => match never {},
    }
    gateway.stop().await?;
    Ok(customers)
}

fn customers(
    scenario: &Scenario,
    target: SocketAddr,
    service: &Arc<PaymentService>,
    progress: &Arc<Progress>,
) -> Customers {
    let context = CustomerContext::new(PaymentClient::new(target), Arc::clone(service), Arc::clone(progress));
    Customers::new(scenario.seed, scenario.payments, &context)
}

/// Makes all payments and repeats them after the last crash, so that the audit can compare the responses.
async fn send_all(customers: &Customers, progress: &Progress) -> Result<()> {
    customers.pay().await?;
    progress.wait_for_crashes().await;
    customers.repeat().await
}

/// Waits for Ctrl-C or SIGTERM.
async fn interrupted() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        typed = tokio::signal::ctrl_c() => typed?,
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// The arguments with their defaults.
#[derive(Debug)]
struct Scenario {
    seed: u64,
    payments: u32,
    crashes: u32,
    /// None for a SQLite file of the run.
    store: Option<String>,
    direct: bool,
}

impl From<DemoArgs> for Scenario {
    fn from(args: DemoArgs) -> Self {
        let crashes = args.crashes.unwrap_or(args.payments.div_ceil(100));
        Self {
            seed: args.seed.unwrap_or_else(random::fresh_seed),
            payments: args.payments,
            crashes: if args.direct { 0 } else { crashes },
            store: args.store,
            direct: args.direct,
        }
    }
}

impl Scenario {
    /// Refuses more crashes than payments: each crash waits for a payment of its own.
    fn check(&self) -> Result<()> {
        if self.crashes > self.payments {
            bail!("--crashes: {} is more than --payments {}; kill the gateway less often", self.crashes, self.payments);
        }
        Ok(())
    }

    /// Whether the store is empty after each crash.
    fn forgets(&self) -> bool {
        let store = self.store.as_ref().and_then(|url| url.parse::<StoreUrl>().ok());
        self.crashes > 0 && store.is_some_and(|store| store.ends_with_process())
    }

    /// Returns how many payments are settled before this crash, counted from 1. Crashes are spread evenly over the run.
    fn payments_before(&self, crash: u32) -> u32 {
        let due = u64::from(self.payments) * u64::from(crash) / (u64::from(self.crashes) + 1);
        u32::try_from(due).unwrap_or(self.payments)
    }
}

/// How the demo ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DemoEnd {
    Audited(bool),
    Interrupted,
}

impl DemoEnd {
    fn exit_code(self) -> ExitCode {
        match self {
            Self::Audited(true) => ExitCode::SUCCESS,
            Self::Audited(false) => ExitCode::FAILURE,
            Self::Interrupted => ExitCode::from(INTERRUPTED),
        }
    }
}

/// The exit code with which a shell reports Ctrl-C.
const INTERRUPTED: u8 = 130;

/// The files of a run. Dropping it removes them.
#[derive(Debug)]
struct RunFolder(TempDir);

impl RunFolder {
    fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("hapax-demo-").tempdir();
        folder.map(Self).context("cannot create a temporary folder")
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn keep_or_remove(self, keep: bool) -> Result<()> {
        if keep {
            println!("\nFiles of this run: {}", self.0.keep().display());
            return Ok(());
        }
        self.0.close().context("cannot remove the temporary folder")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(payments: u32, crashes: Option<u32>, direct: bool) -> Scenario {
        let seed = Some(1);
        Scenario::from(DemoArgs { payments, seed, crashes, store: None, direct, keep: false })
    }

    #[test]
    fn crashes_are_spread_over_the_payments() {
        let scenario = scenario(2000, None, false);
        assert_eq!(scenario.crashes, 20);
        assert_eq!(
            (scenario.payments_before(1), scenario.payments_before(10), scenario.payments_before(20)),
            (95, 952, 1904)
        );
    }

    #[test]
    fn there_are_no_crashes_without_the_gateway() {
        assert_eq!(scenario(2000, None, true).crashes, 0);
    }
}

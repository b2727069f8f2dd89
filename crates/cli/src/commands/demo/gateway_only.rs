//! `hapax demo --gateway-only`: shows what the gateway alone prevents, on a payment service that does not deduplicate
//! retries.
//!
//! ```text
//! clients ──► gateway (own process and store) ──────► payment service ──► charges.log
//!    │            ▲                                                          │
//!    │            └── kill -9, restart                                   │
//!    └── received responses ───────────────► audit ◄── charges ──────────────┘
//! ```

mod audit;
mod gateway;
mod report;
mod service;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};

use self::audit::GatewayAudit;
use self::gateway::GatewayProcess;
use self::service::PaymentService;
use super::DemoArgs;
use super::client::PaymentClient;
use super::client_log;
use super::customer::{CustomerContext, Customers};
use super::progress::Progress;
use super::random::fresh_seed;
use crate::serve::exit::CommandError;
use crate::store::wiring::StoreUrl;

/// Runs the scenario and returns whether the audit holds.
pub(super) async fn play(scenario: &GatewayScenario, folder: &Path) -> Result<bool, CommandError> {
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
    async fn start(scenario: &GatewayScenario, folder: &Path) -> Result<Self> {
        let log = folder.join("charges.log");
        let service = Arc::new(PaymentService::start(scenario.seed, &log).await?);
        let gateway = match scenario.direct {
            true => None,
            false => Some(GatewayProcess::start(scenario, service.address(), folder).await?),
        };
        Ok(Self { log, service, gateway })
    }
}

async fn perform(scenario: &GatewayScenario, folder: &Path, setup: DemoSetup) -> Result<bool> {
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
    let audit = GatewayAudit::new(&log, &client_logs);
    report::show(&audit, &progress);
    // Without all crashes, a clean audit would prove less than the introduction promises.
    let holds = audit.is_clean() && progress.crashes() >= scenario.crashes;
    report::conclude(scenario, &audit, holds);
    Ok(holds)
}

async fn pay_directly(
    scenario: &GatewayScenario,
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
    scenario: &GatewayScenario,
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
    scenario: &GatewayScenario,
    target: SocketAddr,
    service: &Arc<PaymentService>,
    progress: &Arc<Progress>,
) -> Customers {
    let context =
        CustomerContext::new(PaymentClient::new(vec![target]), Arc::clone(service) as _, Arc::clone(progress));
    Customers::new(scenario.seed, scenario.payments, &context)
}

/// Makes all payments and repeats them after the last crash, so that the audit can compare the responses.
async fn send_all(customers: &Customers, progress: &Progress) -> Result<()> {
    customers.pay().await?;
    progress.wait_for_crashes().await;
    customers.repeat().await
}

/// The arguments with their defaults.
#[derive(Debug)]
pub(super) struct GatewayScenario {
    seed: u64,
    payments: u32,
    crashes: u32,
    /// None for a SQLite file of the run.
    store: Option<String>,
    pub(super) direct: bool,
}

impl GatewayScenario {
    /// Refuses more crashes than payments: each crash waits for a payment of its own.
    pub(super) fn new(args: &DemoArgs) -> Result<Self> {
        let (payments, crashes) = (args.payments, args.crashes.unwrap_or(args.payments.div_ceil(100)));
        if crashes > payments {
            bail!("--crashes: {crashes} is more than --payments {payments}; kill the gateway less often");
        }
        Ok(Self {
            seed: args.seed.unwrap_or_else(fresh_seed),
            payments,
            crashes: if args.direct { 0 } else { crashes },
            store: args.store.clone(),
            direct: args.direct,
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(payments: u32, crashes: Option<u32>, direct: bool) -> GatewayScenario {
        let (seed, store, without, keep) = (Some(1), None, None, false);
        let (database, broker) = (None, None);
        let args =
            DemoArgs { payments, seed, crashes, store, database, broker, without, gateway_only: true, direct, keep };
        GatewayScenario::new(&args).unwrap()
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

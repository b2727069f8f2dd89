//! `hapax demo`: shows what the three layers prevent, under hostile clients, crashes and pauses, and audits the result.
//!
//! `pipeline` is the whole system. `gateway_only` is a shorter demo of the gateway in front of one service. Both have
//! the same clients.

mod client;
mod client_log;
mod customer;
mod gateway_only;
mod parent_death;
#[cfg(feature = "sqlite")]
mod pipeline;
mod process;
mod progress;
mod random;
mod readiness;
mod response;
mod server;
mod traffic;

use std::env;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use parent_death::end_with_demo;
#[cfg(feature = "sqlite")]
pub(crate) use pipeline::service::{DemoServiceArgs, run as run_service};

use crate::serve::exit::CommandError;
use crate::store::wiring::StoreUrl;

/// The arguments of `hapax demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Number of payments to make
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    payments: u32,

    /// Seed of the traffic and the faults; the same seed repeats the same traffic [default: random]
    ///
    /// The demo prints its seed at the start.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// How often each process is killed or paused, at most --payments [default: once for every 100 payments]
    ///
    /// With --gateway-only: how often the gateway is killed.
    #[arg(long, value_name = "N")]
    crashes: Option<u32>,

    /// Store of the gateway [default: a SQLite file in the temporary folder of the run]
    #[arg(long, value_name = "URL", value_parser = store_url, conflicts_with = "direct")]
    store: Option<String>,

    /// Database of the service, its workers and the consumers, postgres://HOST/DATABASE, for a run on servers
    ///
    /// The run has a schema of its own there, and topics or streams of its own at the broker. It connects without TLS.
    #[arg(long, value_name = "URL", requires_all = ["store", "broker"], conflicts_with = "gateway_only")]
    database: Option<String>,

    /// Broker of the messages and events, kafka://HOST or nats://HOST, for a run on servers
    #[arg(long, value_name = "URL", requires_all = ["store", "database"])]
    broker: Option<String>,

    /// Leave one layer out, to show the damage that it prevents
    #[arg(long, value_name = "LAYER", conflicts_with_all = ["gateway_only", "direct", "database"])]
    without: Option<OmittedLayer>,

    /// A shorter demo: only the gateway, in front of one service
    #[arg(long)]
    gateway_only: bool,

    /// The demo of --gateway-only without the gateway: the same traffic goes directly to the service
    #[arg(long, conflicts_with = "crashes")]
    direct: bool,

    /// Keep the files of the run and print their folder; on servers, keep its schema and its topics or streams, too
    #[arg(long)]
    keep: bool,
}

impl DemoArgs {
    /// Whether the demo itself writes a log. Its drivers report each server that was killed, which hides the progress.
    pub(crate) fn logs(&self) -> bool {
        self.broker.is_none() || env::var_os("HAPAX_LOG").is_some()
    }
}

/// A layer that a run leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OmittedLayer {
    /// Layer 1: the clients talk to the service, and each request is a message of its own
    Gate,
    /// Layer 2: the worker charges for every message that it gets
    Ledger,
    /// Layer 3: the worker publishes its events itself, after its transaction
    Outbox,
}

#[cfg(feature = "sqlite")]
impl OmittedLayer {
    /// The name on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Ledger => "ledger",
            Self::Outbox => "outbox",
        }
    }
}

/// Checks a store URL. It returns the text, since the gateway process parses it again.
fn store_url(url: &str) -> Result<String> {
    url.parse::<StoreUrl>().map(|_| url.to_owned())
}

/// Runs the demo. The exit code is 0 if the audit finds no damage.
pub(crate) async fn run(args: DemoArgs) -> Result<ExitCode, CommandError> {
    let plan = DemoPlan::new(&args).map_err(CommandError::usage)?;
    let folder = RunFolder::new().map_err(CommandError::cannot_start)?;
    let end = tokio::select! {
        holds = plan.play(folder.path()) => holds.map(DemoEnd::Audited),
        interrupted = interrupted() => interrupted.map(|()| DemoEnd::Interrupted).map_err(CommandError::failed),
    };
    // Files of a failure that nobody asked for are kept, so that it can be analysed.
    let is_evidence = !plan.expects_damage() && matches!(end, Ok(DemoEnd::Audited(false)));
    folder.keep_or_remove(args.keep || is_evidence).map_err(CommandError::failed)?;
    Ok(end?.exit_code())
}

/// What the demo shows.
#[derive(Debug)]
enum DemoPlan {
    #[cfg(feature = "sqlite")]
    Pipeline(pipeline::Scenario),
    GatewayOnly(gateway_only::GatewayScenario),
}

impl DemoPlan {
    fn new(args: &DemoArgs) -> Result<Self> {
        if args.gateway_only || args.direct {
            return gateway_only::GatewayScenario::new(args).map(Self::GatewayOnly);
        }
        #[cfg(feature = "sqlite")]
        return pipeline::Scenario::new(args).map(Self::Pipeline);
        #[cfg(not(feature = "sqlite"))]
        anyhow::bail!("the whole demo needs the feature `sqlite`; add --gateway-only --store URL")
    }

    /// Runs it and returns whether the audit holds.
    async fn play(&self, folder: &Path) -> Result<bool, CommandError> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Pipeline(scenario) => pipeline::play(scenario, folder).await,
            Self::GatewayOnly(scenario) => gateway_only::play(scenario, folder).await,
        }
    }

    /// Whether a layer is left out.
    fn expects_damage(&self) -> bool {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Pipeline(scenario) => scenario.without.is_some(),
            Self::GatewayOnly(scenario) => scenario.direct,
        }
    }
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

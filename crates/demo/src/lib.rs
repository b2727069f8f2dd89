//! `hapax demo`: shows what the three layers prevent, under hostile clients, crashes and pauses, and audits the result.
//!
//! `pipeline` is the system, and the other modules are its clients and its processes. The program that runs the demo is
//! each of the processes.

mod client;
mod client_log;
mod customer;
mod error;
mod number_format;
mod parent_death;
mod pipeline;
mod process;
mod progress;
mod random;
mod readiness;
mod response;
mod server;
mod traffic;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use anyhow::{Context, Result};
use hapax::runtime::{Runtime, Tokio};
use hapax_systems::BrokerUrl;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use self::pipeline::Scenario;

pub use self::error::DemoError;
pub use self::parent_death::end_with_demo;
pub use self::pipeline::service::{DemoServiceArgs, run_service};

/// The arguments of `hapax demo`.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Number of payments to make
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    payments: u32,

    /// Seed of the traffic and the faults; the same seed repeats the same traffic [default: random]
    ///
    /// The demo prints its seed at the start.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// How often each process is killed or paused, at most --payments [default: once for every 100 payments]
    #[arg(long, value_name = "N")]
    crashes: Option<u32>,

    /// Store of the gateway [default: a SQLite file in the temporary folder of the run]
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// Database of the service, its workers and the consumers, postgres://HOST/DATABASE, for a run on servers
    ///
    /// The run has a schema of its own there, and topics, streams or queues of its own at the broker. It
    /// connects without TLS.
    #[arg(long, value_name = "URL", requires_all = ["store", "broker"])]
    database: Option<String>,

    #[arg(long, value_name = "URL", requires_all = ["store", "database"])]
    #[arg(help = format!("Broker of the messages and events, for a run on servers: {}", BrokerUrl::forms()))]
    broker: Option<String>,

    /// Leave one layer out, to show the damage that it prevents
    #[arg(long, value_name = "LAYER", conflicts_with = "database")]
    without: Option<OmittedLayer>,

    /// Keep the files of the run and print their folder; on servers, keep its schema and its topics or streams, too
    #[arg(long)]
    keep: bool,
}

impl DemoArgs {
    /// Whether the demo itself writes a log. Its drivers report each server that was killed, which hides the progress.
    pub fn logs(&self) -> bool {
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

/// Runs the demo. The exit code is 0 if the audit finds no damage.
///
/// # Errors
/// If the command line is wrong, a process cannot start, or the run cannot go on.
///
/// # Cancel safety
/// Dropping the future kills the processes of the run.
pub async fn run(args: DemoArgs) -> Result<ExitCode, DemoError> {
    let scenario = Scenario::new(&args).map_err(DemoError::Usage)?;
    let folder = RunFolder::new().map_err(DemoError::CannotStart)?;
    let end = tokio::select! {
        holds = pipeline::play(&scenario, folder.path()) => holds.map(DemoEnd::Audited),
        interrupted = interrupted() => interrupted.map(|()| DemoEnd::Interrupted).map_err(DemoError::Failed),
    };
    // Files of a failure that nobody asked for are kept, so that it can be analysed.
    let is_evidence = scenario.without.is_none() && matches!(end, Ok(DemoEnd::Audited(false)));
    folder.keep_or_remove(args.keep || is_evidence).map_err(DemoError::Failed)?;
    Ok(end?.exit_code())
}

/// The runtime of the sources, the sinks and the databases.
fn runtime() -> Arc<dyn Runtime> {
    Arc::new(Tokio::current())
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

/// How long the stores of a run may take to close. Their threads still write beside their files meanwhile.
const CLOSING: Duration = Duration::from_secs(10);

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
        let begun = Instant::now();
        loop {
            match fs::remove_dir_all(self.path()) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && begun.elapsed() < CLOSING => {
                    thread::sleep(Duration::from_millis(20));
                }
                removed => return removed.context("cannot remove the temporary folder"),
            }
        }
    }
}

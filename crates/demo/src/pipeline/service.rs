//! `hapax demo-service`: a service of the pipeline, in a process of its own. It ends by `kill -9` only.

use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use hapax::broker::Process;
use hapax::worker::{MessageIdentity, RedriveSource, Worker};
use hapax_systems::{SourceUrl, StoreUrl};

use super::delivery::NotedProcess;
use super::messages::{PAYMENTS, RECEIPTS};
use super::{ingest, places};
use crate::{DemoError, OmittedLayer, runtime};

/// The arguments of `hapax demo-service`.
#[derive(Debug, clap::Args)]
pub struct DemoServiceArgs {
    /// What it does
    role: Role,

    /// The database of the service
    #[arg(long, env = "HAPAX_DATABASE", hide_env_values = true)]
    pub(super) database: String,

    /// Where its messages come from
    #[arg(long, env = "HAPAX_SOURCE", hide_env_values = true, default_value = "")]
    source: String,

    /// Where the ingest service, or a worker without an outbox, publishes
    #[arg(long, env = "HAPAX_SINK", hide_env_values = true, default_value = "")]
    pub(super) sink: String,

    /// The address of the ingest service
    #[arg(long, default_value = "127.0.0.1:0")]
    pub(super) listen: SocketAddr,

    /// Where a worker or consumer writes what it caught
    #[arg(long, default_value = "/dev/null")]
    notes: PathBuf,

    /// The seed of the run
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,

    /// The layer that the run leaves out
    #[arg(long)]
    pub(super) without: Option<OmittedLayer>,
}

/// What a service of the pipeline does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    /// Takes orders over HTTP and puts them into the queue
    Ingest,
    /// Takes orders out of the queue and charges cards
    Worker,
    /// Takes events of charges and sends receipts
    Consumer,
}

/// Runs a service of the demo until its process is killed.
///
/// # Errors
/// If the service cannot start or ends.
///
/// # Cancel safety
/// Dropping the future stops the service as a crash does.
pub async fn run_service(args: DemoServiceArgs) -> Result<ExitCode, DemoError> {
    let ended = serve(&args).await;
    ended.map(|()| ExitCode::SUCCESS).map_err(DemoError::CannotStart)
}

async fn serve(args: &DemoServiceArgs) -> Result<()> {
    match args.role {
        Role::Ingest => ingest::serve(args).await,
        Role::Worker => work(args, places::charge_messages(args).await?, PAYMENTS).await,
        Role::Consumer => work(args, places::send_receipts(args)?, RECEIPTS).await,
    }
}

/// How long a message belongs to a worker.
const MESSAGE_LEASE: Duration = Duration::from_millis(1500);

/// Processes messages until the process is killed.
async fn work(args: &DemoServiceArgs, process: Arc<dyn Process>, namespace: &str) -> Result<()> {
    let letters = args.database.parse::<StoreUrl>()?.dead_letters(runtime())?;
    let process = NotedProcess::new(process, &args.notes)?;
    let source = args.source.parse::<SourceUrl>()?.open(runtime(), MESSAGE_LEASE).await?;
    let source = RedriveSource::new(source, Arc::clone(&letters), runtime());
    let worker = Worker::builder(Box::new(source), Arc::new(process), letters as _);
    let worker = worker.identity(MessageIdentity::new(namespace)?).build()?;
    worker.run(pending()).await.map(drop).context("the worker ended")
}

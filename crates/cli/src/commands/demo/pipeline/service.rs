//! `hapax demo-service`: a service of the pipeline, in a process of its own. It ends by `kill -9` only.

use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use hapax::broker::Process;
use hapax::runtime::{Runtime, Tokio};
use hapax::worker::{MessageIdentity, RedriveSource, Worker};

use super::delivery::NotedProcess;
use super::{consumer, ingest, worker};
use crate::commands::demo::OmittedLayer;
use crate::serve::exit::CommandError;
use crate::store::wiring::sources::SourceUrl;
use crate::store::wiring::{StoreUrl, dead};

/// The arguments of `hapax demo-service`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoServiceArgs {
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

impl DemoServiceArgs {
    /// The database, parsed. Its text has the password and the schema, too.
    pub(super) fn database(&self) -> Result<StoreUrl> {
        self.database.parse()
    }
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

/// The services write their rows by SQL.
pub(super) const NO_DATABASE: &str = "the services of the demo need PostgreSQL or SQLite";

/// Runs the service.
pub(crate) async fn run(args: DemoServiceArgs) -> Result<ExitCode, CommandError> {
    match args.role {
        Role::Ingest => ingest::serve(&args).await.map_err(CommandError::cannot_start)?,
        Role::Worker => work(&args, worker::NAMESPACE, worker::process(&args).await).await?,
        Role::Consumer => work(&args, consumer::NAMESPACE, consumer::process(&args)).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// How long a message belongs to a worker.
pub(super) const MESSAGE_LEASE: Duration = Duration::from_millis(1500);

/// Processes messages until the process is killed.
async fn work(args: &DemoServiceArgs, namespace: &str, process: Result<Arc<dyn Process>>) -> Result<(), CommandError> {
    let runtime = Arc::new(Tokio::current()) as Arc<dyn Runtime>;
    let letters = dead::create(&args.database().map_err(CommandError::usage)?, Arc::clone(&runtime))?;
    let process = process.and_then(|process| NotedProcess::new(process, &args.notes));
    let ended = async {
        let source: SourceUrl = args.source.parse()?;
        let source = source.open(Arc::clone(&runtime), MESSAGE_LEASE).await?;
        let source = RedriveSource::new(source, Arc::clone(&letters), runtime);
        let worker = Worker::builder(Box::new(source), Arc::new(process?), letters as _);
        let worker = worker.identity(MessageIdentity::new(namespace)?).build()?;
        worker.run(pending()).await.map(drop).context("the worker ended")
    };
    ended.await.map_err(CommandError::cannot_start)
}

//! `hapax demo`: the package `hapax-demo` runs it, and opens by this module what its URLs name.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Error, Result, anyhow, bail};
use async_trait::async_trait;
use hapax::broker::{DeadLetterStore, Source};
use hapax::outbox::{OutboxUpkeep, Sink};
use hapax::runtime::{Runtime, Tokio};
use hapax_demo::{DemoArgs, DemoError, DemoServiceArgs, Systems};
use hapax_systems::{SinkUrl, SourceUrl, StoreUrl};

use crate::serve::exit::CommandError;
use crate::serve::logs::{Log, LogSettings};

pub(crate) use hapax_demo::end_with_demo;

/// The commands of the demo.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum DemoCommand {
    /// Run hostile clients, crashes and pauses against all three layers or without one of them, and audit the result.
    Demo(DemoArgs),
    /// A service of the demo.
    #[command(hide = true)]
    DemoService(DemoServiceArgs),
}

/// Runs the demo, or one of its services.
pub(crate) async fn run(command: DemoCommand) -> Result<ExitCode, CommandError> {
    let systems = WiredSystems { runtime: Arc::new(Tokio::current()) };
    let ended = match command {
        DemoCommand::Demo(args) => {
            if args.logs() {
                start_log()?;
            }
            hapax_demo::run(args, &systems).await
        }
        DemoCommand::DemoService(args) => {
            start_log()?;
            hapax_demo::run_service(args, &systems).await
        }
    };
    ended.map_err(command_error)
}

/// Starts a log. The demo has no configuration: only the variable HAPAX_LOG counts.
fn start_log() -> Result<(), CommandError> {
    let levels = env::var_os("HAPAX_LOG").unwrap_or_else(|| "info".into());
    let levels = levels.to_string_lossy().parse();
    let levels = levels.map_err(|error: Error| CommandError::usage(anyhow!("HAPAX_LOG: {error:#}")))?;
    let log = LogSettings { levels, format: None, file: None, collector: None };
    Log::start(&log).map(drop).map_err(CommandError::cannot_start)
}

fn command_error(error: DemoError) -> CommandError {
    match error {
        DemoError::Usage(error) => CommandError::usage(error),
        DemoError::CannotStart(error) => CommandError::cannot_start(error),
        DemoError::Failed(error) => CommandError::failed(error),
    }
}

/// The systems of this build.
#[derive(Debug)]
struct WiredSystems {
    runtime: Arc<dyn Runtime>,
}

impl WiredSystems {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }
}

#[async_trait]
impl Systems for WiredSystems {
    fn check_store(&self, url: &str) -> Result<()> {
        if url.parse::<StoreUrl>()?.ends_with_process() {
            bail!("two gateways cannot share memory:; name another store");
        }
        Ok(())
    }

    async fn source(&self, url: &str, lease: Duration) -> Result<Box<dyn Source>> {
        Ok(url.parse::<SourceUrl>()?.open(self.runtime(), lease).await?)
    }

    async fn sink(&self, url: &str) -> Result<Arc<dyn Sink>> {
        Ok(url.parse::<SinkUrl>()?.open(self.runtime()).await?)
    }

    fn outbox(&self, database: &str) -> Result<Arc<dyn OutboxUpkeep>> {
        Ok(database.parse::<StoreUrl>()?.outbox(self.runtime(), false)?.upkeep)
    }

    fn dead_letters(&self, database: &str) -> Result<Arc<dyn DeadLetterStore>> {
        Ok(database.parse::<StoreUrl>()?.dead_letters(self.runtime())?)
    }
}

//! `hapax demo`: the package `hapax-demo` runs it, and opens by this module what its URLs name.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use async_trait::async_trait;
use hapax::broker::{DeadLetterStore, Source};
use hapax::outbox::{OutboxUpkeep, Sink};
use hapax::runtime::{Runtime, Tokio};
use hapax_demo::{DemoError, Systems};

use crate::serve::exit::CommandError;
use crate::store::wiring::sinks::EventSink;
use crate::store::wiring::sources::SourceUrl;
use crate::store::wiring::{StoreUrl, dead, outbox};

pub(crate) use hapax_demo::{DemoArgs, DemoServiceArgs, end_with_demo};

/// Runs the demo.
pub(crate) async fn run(args: DemoArgs) -> Result<ExitCode, CommandError> {
    hapax_demo::run(args, &WiredSystems::new()).await.map_err(command_error)
}

/// Runs one of its services.
pub(crate) async fn run_service(args: DemoServiceArgs) -> Result<ExitCode, CommandError> {
    hapax_demo::run_service(args, &WiredSystems::new()).await.map_err(command_error)
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
    fn new() -> Self {
        Self { runtime: Arc::new(Tokio::current()) }
    }

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
        Ok(EventSink { place: url.parse()?, template: None }.open(self.runtime()).await?)
    }

    fn outbox(&self, database: &str) -> Result<Arc<dyn OutboxUpkeep>> {
        let opened = outbox::create(&database.parse()?, self.runtime(), false).map_err(CommandError::into_error)?;
        Ok(opened.upkeep)
    }

    fn dead_letters(&self, database: &str) -> Result<Arc<dyn DeadLetterStore>> {
        dead::create(&database.parse()?, self.runtime()).map_err(CommandError::into_error)
    }
}

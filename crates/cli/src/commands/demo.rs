//! `hapax demo`: the package `hapax-demo` runs it.

use std::env;
use std::process::ExitCode;

use anyhow::{Error, anyhow};
use hapax_demo::{DemoArgs, DemoError, DemoServiceArgs};

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
    let ended = match command {
        DemoCommand::Demo(args) => {
            if args.logs() {
                start_log()?;
            }
            hapax_demo::run(args).await
        }
        DemoCommand::DemoService(args) => {
            start_log()?;
            hapax_demo::run_service(args).await
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

//! `hapax worker`: takes messages from a broker, hands each to a service, and acknowledges it afterwards.

use std::process::ExitCode;

use crate::config::{Configured, Flags, HasFlags, WorkerConfig};
use crate::serve::exit::CommandError;
use crate::serve::frame::{handle_hangups, print_checked};
use crate::worker::run;

/// The arguments of `hapax worker`.
pub(crate) type WorkerArgs = Flags<WorkerFlags>;

#[derive(Debug)]
pub(crate) struct WorkerFlags;

impl HasFlags for WorkerFlags {
    const COMMAND: Configured = Configured::Worker;
    const AFTER_HELP: &str = "\
The target gets one POST for each message. A record in --store keeps a second copy from running while the first one
runs, and after its outcome is known. The record does not commit with the effect: if the target, or the connection to
it, fails while it works, the outcome is unknown, and --on-lapse decides. A service that must be exact about that keeps
a ledger in its own database.";
}

pub(crate) async fn run(args: WorkerArgs) -> Result<ExitCode, CommandError> {
    let hangups = handle_hangups()?;
    let config = WorkerConfig::load(&args).map_err(CommandError::usage)?;
    if args.check {
        return Ok(print_checked(&config.show()));
    }
    run::run(config, hangups).await
}

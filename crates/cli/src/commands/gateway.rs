//! `hapax gateway`: stands in front of an HTTP API and makes its requests safe to retry.

use std::process::ExitCode;

use crate::config::{Config, Configured, Flags, HasFlags};
use crate::gateway::{limits, run};
use crate::serve::exit::CommandError;
use crate::serve::frame::{handle_hangups, print_checked};

/// The arguments of `hapax gateway`.
pub(crate) type GatewayArgs = Flags<GatewayFlags>;

#[derive(Debug)]
pub(crate) struct GatewayFlags;

impl HasFlags for GatewayFlags {
    const COMMAND: Configured = Configured::Gateway;
    const AFTER_HELP: &str = limits::HELP;
}

pub(crate) async fn run(args: GatewayArgs) -> Result<ExitCode, CommandError> {
    let hangups = handle_hangups()?;
    let config = Config::load(&args).map_err(CommandError::usage)?;
    if args.check {
        return Ok(print_checked(&config.show()));
    }
    run::run(config, hangups).await
}

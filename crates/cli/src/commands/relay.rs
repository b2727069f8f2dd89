//! `hapax relay`: publishes the events of an outbox after their transactions have committed.

use std::process::ExitCode;

use crate::config::{Configured, Flags, HasFlags, RelayConfig};
use crate::relay::run;
use crate::serve::exit::CommandError;
use crate::serve::frame::handle_hangups;

/// The arguments of `hapax relay`.
pub(crate) type RelayArgs = Flags<RelayFlags>;

#[derive(Debug)]
pub(crate) struct RelayFlags;

impl HasFlags for RelayFlags {
    const COMMAND: Configured = Configured::Relay;
    const CHECK_HELP: &str = "Check the configuration, the database and the sink, print what they are, and exit";
    const AFTER_HELP: &str = "\
Examples:
  hapax relay --database postgres://relay@db.example/shop --sink nats://nats.example
  hapax relay --database postgres://relay@db.example/shop --sink kafka://kafka.example --topic-template 'shop.{topic}'
  hapax relay --database sqlite://shop.db --sink 'sqlite://orders.db?queue=orders'
  hapax relay --database sqlite://shop.db --sink https://shop.example/hooks --webhook-secret-file secret

Events of one ordering key are published one after the other, in the order of their rows. An event that the sink refuses
for good parks its key: see `hapax outbox`. After a crash an event is published again under the same id; the log says at
the start for how long the sink recognizes that. A consumer with a ledger always does.";
}

pub(crate) async fn run(args: RelayArgs) -> Result<ExitCode, CommandError> {
    let hangups = handle_hangups()?;
    let config = RelayConfig::load(&args).map_err(CommandError::usage)?;
    if args.check { run::check(&config).await } else { run::run(config, hangups).await }
}

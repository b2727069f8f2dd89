//! A build without PostgreSQL has no run on servers.

use std::sync::Arc;

use anyhow::{Result, bail};
use hapax::broker::Process;
use hapax::outbox::Sink;

use super::ServerUrls;
use super::books::ShopBooks;
use super::ingest::Intake;
use super::places::Places;
use super::service::DemoServiceArgs;

const NO_SERVERS: &str = "this build does not include PostgreSQL; build it with the feature `postgres`";

pub(super) fn check(_servers: &ServerUrls) -> Result<()> {
    bail!("--database: {NO_SERVERS}")
}

pub(super) async fn create(_servers: &ServerUrls) -> Result<(Places, Arc<dyn ShopBooks>)> {
    bail!(NO_SERVERS)
}

pub(super) fn intake(_args: &DemoServiceArgs, _sink: Arc<dyn Sink>) -> Result<Box<dyn Intake>> {
    bail!(NO_SERVERS)
}

pub(super) fn charge_messages(_database: &str) -> Result<Arc<dyn Process>> {
    bail!(NO_SERVERS)
}

pub(super) fn send_receipts(_database: &str) -> Result<Arc<dyn Process>> {
    bail!(NO_SERVERS)
}

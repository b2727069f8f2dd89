//! A run on servers: a store, a PostgreSQL database, and Kafka or NATS. The services work as in files, but the ingest
//! service publishes its messages at the broker, after which it writes the request down.

mod books;
mod broker;
mod handlers;
mod intake;
mod link;

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use hapax::outbox::Sink;
use hapax::stores::{PostgresTables, PostgresUrl};
use hapax_systems::SinkUrl;

use self::books::ServerBooks;
use self::broker::RunBroker;
pub(super) use self::handlers::{charge_messages, send_receipts};
use self::intake::ServerIntake;
use self::link::ServerLink;
use super::ServerUrls;
use super::books::ShopBooks;
use super::ingest::Intake;
use super::places::Places;
use super::service::DemoServiceArgs;
use crate::random::fresh_seed;
use crate::runtime;

/// Refuses URLs that no run can use.
pub(super) fn check(servers: &ServerUrls) -> Result<()> {
    if servers.database.contains('?') {
        bail!("--database: the demo takes no parameters and connects without TLS; remove the question mark");
    }
    servers.database.parse::<PostgresUrl>().context("--database")?;
    RunBroker::new(&servers.broker, String::new()).context("--broker")?;
    Ok(())
}

/// What the ingest service does on servers.
pub(super) fn intake(args: &DemoServiceArgs, sink: Arc<dyn Sink>) -> Result<Box<dyn Intake>> {
    Ok(Box::new(ServerIntake::open(&args.database, sink, args.seed)?))
}

/// Creates the schema and the topics or streams of a run.
pub(super) async fn create(servers: &ServerUrls) -> Result<(Places, Arc<dyn ShopBooks>)> {
    let run = format!("hapax-demo-{:08x}", fresh_seed());
    let schema = run.replace('-', "_");
    let shop = format!("{}?schema={schema}", servers.database);
    let url = shop.parse().context("--database")?;
    // It creates the schema, too.
    PostgresTables::connect(&url)?.create().await.context("--database")?;
    let link = ServerLink::new(&shop)?;
    for statement in include_str!("on_servers/shop.sql").split(';').filter(|statement| !statement.trim().is_empty()) {
        link.query(statement, &[]).await.context("--database")?;
    }
    let broker = RunBroker::new(&servers.broker, run)?;
    if let Err(error) = broker.create().await {
        // The error of the broker says more than one of the database.
        let _ = link.query(&format!("drop schema {schema} cascade"), &[]).await;
        return Err(error.context("--broker"));
    }
    let charges = broker.charges();
    let intake = ServerIntake::open(&shop, charges.parse::<SinkUrl>()?.open(runtime()).await?, 0)?;
    let places = Places {
        store: servers.store.clone(),
        post: shop.clone(),
        shop,
        charges,
        to_workers: broker.to_workers(),
        receipts: broker.receipts(),
        to_consumers: broker.to_consumers(),
    };
    Ok((places, Arc::new(ServerBooks::new(schema, link, intake, broker))))
}

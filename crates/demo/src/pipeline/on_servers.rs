//! A run on servers: a store, a PostgreSQL database, and Kafka or NATS. The services work as in files, but the ingest
//! service publishes its messages at the broker, after which it writes the request down.

mod books;
mod handlers;
mod intake;
mod link;

use std::array;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hapax::outbox::Sink;
use hapax::stores::{PostgresTables, PostgresUrl};
use hapax_systems::{BrokerUrl, SinkUrl, TopicPlan};

use self::books::ServerBooks;
pub(super) use self::handlers::{charge_messages, send_receipts};
use self::intake::ServerIntake;
use self::link::ServerLink;
use super::ServerUrls;
use super::books::ShopBooks;
use super::ingest::Intake;
use super::messages::{CHARGES, RECEIPTS};
use super::places::{EACH, Places};
use super::service::DemoServiceArgs;
use crate::random::fresh_seed;
use crate::runtime;

/// Refuses URLs that no run can use.
pub(super) fn check(servers: &ServerUrls) -> Result<()> {
    if servers.database.contains('?') {
        bail!("--database: the demo takes no parameters and connects without TLS; remove the question mark");
    }
    servers.database.parse::<PostgresUrl>().context("--database")?;
    servers.broker.parse::<BrokerUrl>().context("--broker")?;
    Ok(())
}

/// What the ingest service does on servers.
pub(super) fn intake(args: &DemoServiceArgs, sink: Arc<dyn Sink>) -> Result<Box<dyn Intake>> {
    Ok(Box::new(ServerIntake::open(&args.database, sink, args.seed)?))
}

/// Creates the schema and the topics or streams of a run.
pub(super) async fn create(servers: &ServerUrls) -> Result<(Places, Arc<dyn ShopBooks>)> {
    let run = format!("hapax-demo-{:08x}-", fresh_seed());
    let schema = run.trim_end_matches('-').replace('-', "_");
    let shop = format!("{}?schema={schema}", servers.database);
    let url = shop.parse().context("--database")?;
    // It creates the schema, too.
    PostgresTables::connect(&url)?.create().await.context("--database")?;
    let link = ServerLink::new(&shop)?;
    for statement in include_str!("on_servers/shop.sql").split(';').filter(|statement| !statement.trim().is_empty()) {
        link.query(statement, &[]).await.context("--database")?;
    }
    let broker: BrokerUrl = servers.broker.parse()?;
    let [charges, receipts] = topics(&run);
    for topic in [&charges, &receipts] {
        if let Err(error) = broker.create(topic).await {
            // The first error says why. The topic before may be there.
            let _ = broker.remove(&charges.name()).await;
            let _ = link.query(&format!("drop schema {schema} cascade"), &[]).await;
            return Err(error.context("--broker"));
        }
    }
    let to_charges = broker.sink(&charges);
    let intake = ServerIntake::open(&shop, to_charges.parse::<SinkUrl>()?.open(runtime()).await?, 0)?;
    let places = Places {
        store: servers.store.clone(),
        post: shop.clone(),
        shop,
        charges: to_charges,
        to_workers: array::from_fn(|worker| broker.source(&charges, worker)),
        receipts: broker.sink(&receipts),
        to_consumers: array::from_fn(|consumer| broker.source(&receipts, consumer)),
    };
    let topics = (broker, [charges, receipts].map(|topic| topic.name()));
    Ok((places, Arc::new(ServerBooks::new(schema, link, intake, topics))))
}

/// The topics of a run. Each consumer has a part of the receipts, so that they keep their order.
fn topics(run: &str) -> [TopicPlan; 2] {
    // Copies are recognized by the ledger and the inbox, not by the broker.
    let topic = |name| TopicPlan { window: Some(Duration::from_millis(100)), ..TopicPlan::new(run, name) };
    [topic(CHARGES), TopicPlan { parts: EACH, ..topic(RECEIPTS) }]
}

//! A relay from PostgreSQL to a broker, over the library alone.

use std::env;
use std::sync::Arc;

use anyhow::bail;
use hapax::Millis;
use hapax::brokers::{NatsSink, NatsSinkConfig};
use hapax::relay::{Relay, RelaySettings};
use hapax::runtime::Tokio;
use hapax::stores::{Postgres, PostgresOutbox};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [database, sink] = &arguments[..] else { bail!("give a database and a sink") };
    let runtime = Arc::new(Tokio::current());
    let config: NatsSinkConfig = sink.parse()?;
    let sink = NatsSink::open(config, Arc::<Tokio>::clone(&runtime)).await?;
    let url = database.parse()?;
    let outbox = Arc::new(PostgresOutbox::connect(&url)?);
    let store = Arc::new(Postgres::with(&url, runtime)?);
    let mut settings = RelaySettings::default();
    settings.lease = Millis(2000);
    let relay = Relay::builder(outbox, store, Arc::new(sink)).settings(settings).build()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let shutdown = async move {
        terminate.recv().await;
    };
    relay.run(shutdown).await?;
    Ok(())
}

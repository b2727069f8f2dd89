use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures_util::StreamExt;
use hapax_brokers::NatsSink;
use hapax_core::relay::Relay;
use hapax_core::runtime::Tokio;
use hapax_stores::{Postgres, PostgresOutbox, PostgresUrl};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

use super::RelayBench;
use super::brokers::BenchBroker;
use super::nats::NatsBroker;
use crate::harness::BatchResult;

/// The events that are emitted behind the kill: in all buckets, because each has a key of its own.
const EVENTS: usize = 640;

/// Until two relays that start share the buckets: the first one gives back one every half second.
const REBALANCED: Duration = Duration::from_secs(20);

/// How long the events may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that publishes. It ends when its standard input does, at the latest with this process.
struct RelayProcess(Child);

impl RelayProcess {
    fn start(postgres: &str, nats: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        Ok(Self(command.args(["publish", postgres, nats]).stdin(Stdio::piped()).spawn()?))
    }

    /// SIGKILL.
    fn kill(&mut self) -> anyhow::Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Kills one of two relays. The rate is how many milliseconds its events take until another relay has published them.
pub(super) async fn measure(bench: &RelayBench, nats: &NatsBroker) -> anyhow::Result<BatchResult> {
    let (topic, postgres) = (bench.new_topic(), bench.postgres.url());
    let client = bench.postgres.client().await?;
    // The measurement before this one may have killed its relay between a delivery and its mark. The stream of such an
    // event is gone, so the event would block its ordering key for ever.
    client.batch_execute("truncate hapax_outbox").await?;
    nats.create(&topic).await?;
    let mut first = RelayProcess::start(&postgres, &nats.url())?;
    let second = RelayProcess::start(&postgres, &nats.url())?;
    let mut arrivals = nats.arrivals(&topic).await?;
    let insert = client.prepare(include_str!("emit_timed.sql")).await?;
    sleep(REBALANCED).await;
    let killed = Instant::now();
    first.kill()?;
    client.query(&insert, &[&topic, &&b"late"[..], &i64::try_from(EVENTS)?, &0_i64]).await?;
    client.batch_execute("notify hapax_outbox").await?;
    let (mut late, mut longest) = (0, Duration::ZERO);
    for _ in 0..EVENTS {
        let next = timeout(PATIENCE, arrivals.next()).await.context("an event does not arrive")?;
        next.context("the stream ended")??;
        longest = killed.elapsed();
        late += usize::from(longest > Duration::from_secs(1));
    }
    drop(second);
    nats.remove(&topic).await?;
    ensure!(late > 0, "the relay that was killed had no bucket");
    let note =
        format!("{late} of {EVENTS} events took more than a second, the last one {:.1} s", longest.as_secs_f64());
    Ok(BatchResult { rate: longest.as_secs_f64() * 1e3, note })
}

/// Publishes until the standard input ends. Runs in a child process of `measure`.
pub(crate) fn publish_until_end(words: &[String]) -> anyhow::Result<()> {
    let [postgres, nats] = words else { anyhow::bail!("the arguments are a database and a server") };
    let url: PostgresUrl = postgres.parse()?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let tokio = Arc::new(Tokio::current());
        let sink = Arc::new(NatsSink::open(nats.parse()?, Arc::clone(&tokio) as _).await?);
        let outbox = Arc::new(PostgresOutbox::connect(&url)?);
        let store = Arc::new(Postgres::with(&url, tokio)?);
        let relay = Relay::builder(Arc::clone(&outbox) as _, store, sink).upkeep(outbox).build()?;
        let end = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        relay.run(async { drop(end.await) }).await?;
        Ok(())
    })
}

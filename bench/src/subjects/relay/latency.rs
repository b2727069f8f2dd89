use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use async_nats::jetstream::consumer::push::Ordered;
use futures_util::StreamExt;
use hapax_core::relay::Relay;
use hapax_core::runtime::Tokio;
use hapax_stores::{Postgres, PostgresOutbox};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_postgres::Client;

use super::RelayBench;
use super::brokers::BenchBroker;
use super::nats::NatsBroker;
use crate::harness::BatchResult;

/// How often a writer notifies the relays at most.
const NOTIFY_EVERY: Duration = Duration::from_millis(20);

/// How long an event may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// How events are emitted.
#[derive(Clone, Copy)]
pub(super) struct LatencyPlan {
    /// The time between two transactions.
    every: Duration,
    /// The events of a transaction.
    events: usize,
    transactions: usize,
    /// Transactions whose events are not counted, because the relay has just started.
    warm_up: usize,
    has_notifications: bool,
}

impl LatencyPlan {
    /// 1,000 events a second, for 5 seconds.
    pub(super) fn busy() -> Self {
        Self { every: Duration::from_millis(10), events: 10, transactions: 600, warm_up: 100, has_notifications: false }
    }

    /// 5 events a second, for 10 seconds.
    pub(super) fn quiet() -> Self {
        Self { every: Duration::from_millis(200), events: 1, transactions: 55, warm_up: 5, has_notifications: false }
    }

    pub(super) fn with_notifications(self) -> Self {
        Self { has_notifications: true, ..self }
    }
}

/// Measures from before the insert of an event until a consumer has it. The rate is the p99 in microseconds.
pub(super) async fn measure(bench: &RelayBench, nats: &NatsBroker, plan: LatencyPlan) -> anyhow::Result<BatchResult> {
    let (topic, url) = (bench.new_topic(), bench.url()?);
    nats.create(&topic).await?;
    let outbox = PostgresOutbox::connect(&url)?;
    let outbox = Arc::new(if plan.has_notifications { outbox } else { outbox.without_notifications() });
    let store = Arc::new(Postgres::with(&url, Arc::new(Tokio::current()))?);
    let relay = Relay::builder(Arc::clone(&outbox) as _, store, nats.sink().await?).upkeep(outbox).build()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let relay = tokio::spawn(relay.run(async { drop(stopped.await) }));
    let arrivals = nats.arrivals(&topic).await?;
    let writer = bench.postgres.client().await?;
    let notifier = bench.postgres.client().await?;
    let epoch = Instant::now();
    let emitting = emit(&writer, plan.has_notifications.then_some(&notifier), (&topic, plan, epoch));
    let (emitted, lags) = tokio::join!(emitting, receive(arrivals, plan, epoch));
    emitted?;
    let mut lags = lags?;
    let _ = stop.send(());
    relay.await??;
    nats.remove(&topic).await?;
    lags.sort_unstable();
    let at = |percent: usize| lags[(lags.len() * percent / 100).min(lags.len() - 1)] as f64;
    Ok(BatchResult { rate: at(99), note: format!("p50 {:.1} ms, p99 {:.1} ms", at(50) / 1e3, at(99) / 1e3) })
}

/// Emits events whose payload is the time in microseconds since the epoch.
async fn emit(
    writer: &Client,
    notifier: Option<&Client>,
    (topic, plan, epoch): (&str, LatencyPlan, Instant),
) -> anyhow::Result<()> {
    let insert = writer.prepare(include_str!("emit_timed.sql")).await?;
    let mut ticks = interval(plan.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut notified: Option<Instant> = None;
    for number in 0..plan.transactions {
        ticks.tick().await;
        let (now, first) = (epoch.elapsed().as_micros().to_string(), i64::try_from(number * plan.events)?);
        writer.query(&insert, &[&topic, &now.as_bytes(), &i64::try_from(plan.events)?, &first]).await?;
        if let Some(notifier) = notifier
            && notified.is_none_or(|notified| notified.elapsed() >= NOTIFY_EVERY)
        {
            notifier.batch_execute("notify hapax_outbox").await?;
            notified = Some(Instant::now());
        }
    }
    Ok(())
}

/// Receives all events. Returns how many microseconds each took after the warm-up.
async fn receive(mut arrivals: Ordered, plan: LatencyPlan, epoch: Instant) -> anyhow::Result<Vec<u64>> {
    let mut lags = Vec::new();
    for number in 0..plan.transactions * plan.events {
        let next = timeout(PATIENCE, arrivals.next()).await.context("an event does not arrive")?;
        let message = next.context("the stream ended")??;
        let emitted: u64 = std::str::from_utf8(&message.payload)?.parse()?;
        if number >= plan.warm_up * plan.events {
            lags.push(u64::try_from(epoch.elapsed().as_micros())?.saturating_sub(emitted));
        }
    }
    ensure!(!lags.is_empty(), "nothing was measured");
    Ok(lags)
}

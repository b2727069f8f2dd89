use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use anyhow::{Context, ensure};
use async_trait::async_trait;
use hapax_core::Result;
use hapax_core::outbox::{EventRow, Horizon, MarkedRows, OpenRows, Outbox, ParkedRow, ReadRequest, Sink};
use hapax_core::relay::Relay;
use hapax_stores::{Postgres, PostgresOutbox, PostgresUrl};
use tokio::sync::Notify;

use crate::harness::{BatchResult, own_seconds_of_cpu};

/// Runs a relay until it has marked so many events. The rate counts from its first read to its last mark.
pub(super) async fn drain(url: &PostgresUrl, sink: Arc<dyn Sink>, events: usize) -> anyhow::Result<BatchResult> {
    let outbox = Arc::new(PostgresOutbox::connect(url)?);
    let timed = Arc::new(TimedOutbox::new(Arc::clone(&outbox), events));
    let store = Arc::new(Postgres::with(url, Arc::new(hapax_core::runtime::Tokio::current()))?);
    let relay = Relay::builder(Arc::clone(&timed) as _, store, sink).upkeep(outbox).build()?;
    let before = own_seconds_of_cpu()?;
    let end = relay.run(timed.end.notified()).await?;
    let cpu = (own_seconds_of_cpu()? - before) / events as f64;
    ensure!(end.unconfirmed == 0, "{} events are not confirmed", end.unconfirmed);
    let (begun, ended) = timed.begun.get().zip(timed.ended.get()).context("no event was published")?;
    let rate = events as f64 / ended.duration_since(*begun).as_secs_f64();
    Ok(BatchResult { rate, note: format!("{:.0} us of CPU each in this process", cpu * 1e6) })
}

/// Notes the first read and the last mark.
#[derive(Debug)]
struct TimedOutbox {
    inner: Arc<PostgresOutbox>,
    begun: OnceLock<Instant>,
    left: AtomicUsize,
    ended: OnceLock<Instant>,
    end: Notify,
}

impl TimedOutbox {
    fn new(inner: Arc<PostgresOutbox>, events: usize) -> Self {
        let (begun, ended) = (OnceLock::new(), OnceLock::new());
        Self { inner, begun, left: AtomicUsize::new(events), ended, end: Notify::new() }
    }
}

#[async_trait]
impl Outbox for TimedOutbox {
    async fn read(&self, request: &ReadRequest) -> Result<OpenRows> {
        self.begun.get_or_init(Instant::now);
        self.inner.read(request).await
    }

    async fn mark(&self, rows: &[EventRow], republications: u64) -> Result<MarkedRows> {
        let marked = self.inner.mark(rows, republications).await?;
        if marked.marked > 0 && self.left.fetch_sub(marked.marked, Ordering::SeqCst) == marked.marked {
            self.ended.get_or_init(Instant::now);
            self.end.notify_one();
        }
        Ok(marked)
    }

    async fn park(&self, rows: &[ParkedRow]) -> Result<Vec<EventRow>> {
        self.inner.park(rows).await
    }

    async fn set_aside(&self, rows: &[EventRow]) -> Result<()> {
        self.inner.set_aside(rows).await
    }

    async fn horizon(&self) -> Result<Horizon> {
        self.inner.horizon().await
    }

    async fn wait_for_rows(&self) {
        self.inner.wait_for_rows().await;
    }
}

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use anyhow::{Context, ensure};
use async_trait::async_trait;
use hapax_core::Result;
use hapax_core::broker::{Capability, Event, Job, MemoryDeadLetterStore, Process, Room, Settle, Source, Verdict};
use hapax_core::runtime::Tokio;
use hapax_core::worker::{MessageIdentity, Worker, WorkerSettings};
use tokio::sync::Notify;

use crate::harness::{BatchResult, own_seconds_of_cpu};

/// The messages that a worker processes in one measurement, and its settings.
#[derive(Clone, Copy)]
pub(super) struct DrainPlan {
    pub(super) messages: usize,
    settings: WorkerSettings,
    /// Whether every message is a copy.
    is_caught: bool,
}

impl DrainPlan {
    /// New messages, so many transactions at once, so many messages to a transaction.
    pub(super) fn new(messages: usize, at_once: usize, batch: usize) -> Self {
        let mut settings = WorkerSettings::default();
        (settings.concurrency, settings.batch) = (at_once, batch);
        Self { messages, settings, is_caught: false }
    }

    /// The same with messages that were processed before.
    pub(super) fn caught(self) -> Self {
        Self { is_caught: true, ..self }
    }
}

/// Runs a worker until it has processed the messages. The rate counts from the first delivery to the last verdict.
pub(super) async fn drain(
    source: Box<dyn Source>,
    process: Arc<dyn Process>,
    plan: DrainPlan,
) -> anyhow::Result<BatchResult> {
    let progress = Arc::new(DrainProgress::new(plan));
    let source = Box::new(TimedSource { inner: source, progress: Arc::clone(&progress) });
    let process = Arc::new(CountedProcess { inner: process, progress: Arc::clone(&progress) });
    let dead = Arc::new(MemoryDeadLetterStore::new(Arc::new(Tokio::current())));
    let worker = Worker::builder(source, process, dead);
    let worker = worker.identity(MessageIdentity::new("bench")?).settings(plan.settings).build()?;
    let before = own_seconds_of_cpu()?;
    worker.run(progress.end.notified()).await?;
    let cpu = (own_seconds_of_cpu()? - before) / plan.messages as f64;
    let wrong = progress.wrong.load(Ordering::SeqCst);
    ensure!(wrong == 0, "{wrong} messages had no or another effect");
    let (begun, ended) = progress.begun.get().zip(progress.ended.get()).context("no message was processed")?;
    let rate = plan.messages as f64 / ended.duration_since(*begun).as_secs_f64();
    Ok(BatchResult { rate, note: format!("{:.0} us of CPU each in this process", cpu * 1e6) })
}

#[derive(Debug)]
struct DrainProgress {
    is_caught: bool,
    begun: OnceLock<Instant>,
    left: AtomicUsize,
    wrong: AtomicUsize,
    ended: OnceLock<Instant>,
    end: Notify,
}

impl DrainProgress {
    fn new(plan: DrainPlan) -> Self {
        Self {
            is_caught: plan.is_caught,
            begun: OnceLock::new(),
            left: AtomicUsize::new(plan.messages),
            wrong: AtomicUsize::new(0),
            ended: OnceLock::new(),
            end: Notify::new(),
        }
    }

    fn note(&self, verdicts: &[Verdict]) {
        let is_done = |verdict: &&Verdict| matches!(verdict, Verdict::Done { caught } if *caught == self.is_caught);
        let is_later = |verdict: &&Verdict| matches!(verdict, Verdict::Busy { .. } | Verdict::Pause { .. });
        let (done, later) = (verdicts.iter().filter(is_done).count(), verdicts.iter().filter(is_later).count());
        let ended = verdicts.len() - later;
        self.wrong.fetch_add(ended - done, Ordering::SeqCst);
        if self.left.fetch_sub(ended, Ordering::SeqCst) == ended {
            self.ended.get_or_init(Instant::now);
            self.end.notify_one();
        }
    }
}

/// Notes when the first messages arrive.
#[derive(Debug)]
struct TimedSource {
    inner: Box<dyn Source>,
    progress: Arc<DrainProgress>,
}

#[async_trait]
impl Source for TimedSource {
    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn settler(&self) -> Arc<dyn Settle> {
        self.inner.settler()
    }

    async fn next(&mut self, room: Room) -> Result<Event> {
        let event = self.inner.next(room).await?;
        if matches!(event, Event::Deliveries(_)) {
            self.progress.begun.get_or_init(Instant::now);
        }
        Ok(event)
    }

    async fn close(&mut self) -> Result<()> {
        self.inner.close().await
    }
}

/// Counts verdicts.
#[derive(Debug)]
struct CountedProcess {
    inner: Arc<dyn Process>,
    progress: Arc<DrainProgress>,
}

#[async_trait]
impl Process for CountedProcess {
    async fn process(&self, jobs: Vec<Job>) -> Vec<Verdict> {
        let verdicts = self.inner.process(jobs).await;
        self.progress.note(&verdicts);
        verdicts
    }
}

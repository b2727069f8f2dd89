//! `hapax worker` with a service behind HTTP, as real processes: two workers share a source and a store. Workers are
//! killed and stopped for longer than a lease, the service is killed, hangs up after its effect and fails, and the
//! broker restarts. Then an audit compares the journal of the service with the messages and the dead letters. One
//! worker alone keeps the order of messages of NATS, while it is stopped in order and its connections break.
//!
//! ```text
//! source (SQLite queue or NATS) ──► hapax worker (two) ──► service
//!                                        └──► records and dead letters in SQLite
//! ```

mod attempts;
mod audit;
mod faults;
mod options;
mod source;
mod world;

pub use audit::{FoundMessageDamage, MessageDamage, audit};
pub use options::{LapsePolicy, MessageSource, TargetFault, TargetOptions};

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use attempts::ServiceJournal;
use faults::FaultWindow;
use world::TargetWorld;

/// How many messages are in the source at the same time, and how many are sent every 20 ms: so that faults are rare
/// beside messages.
const AHEAD: usize = 60;
const AT_ONCE: usize = 2;

/// A run in which nothing is acknowledged for so long has failed.
const STALLED: Duration = Duration::from_secs(180);

/// The tasks that wait for the times of their faults.
type PlannedFaults = JoinSet<Result<(TargetFault, Vec<FaultWindow>)>>;

/// What a run left, for the [`audit`].
#[derive(Debug)]
pub struct TargetResult {
    /// The keys of all messages.
    pub keys: Vec<String>,
    /// The reasons of the dead letters of each key.
    pub letters: BTreeMap<String, Vec<String>>,
    /// How often each fault happened.
    pub faults: BTreeMap<TargetFault, u32>,
    /// How many messages were sent, copies included.
    pub sent: usize,
    /// How long it took.
    pub took: Duration,
    source: MessageSource,
    journal: ServiceJournal,
}

impl TargetResult {
    /// The keys with more than one effect.
    pub fn doubles(&self) -> usize {
        self.keys.iter().filter(|key| self.journal.effects(key) > 1).count()
    }

    /// How many attempts ended without an answer, or with one that tells nothing.
    pub fn unknown_attempts(&self) -> usize {
        self.journal.unknown_attempts()
    }

    /// How many attempts the service got.
    pub fn attempts(&self) -> usize {
        self.journal.attempts()
    }

    /// How many attempts no fault of a process can have touched, so that the audit expects the worker to know their
    /// outcome.
    pub fn certain_attempts(&self) -> usize {
        self.journal.certain_attempts()
    }

    /// How many dead letters have each reason.
    pub fn letters_by_reason(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for reason in self.letters.values().flatten() {
            *counts.entry(reason.clone()).or_default() += 1;
        }
        counts
    }
}

/// Runs the options, with the files of the run in a folder.
///
/// # Errors
/// If a process does not start, ends by itself or does not stop in order, or if nothing is acknowledged for three
/// minutes.
pub async fn run(options: TargetOptions, folder: &Path) -> Result<TargetResult> {
    let begun = Instant::now();
    let world = Arc::new(TargetWorld::start(folder, &options).await?);
    let messages = source::messages(&options);
    let (progress, acknowledged) = watch::channel(0);
    let mut faults = JoinSet::new();
    for fault in faults::plan(&options, messages.len()) {
        let (world, acknowledged) = (Arc::clone(&world), acknowledged.clone());
        faults.spawn(async move { fault.happen(&world, acknowledged).await });
    }
    send_everything(&world, &messages, &progress).await?;
    // A fault may wait for a message that is acknowledged only after everything is sent.
    let ((happened, windows), ()) = tokio::try_join!(join_faults(faults), drain(&world, &messages, &progress))?;
    // The last ones may have brought messages back.
    drain(&world, &messages, &progress).await?;
    for worker in &world.workers {
        let status = worker.terminate().await?;
        ensure!(status.success(), "a worker that was idle ended with {status}");
    }
    world.service.check().await?;
    let mut keys: Vec<String> = messages.clone();
    keys.sort_unstable();
    keys.dedup();
    Ok(TargetResult {
        letters: world.letters(&keys).await?,
        keys,
        faults: happened,
        sent: messages.len(),
        took: begun.elapsed(),
        source: options.source,
        journal: ServiceJournal::read(&world.journal, &windows)?,
    })
}

/// Sends the messages, a little ahead of those that are acknowledged.
async fn send_everything(world: &TargetWorld, messages: &[String], progress: &watch::Sender<usize>) -> Result<()> {
    let (queue, mut sent, mut moved) = (&world.queue, 0, Instant::now());
    while sent < messages.len() {
        ensure!(moved.elapsed() < STALLED, "only {sent} of {} messages could be sent", messages.len());
        world.start_unavailable_workers().await?;
        let waiting = queue.waiting(sent).await?;
        progress.send_replace(sent - waiting.min(sent));
        if waiting < AHEAD {
            let next = (sent + AT_ONCE).min(messages.len());
            queue.send(&messages[sent..next]).await?;
            (sent, moved) = (next, Instant::now());
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Waits until all faults have happened. Returns how often each did, and what they may have touched.
async fn join_faults(mut faults: PlannedFaults) -> Result<(BTreeMap<TargetFault, u32>, Vec<FaultWindow>)> {
    let (mut happened, mut windows) = (BTreeMap::new(), Vec::new());
    while let Some(fault) = faults.join_next().await {
        let (fault, touched) = fault??;
        *happened.entry(fault).or_default() += 1;
        windows.extend(touched);
    }
    Ok((happened, windows))
}

/// Waits until every message is acknowledged.
async fn drain(world: &TargetWorld, messages: &[String], progress: &watch::Sender<usize>) -> Result<()> {
    let (mut last, mut changed) = (usize::MAX, Instant::now());
    loop {
        world.start_unavailable_workers().await?;
        let waiting = world.queue.waiting(messages.len()).await?;
        progress.send_replace(messages.len() - waiting);
        match waiting {
            0 => return Ok(()),
            _ if waiting != last => (last, changed) = (waiting, Instant::now()),
            _ if changed.elapsed() > STALLED => bail!("{waiting} messages are not acknowledged"),
            _ => {}
        }
        sleep(Duration::from_millis(50)).await;
    }
}

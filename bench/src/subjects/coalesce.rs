use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{bail, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::store::{Inserted, Memory, Swapped};
use hapax_core::{Gate, OnBusy, RecordKey, Result, Settings, Store};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;

use crate::harness::{BatchResult, Subject, memory_of, per_second};
use crate::subjects::FreshCalls;

const CALLS: usize = 10_000;

/// Concurrent calls with one key: the leader calls the store, its followers share the answer.
pub(crate) fn one_key() -> Subject {
    let run = || {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let mut figures =
            per_second(CALLS, move || Builder::new_current_thread().enable_all().build()?.block_on(answered(counted)))?;
        let begins = calls.load(Ordering::SeqCst);
        ensure!(begins == 1, "{begins} begins for one key");
        figures.note = format!("{CALLS} calls with one key cost {begins} begin");
        Ok(figures)
    };
    Subject {
        name: "followers of one key",
        what: "a follower that waits for the answer of its leader",
        run: Box::new(run),
        limit: None,
    }
}

/// The memory of a follower that waits, and of a call that runs.
pub(crate) fn memory_per_call() -> Subject {
    let run = || {
        let (waiting, running) = (in_a_fresh_process("waiting")?, in_a_fresh_process("running")?);
        let note = format!(
            "{waiting:.0} bytes for each waiting call, {running:.0} for each running call; \
             both include the caller's tokio task"
        );
        Ok(BatchResult { rate: waiting, note })
    };
    let what = "bytes, not a rate: resident memory per waiting call";
    Subject { name: "memory of a call", what, run: Box::new(run), limit: None }
}

/// Measures in a new process, because memory that earlier subjects freed would be used again.
fn in_a_fresh_process(which: &str) -> anyhow::Result<f64> {
    let output = Command::new(std::env::current_exe()?).args(["resident", which]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// Measures the bytes per call. Runs in the child process of `in_a_fresh_process`, and `main` prints the result.
pub(crate) fn resident_bytes(which: Option<&str>) -> anyhow::Result<f64> {
    let one_key = match which {
        Some("waiting") => true,
        Some("running") => false,
        Some(_) | None => bail!("the argument must be waiting or running"),
    };
    Builder::new_current_thread().enable_all().build()?.block_on(bytes_each(one_key))
}

fn gate(store: Arc<dyn Store>) -> anyhow::Result<Gate> {
    let mut settings = Settings::default();
    settings.max_followers_per_key = CALLS;
    settings.max_in_flight = CALLS;
    settings.max_in_flight_per_tenant = CALLS;
    settings.policy.on_busy = OnBusy::Wait(Duration::from_secs(60));
    Ok(Gate::builder(store, settings).build()?)
}

async fn answered(begins: Arc<AtomicUsize>) -> anyhow::Result<()> {
    let inner = Memory::new();
    let gate = gate(Arc::new(CountingStore { inner: Arc::new(inner), begins }))?;
    let call = FreshCalls::new().take_one();
    let door = Arc::new(Semaphore::new(0));
    let followers: Vec<_> = (0..CALLS)
        .map(|_| {
            let (gate, door) = (gate.clone(), Arc::clone(&door));
            tokio::spawn(async move {
                gate.run(call, |_attempt| async move {
                    door.acquire().await?.forget();
                    Ok(Bytes::from_static(b"answer"))
                })
                .await
            })
        })
        .collect();
    tokio::task::yield_now().await;
    door.add_permits(1);
    for follower in followers {
        ensure!(follower.await??.answer == "answer", "a follower got another answer");
    }
    Ok(())
}

/// Returns the resident memory of one call while no handler can return. The calls share one key if `one_key` is true;
/// otherwise each call has its own key.
async fn bytes_each(one_key: bool) -> anyhow::Result<f64> {
    let gate = gate(Arc::new(Memory::new()))?;
    let mut calls = FreshCalls::new();
    let first = calls.take_one();
    let door = Arc::new(Semaphore::new(0));
    let before = memory_of("VmRSS:")?;
    let held: Vec<_> = (0..CALLS)
        .map(|_| {
            let call = if one_key { first } else { calls.take_one() };
            let (gate, door) = (gate.clone(), Arc::clone(&door));
            tokio::spawn(async move {
                gate.run(call, |_attempt| async move {
                    door.acquire().await?.forget();
                    Ok(Bytes::from_static(b"answer"))
                })
                .await
            })
        })
        .collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let after = memory_of("VmRSS:")?;
    door.add_permits(CALLS);
    for call in held {
        call.await??;
    }
    Ok((after.saturating_sub(before) * 1024) as f64 / CALLS as f64)
}

#[derive(Debug)]
struct CountingStore {
    inner: Arc<Memory>,
    begins: Arc<AtomicUsize>,
}

#[async_trait]
impl Store for CountingStore {
    async fn begin(&self, ask: &Begin) -> Result<Inserted> {
        self.begins.fetch_add(1, Ordering::SeqCst);
        self.inner.begin(ask).await
    }

    async fn renew(&self, rk: &RecordKey, claim: &Claim) -> Result<Renewed> {
        self.inner.renew(rk, claim).await
    }

    async fn complete(&self, rk: &RecordKey, ask: &Complete) -> Result<Completed> {
        self.inner.complete(rk, ask).await
    }

    async fn read(&self, rk: &RecordKey) -> Result<Observed> {
        self.inner.read(rk).await
    }

    async fn swap(&self, rk: &RecordKey, seen: &Observed, next: &Change) -> Result<Swapped> {
        self.inner.swap(rk, seen, next).await
    }

    async fn dedicated(self: Arc<Self>) -> Result<Arc<dyn Store>> {
        Ok(self)
    }
}

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::machine::{Begin, Change, Claim, Complete, Completed, Observed, Renewed};
use hapax_core::store::{Inserted, Memory, Swapped};
use hapax_core::{Gate, OnBusy, RecordKey, Result, Settings, Store};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;

use crate::harness::{Figures, Subject, per_second};
use crate::subjects::Calls;

const TWINS: usize = 10_000;

/// Copies of one key at the same time: the first asks the store, the others share its answer.
pub(crate) fn of_one_key() -> Subject {
    let run = || {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let mut figures =
            per_second(TWINS, move || Builder::new_current_thread().enable_all().build()?.block_on(answered(counted)))?;
        let begins = calls.load(Ordering::SeqCst);
        ensure!(begins == 1, "{begins} begins for one key");
        figures.note = format!("{TWINS} twins of one key cost {begins} begin");
        Ok(figures)
    };
    Subject {
        name: "twins of one key",
        what: "a copy that waits for the answer of the first",
        run: Box::new(run),
        limit: None,
    }
}

/// What a call takes that waits for its twin, and one that runs.
pub(crate) fn waiting() -> Subject {
    let run = || {
        let (waiting, running) = (in_a_fresh_process("waiting")?, in_a_fresh_process("running")?);
        let note =
            format!("{waiting:.0} bytes a waiting call, {running:.0} a running one, the caller's own task included");
        Ok(Figures { rate: waiting, note })
    };
    let what = "bytes, not a rate: resident memory per waiting call";
    Subject { name: "memory of a call", what, run: Box::new(run), limit: None }
}

/// Memory that earlier subjects gave back would hide what is measured.
fn in_a_fresh_process(which: &str) -> anyhow::Result<f64> {
    let output = Command::new(std::env::current_exe()?).args(["resident", which]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// What the fresh process prints: bytes per call.
pub(crate) fn resident_bytes(which: Option<&str>) -> anyhow::Result<f64> {
    let one_key = match which {
        Some("waiting") => true,
        Some("running") => false,
        Some(_) | None => bail!("name what to hold: waiting or running"),
    };
    Builder::new_current_thread().enable_all().build()?.block_on(bytes_each(one_key))
}

fn gate(store: Arc<dyn Store>) -> anyhow::Result<Gate> {
    let mut settings = Settings::default();
    settings.max_twins_per_key = TWINS;
    settings.max_in_flight = TWINS;
    settings.max_in_flight_per_tenant = TWINS;
    settings.policy.on_busy = OnBusy::Wait(Duration::from_secs(60));
    Ok(Gate::builder(store, settings).build()?)
}

async fn answered(begins: Arc<AtomicUsize>) -> anyhow::Result<()> {
    let inner = Memory::new();
    let gate = gate(Arc::new(Counted { inner: Arc::new(inner), begins }))?;
    let call = Calls::new().take_one();
    let door = Arc::new(Semaphore::new(0));
    let twins: Vec<_> = (0..TWINS)
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
    for twin in twins {
        ensure!(twin.await??.answer == "answer", "every copy gets the answer");
    }
    Ok(())
}

/// Resident memory per call, of copies of one key or of calls with a key each, while all are held at a door.
async fn bytes_each(one_key: bool) -> anyhow::Result<f64> {
    let gate = gate(Arc::new(Memory::new()))?;
    let mut calls = Calls::new();
    let first = calls.take_one();
    let door = Arc::new(Semaphore::new(0));
    let before = resident()?;
    let held: Vec<_> = (0..TWINS)
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
    let after = resident()?;
    door.add_permits(TWINS);
    for call in held {
        call.await??;
    }
    Ok(after.saturating_sub(before) as f64 / TWINS as f64)
}

fn resident() -> anyhow::Result<usize> {
    let status = fs::read_to_string("/proc/self/status").context("resident memory is read from /proc")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS is listed")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? * 1024)
}

#[derive(Debug)]
struct Counted {
    inner: Arc<Memory>,
    begins: Arc<AtomicUsize>,
}

#[async_trait]
impl Store for Counted {
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

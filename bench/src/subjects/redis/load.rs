use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};
use tokio::time::interval;

use super::server::BenchServer;
use crate::harness::{BatchResult, per_second, seconds_of_cpu};

/// How many operations are in flight at once.
pub(super) const IN_FLIGHT: usize = 256;

/// An operation that is repeated, each time for another item.
pub(super) trait Workload: Clone + Send + Sync + 'static {
    type Item: Clone + Send + Sync + 'static;

    /// The thread name of its batches, which `perf report --sort comm` shows.
    const NAME: &'static str;

    fn once(&self, task: &Self::Item) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// The time that a rate is computed over.
#[derive(Clone, Copy)]
pub(super) enum RateBasis {
    Second,
    /// CPU time of this process, so that other processes on the machine do not count.
    SecondOfCpu,
    /// CPU time of this process and of the servers.
    SecondOfAllCpu,
}

/// A runtime with this many threads.
pub(super) fn threads(count: usize) -> anyhow::Result<Runtime> {
    let mut builder = if count == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    Ok(builder.worker_threads(count).enable_all().build()?)
}

/// Times the operation for all items but the first. The first runs before, so that the connection is open and the
/// scripts are loaded.
pub(super) fn measured<O: Workload>(
    server: &BenchServer,
    runtime: &Runtime,
    per: RateBasis,
    work: (O, Vec<O::Item>),
) -> anyhow::Result<BatchResult> {
    measured_on(&[server.process()?], runtime, per, work)
}

/// As [`measured`], on the servers with these processes.
pub(super) fn measured_on<O: Workload>(
    servers: &[String],
    runtime: &Runtime,
    per: RateBasis,
    (operation, tasks): (O, Vec<O::Item>),
) -> anyhow::Result<BatchResult> {
    let (first, tasks) = tasks.split_first().context("there is no item to measure")?;
    runtime.block_on(operation.once(first))?;
    let of_servers = || servers.iter().map(|server| seconds_of_cpu(server)).sum::<anyhow::Result<f64>>();
    let cpu = || anyhow::Ok([seconds_of_cpu("self")?, of_servers()?]);
    let before = cpu()?;
    fs::write("/proc/thread-self/comm", O::NAME)?;
    let mut figures = per_second(tasks.len(), || runtime.block_on(all(&operation, tasks, IN_FLIGHT)))?;
    fs::write("/proc/thread-self/comm", "hapax-bench")?;
    let [ours, theirs] = cpu()?;
    let [ours, theirs] = [ours - before[0], theirs - before[1]].map(|seconds| seconds / tasks.len() as f64);
    figures.note = format!("{:.1} us of CPU each, and {:.1} in the server", ours * 1e6, theirs * 1e6);
    match per {
        RateBasis::Second => {}
        RateBasis::SecondOfCpu => figures.rate = 1.0 / ours,
        RateBasis::SecondOfAllCpu => figures.rate = 1.0 / (ours + theirs),
    }
    Ok(figures)
}

/// Runs the operation for each item, this many at once.
pub(super) async fn all<O: Workload>(operation: &O, tasks: &[O::Item], at_once: usize) -> anyhow::Result<()> {
    let client = |tasks: &[O::Item]| {
        let (operation, tasks) = (operation.clone(), tasks.to_vec());
        tokio::spawn(async move {
            for task in &tasks {
                operation.once(task).await?;
            }
            anyhow::Ok(())
        })
    };
    for client in tasks.chunks(tasks.len().div_ceil(at_once)).map(client).collect::<Vec<_>>() {
        client.await??;
    }
    Ok(())
}

/// Starts this many operations each millisecond, whether earlier ones have ended or not. Returns the sorted latencies,
/// each from the time at which the operation was due.
pub(super) async fn paced<O: Workload>(
    operation: &O,
    tasks: &[O::Item],
    each_time: usize,
) -> anyhow::Result<Vec<Duration>> {
    let mut clock = interval(Duration::from_millis(1));
    let mut started = Vec::with_capacity(tasks.len());
    for tasks in tasks.chunks(each_time) {
        let due: Instant = clock.tick().await.into();
        started.extend(tasks.iter().cloned().map(|task| {
            let operation = operation.clone();
            tokio::spawn(async move {
                operation.once(&task).await?;
                anyhow::Ok(due.elapsed())
            })
        }));
    }
    let mut latencies = Vec::with_capacity(started.len());
    for one in started {
        latencies.push(one.await??);
    }
    latencies.sort_unstable();
    Ok(latencies)
}

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};
use tokio::time::interval;

use super::world::World;
use crate::harness::{Figures, per_second};

/// How many operations are under way at once.
pub(super) const IN_FLIGHT: usize = 256;

/// Something to be done again and again, each time for another task.
pub(super) trait Operation: Clone + Send + Sync + 'static {
    type Task: Clone + Send + Sync + 'static;

    /// What `perf report --sort comm` calls its batches.
    const NAME: &'static str;

    fn once(&self, task: &Self::Task) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// By what an operation is divided.
#[derive(Clone, Copy)]
pub(super) enum Per {
    Second,
    /// A second of this process on a core: what other processes take from it does not count.
    SecondOfCpu,
}

/// A runtime whose tasks have so many threads.
pub(super) fn threads(count: usize) -> anyhow::Result<Runtime> {
    let mut builder = if count == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    Ok(builder.worker_threads(count).enable_all().build()?)
}

/// Times the operation for all tasks but the first, which comes before: it finds the connection made and the scripts known.
pub(super) fn measured<O: Operation>(
    world: &World,
    runtime: &Runtime,
    per: Per,
    (operation, tasks): (O, Vec<O::Task>),
) -> anyhow::Result<Figures> {
    let (first, tasks) = tasks.split_first().context("there are tasks")?;
    runtime.block_on(operation.once(first))?;
    let cpu = || anyhow::Ok([seconds_of_cpu("self")?, seconds_of_cpu(&world.process()?)?]);
    let before = cpu()?;
    fs::write("/proc/thread-self/comm", O::NAME)?;
    let mut figures = per_second(tasks.len(), || runtime.block_on(all(&operation, tasks, IN_FLIGHT)))?;
    fs::write("/proc/thread-self/comm", "hapax-bench")?;
    let [ours, theirs] = cpu()?;
    let [ours, theirs] = [ours - before[0], theirs - before[1]].map(|seconds| seconds / tasks.len() as f64);
    figures.note = format!("{:.1} us of CPU each, and {:.1} in the server", ours * 1e6, theirs * 1e6);
    if let Per::SecondOfCpu = per {
        figures.rate = 1.0 / ours;
    }
    Ok(figures)
}

/// The time that the threads of a process have spent on cores, to the nanosecond.
fn seconds_of_cpu(process: &str) -> anyhow::Result<f64> {
    let mut nanoseconds = 0.0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let told = fs::read_to_string(thread?.path().join("schedstat"))?;
        nanoseconds += told.split(' ').next().unwrap_or_default().parse::<f64>()?;
    }
    Ok(nanoseconds / 1e9)
}

/// Carries it out for each task, so many at once.
pub(super) async fn all<O: Operation>(operation: &O, tasks: &[O::Task], at_once: usize) -> anyhow::Result<()> {
    let worker = |tasks: &[O::Task]| {
        let (operation, tasks) = (operation.clone(), tasks.to_vec());
        tokio::spawn(async move {
            for task in &tasks {
                operation.once(task).await?;
            }
            anyhow::Ok(())
        })
    };
    for worker in tasks.chunks(tasks.len().div_ceil(at_once)).map(worker).collect::<Vec<_>>() {
        worker.await??;
    }
    Ok(())
}

/// Starts so many of them each millisecond, whether those before have ended or not; how long each took, from when it was due.
pub(super) async fn paced<O: Operation>(
    operation: &O,
    tasks: &[O::Task],
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

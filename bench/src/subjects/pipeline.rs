//! All three layers between real servers, from a request over HTTP to its event at a consumer, beside the same pipeline
//! without them.
//!
//! ```text
//! load ──► gateway ──► ingest ──► Kafka ──► worker ──► PostgreSQL ──► relay ──► NATS ──► consumer
//! ```
//!
//! `load` and `consumer` are in this process, all others are processes of their own. `servers.rs` starts the servers,
//! `system.rs` the processes of one run, `load.rs` sends payments, `arrivals.rs` receives their events, `cpu.rs` reads
//! CPU times, and `latency.rs` compares the times at the borders.

mod arrivals;
mod cpu;
mod latency;
mod load;
mod servers;
mod system;

use std::rc::Rc;
use std::time::Instant;

use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject};
use crate::stages::PipelineLayers;
use cpu::CpuTimes;
use servers::PipelineServers;
use system::PipelineProcesses;

/// The payments of a run at full speed.
const PAYMENTS: u64 = 10_000;

/// The payments before each measurement: groups, connections and plans are ready after them.
const WARM_UP: u64 = 300;

pub(super) fn all() -> anyhow::Result<Vec<Subject>> {
    let servers = Rc::new(PipelineServers::start()?);
    let subject = |name, what, layers| Subject {
        name,
        what,
        run: at_full_speed(&servers, layers),
        limit: Some(Limit {
            what: "the same without the layers: batches of 256 with a bare insert, published after the commit",
            run: at_full_speed(&servers, PipelineLayers::NONE),
            at_least: None,
        }),
    };
    let all = PipelineLayers::ALL;
    Ok(vec![
        subject("pipeline, all layers", "a payment, from its request to its event at the consumer", all),
        subject(
            "pipeline, without the gate",
            "the same without the gateway and Redis",
            PipelineLayers { gate: false, ..all },
        ),
        subject(
            "pipeline, without the ledger",
            "the same without rows of the ledger",
            PipelineLayers { ledger: false, ..all },
        ),
        subject(
            "pipeline, without the outbox",
            "the same without a relay: the worker publishes after its commit",
            PipelineLayers { outbox: false, ..all },
        ),
    ])
}

/// What each layer adds to the latency of a payment, at a fixed rate.
pub(super) fn latencies() -> anyhow::Result<String> {
    latency::compare(&PipelineServers::start()?)
}

/// Payments by 64 clients, each of which sends the next one when it has its answer. The rate counts from the first
/// request to the last event at the consumer.
fn at_full_speed(servers: &Rc<PipelineServers>, layers: PipelineLayers) -> MeasuredBatch {
    let servers = Rc::clone(servers);
    Box::new(move || {
        servers.runtime.block_on(async {
            let mut pipeline = PipelineProcesses::start(&servers, layers).await?;
            pipeline.warm_up(WARM_UP).await?;
            let before = CpuTimes::of(&pipeline.pids(&servers)?)?;
            let begun = Instant::now();
            pipeline.sender.saturate(WARM_UP..WARM_UP + PAYMENTS).await?;
            pipeline.arrivals.wait_for(WARM_UP + PAYMENTS).await?;
            let rate = PAYMENTS as f64 / begun.elapsed().as_secs_f64();
            let used = CpuTimes::of(&pipeline.pids(&servers)?)?.since(&before);
            Ok(BatchResult { rate, note: used.note(PAYMENTS) })
        })
    })
}

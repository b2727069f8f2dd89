use std::rc::Rc;
use std::time::Duration;

use super::driver::{self, DriverWorkload};
use super::load::{RateBasis, Workload, measured, paced, threads};
use super::server::BenchServer;
use super::store::GateWorkload;
use super::{MeasuredStep, OPERATIONS};
use crate::harness::{BatchResult, Subject};
use crate::subjects::FreshCalls;

/// The microseconds that the gate and the store add to the two round trips, at half of their full rate.
pub(super) fn added(server: &Rc<BenchServer>, percentile: usize) -> Subject {
    let server = Rc::clone(server);
    let run = move || {
        let [ours, theirs] = at_half_load(&server)?.map(|latencies| latencies[latencies.len() * percentile / 100]);
        let [ours, theirs] = [ours, theirs].map(|latency| latency.as_secs_f64() * 1e6);
        let note = format!("p{percentile} {ours:.0} us, and {theirs:.0} us without");
        Ok(BatchResult { rate: ours - theirs, note })
    };
    Subject {
        name: if percentile == 50 { "Redis, added latency, p50" } else { "Redis, added latency, p99" },
        what: "microseconds, not a rate: what gate.run adds to the two round trips of the driver alone; \
               both run at half of the gate's full rate",
        run: Box::new(run),
        limit: None,
    }
}

/// Returns the sorted latencies of the operations through the gate, and by the driver alone at the same pace.
fn at_half_load(server: &BenchServer) -> anyhow::Result<[Vec<Duration>; 2]> {
    let runtime = threads(1)?;
    server.empty()?;
    let gated = runtime.block_on(async { GateWorkload::over(server.store(1)?) })?;
    let numbers: Vec<u64> = (0..OPERATIONS as u64).collect();
    let (first, rest) = numbers.split_at(OPERATIONS / 3);
    let full = measured(server, &runtime, RateBasis::Second, (gated.clone(), first.to_vec()))?.rate;
    let each_time = (full / 2.0 / 1000.0) as usize;
    let ours = runtime.block_on(paced(&gated, rest, each_time.max(1)))?;

    server.empty()?;
    let names: Vec<_> = FreshCalls::new().take(OPERATIONS).iter().map(driver::record_name).collect();
    let (first, rest) = names.split_at(OPERATIONS / 3);
    let bare = runtime.block_on(DriverWorkload::connect(server, MeasuredStep::Cycle))?;
    runtime.block_on(bare.once(&first[0]))?;
    let theirs = runtime.block_on(paced(&bare, rest, each_time.max(1)))?;
    Ok([ours, theirs])
}

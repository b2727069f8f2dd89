use std::rc::Rc;
use std::time::Duration;

use super::bare::{self, Bare};
use super::load::{Operation, Per, measured, paced, threads};
use super::ours::Gated;
use super::world::World;
use super::{OPERATIONS, Step};
use crate::harness::{Figures, Subject};
use crate::subjects::Calls;

/// How many microseconds the gate and the store add to the two round trips, at half of what they can take.
pub(super) fn added(world: &Rc<World>, percentile: usize) -> Subject {
    let world = Rc::clone(world);
    let run = move || {
        let [ours, theirs] = at_half_load(&world)?.map(|latencies| latencies[latencies.len() * percentile / 100]);
        let [ours, theirs] = [ours, theirs].map(|latency| latency.as_secs_f64() * 1e6);
        let note = format!("p{percentile} {ours:.0} us, and {theirs:.0} us without");
        Ok(Figures { rate: ours - theirs, note })
    };
    Subject {
        name: if percentile == 50 { "Redis, added latency, p50" } else { "Redis, added latency, p99" },
        what: "microseconds, not a rate: what gate.run adds to the two round trips of the driver alone, at half of its full load",
        run: Box::new(run),
        limit: None,
    }
}

/// How long each took through the gate, and by the driver alone at the same pace.
fn at_half_load(world: &World) -> anyhow::Result<[Vec<Duration>; 2]> {
    let runtime = threads(1)?;
    world.empty()?;
    let gated = runtime.block_on(async { Gated::over(world.store(1)?) })?;
    let numbers: Vec<u64> = (0..OPERATIONS as u64).collect();
    let (first, rest) = numbers.split_at(OPERATIONS / 3);
    let full = measured(world, &runtime, Per::Second, (gated.clone(), first.to_vec()))?.rate;
    let each_time = (full / 2.0 / 1000.0) as usize;
    let ours = runtime.block_on(paced(&gated, rest, each_time.max(1)))?;

    world.empty()?;
    let names: Vec<_> = Calls::new().take(OPERATIONS).iter().map(bare::name).collect();
    let (first, rest) = names.split_at(OPERATIONS / 3);
    let bare = runtime.block_on(Bare::connect(world, Step::Cycle))?;
    runtime.block_on(bare.once(&first[0]))?;
    let theirs = runtime.block_on(paced(&bare, rest, each_time.max(1)))?;
    Ok([ours, theirs])
}

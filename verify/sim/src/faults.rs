//! Causes the faults that happen at random times, one task for each class, until the plan's window ends.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::runtime::Runtime;
use hapax_testkit::{Process, ProcessPart};

use crate::operator;
use crate::plan::FaultClass;
use crate::scene::Scene;
use crate::startup;
use crate::store::{Outage, Room};
use crate::worker;

/// Starts a task for each class of faults that the plan allows.
pub(crate) fn start(scene: &Arc<Scene>) {
    for class in TIMED_FAULTS {
        if scene.plan.allows(*class) {
            scene.outside.spawn(Box::pin(repeat_fault(Arc::clone(scene), *class)));
        }
    }
    if scene.plan.allows(FaultClass::Operator) {
        scene.outside.spawn(Box::pin(operator::run_operator(Arc::clone(scene))));
    }
    if scene.plan.allows(FaultClass::Worker) {
        scene.outside.spawn(Box::pin(worker::run_worker(Arc::clone(scene))));
    }
}

const TIMED_FAULTS: &[FaultClass] = &[
    FaultClass::Outage,
    FaultClass::Full,
    FaultClass::Unusable,
    FaultClass::Damaged,
    FaultClass::Amnesia,
    FaultClass::StoreClock,
    FaultClass::Crash,
    FaultClass::Pause,
    FaultClass::HeartbeatLate,
    FaultClass::ExecutorLate,
    FaultClass::Abort,
    FaultClass::Clocks,
];

async fn repeat_fault(scene: Arc<Scene>, class: FaultClass) {
    loop {
        let pause = scene.dice.span(scene.plan.respite / 10, scene.plan.respite);
        scene.outside.sleep(pause).await;
        if scene.is_healed() {
            return;
        }
        let number = scene.dice.below(scene.plan.journals.len());
        match class {
            FaultClass::Outage => outage(&scene).await,
            FaultClass::Full => full(&scene).await,
            FaultClass::Unusable => unusable(&scene).await,
            FaultClass::Damaged => damaged(&scene).await,
            FaultClass::Amnesia => amnesia(&scene),
            FaultClass::StoreClock => store_clock(&scene),
            FaultClass::Crash => crash(&scene, number).await,
            FaultClass::Pause => stall(&scene, number, class, &[ProcessPart::Tasks, ProcessPart::Threads]).await,
            FaultClass::HeartbeatLate => stall(&scene, number, class, &[ProcessPart::Threads]).await,
            FaultClass::ExecutorLate => stall(&scene, number, class, &[ProcessPart::Tasks]).await,
            FaultClass::Abort => abort(&scene, number).await,
            FaultClass::Clocks => clocks(&scene, number),
            FaultClass::Slow
            | FaultClass::Refused
            | FaultClass::Cut
            | FaultClass::Lost
            | FaultClass::Late
            | FaultClass::Twice
            | FaultClass::Expiry
            | FaultClass::Operator
            | FaultClass::Worker
            | FaultClass::HangUp
            | FaultClass::OtherPayload
            | FaultClass::LongHandler
            | FaultClass::Panic => return,
        }
    }
}

const OUTAGES: &[Outage] =
    &[Outage::Refuses, Outage::Swallows, Outage::Mute, Outage::LosesAnswers, Outage::LosesRenewals];

async fn outage(scene: &Scene) {
    let kind = scene.dice.pick(OUTAGES);
    let time =
        scene.dice.span(scene.plan.shortest_lease() / 4, scene.dice.pick(&[4, 10]) * scene.plan.shortest_lease());
    scene.oracle.record_fault(FaultClass::Outage, format_args!("the store is down for {time:?}: {kind:?}"));
    if kind != Outage::LosesAnswers {
        scene.oracle.record_store_fault();
    }
    if scene.dice.percent(50) {
        scene.network.outage(Some(Outage::Slow));
        scene.outside.sleep(scene.dice.up_to(scene.plan.shortest_lease())).await;
    }
    scene.network.outage(Some(kind));
    scene.outside.sleep(time).await;
    scene.network.outage(None);
    if kind != Outage::LosesAnswers {
        scene.oracle.record_store_fault();
    }
}

async fn full(scene: &Scene) {
    let time = scene.dice.up_to(2 * scene.plan.shortest_lease());
    let room = scene.dice.pick(&[Room::ForKnownRecords, Room::None]);
    scene.oracle.record_fault(FaultClass::Full, format_args!("the store is full for {time:?}: {room:?}"));
    scene.oracle.record_store_fault();
    scene.network.room(room);
    scene.outside.sleep(time).await;
    scene.network.room(Room::Enough);
    scene.oracle.record_store_fault();
}

async fn unusable(scene: &Scene) {
    let time = scene.dice.up_to(scene.dice.pick(&[2, 8]) * scene.plan.shortest_lease());
    scene.oracle.record_fault(FaultClass::Unusable, format_args!("the store accepts no password for {time:?}"));
    scene.oracle.record_store_fault();
    scene.network.unusable(true);
    scene.outside.sleep(time).await;
    scene.network.unusable(false);
    scene.oracle.record_store_fault();
}

/// Damages a record that the store has. An operator repairs it later.
async fn damaged(scene: &Scene) {
    let key = scene.dice.below(scene.plan.keys.len()).min(scene.dice.below(scene.plan.keys.len()));
    let rk = scene.calls[key][0].record_key();
    if scene.network.shelf.observed(&rk).live().is_none() {
        return;
    }
    let time = scene.dice.up_to(scene.dice.pick(&[2, 8]) * scene.plan.shortest_lease());
    scene.oracle.record_fault(FaultClass::Damaged, format_args!("key {key}: its record is damaged for {time:?}"));
    scene.network.damage(rk);
    scene.outside.sleep(time).await;
    scene.network.repair(&rk);
}

fn amnesia(scene: &Scene) {
    scene.oracle.record_fault(FaultClass::Amnesia, format_args!("the store forgets everything"));
    scene.oracle.forget_all();
    scene.network.shelf.forget();
}

fn store_clock(scene: &Scene) {
    let longest =
        scene.dice.pick(&[scene.plan.shortest_lease(), 10 * scene.plan.longest_lease(), Duration::from_secs(3600)]);
    let step = i64::try_from(scene.dice.up_to(longest).as_micros()).expect("at most an hour");
    let step = if scene.dice.percent(50) { step } else { -step };
    scene.oracle.record_fault(FaultClass::StoreClock, format_args!("the clock of the store steps by {step} us"));
    scene.oracle.record_clock_step();
    scene.network.server.step_wall(step);
}

async fn crash(scene: &Arc<Scene>, number: usize) {
    scene.crash(number);
    scene.outside.sleep(scene.dice.up_to(2 * scene.plan.shortest_lease())).await;
    startup::restart(scene, number);
}

async fn stall(scene: &Scene, number: usize, class: FaultClass, parts: &[ProcessPart]) {
    let lease = scene.plan.shortest_lease();
    let time = match scene.dice.below(4) {
        0 => scene.dice.span(lease / 2, 20 * lease),
        _ => scene.dice.span(lease / 2, 3 * lease),
    };
    let process = {
        let processes = scene.processes();
        if !processes[number].up {
            return;
        }
        scene.oracle.record_stall(processes[number].life, class, time);
        Arc::clone(&processes[number].process)
    };
    parts.iter().for_each(|part| process.pause(*part));
    scene.outside.sleep(time).await;
    resume(&process);
}

/// Ends all faults: the network heals, processes that are down restart, and processes that stand still resume.
pub(crate) fn heal_all(scene: &Arc<Scene>) {
    scene.heal();
    for number in 0..scene.plan.journals.len() {
        startup::restart(scene, number);
        let process = Arc::clone(&scene.processes()[number].process);
        resume(&process);
    }
}

fn resume(process: &Process) {
    process.resume(ProcessPart::Tasks);
    process.resume(ProcessPart::Threads);
}

/// Drops all tasks of a process, as a shut-down executor does. The process crashes a little later.
async fn abort(scene: &Arc<Scene>, number: usize) {
    let process = {
        let processes = scene.processes();
        if !processes[number].up {
            return;
        }
        scene.oracle.record_dropped_tasks(processes[number].life);
        Arc::clone(&processes[number].process)
    };
    process.abort_tasks();
    scene.outside.sleep(scene.dice.up_to(scene.plan.shortest_lease())).await;
    crash(scene, number).await;
}

fn clocks(scene: &Scene, number: usize) {
    scene.oracle.record_fault(FaultClass::Clocks, format_args!("the wall clock of process {number} steps"));
    let processes = scene.processes();
    startup::step_clock(scene, &processes[number].process);
}

//! What strikes a world from outside, by classes, until its window is over.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::runtime::Runtime;
use hapax_testkit::{Process, ProcessPart};

use crate::operator;
use crate::plan::Class;
use crate::scene::Scene;
use crate::store::Outage;

/// Starts everything that may strike this world.
pub(crate) fn start(scene: &Arc<Scene>) {
    for class in STRIKES {
        if scene.plan.may(*class) {
            scene.outside.spawn(Box::pin(keeps_striking(Arc::clone(scene), *class)));
        }
    }
    if scene.plan.may(Class::Operator) {
        scene.outside.spawn(Box::pin(operator::works(Arc::clone(scene))));
    }
}

const STRIKES: &[Class] = &[
    Class::Outage,
    Class::Full,
    Class::Amnesia,
    Class::StoreClock,
    Class::Crash,
    Class::Pause,
    Class::HeartbeatLate,
    Class::ExecutorLate,
    Class::Abort,
    Class::Clocks,
];

async fn keeps_striking(scene: Arc<Scene>, class: Class) {
    loop {
        let pause = scene.dice.span(scene.plan.respite / 10, scene.plan.respite);
        scene.outside.sleep(pause).await;
        if scene.is_healed() {
            return;
        }
        let site = scene.dice.below(scene.plan.journals.len());
        match class {
            Class::Outage => outage(&scene).await,
            Class::Full => full(&scene).await,
            Class::Amnesia => amnesia(&scene),
            Class::StoreClock => store_clock(&scene),
            Class::Crash => crash(&scene, site).await,
            Class::Pause => stall(&scene, site, class, &[ProcessPart::Tasks, ProcessPart::Threads]).await,
            Class::HeartbeatLate => stall(&scene, site, class, &[ProcessPart::Threads]).await,
            Class::ExecutorLate => stall(&scene, site, class, &[ProcessPart::Tasks]).await,
            Class::Abort => abort(&scene, site).await,
            Class::Clocks => clocks(&scene, site),
            Class::Slow
            | Class::Refused
            | Class::Cut
            | Class::Lost
            | Class::Late
            | Class::Twice
            | Class::Expiry
            | Class::Operator
            | Class::HangUp
            | Class::OtherPayload
            | Class::LongHandler
            | Class::Panic => return,
        }
    }
}

const OUTAGES: &[Outage] =
    &[Outage::Refuses, Outage::Swallows, Outage::Mute, Outage::LosesAnswers, Outage::LosesRenewals];

async fn outage(scene: &Scene) {
    let kind = scene.dice.pick(OUTAGES);
    let time =
        scene.dice.span(scene.plan.shortest_lease() / 4, scene.dice.pick(&[4, 10]) * scene.plan.shortest_lease());
    scene.oracle.strikes(Class::Outage, format_args!("the store is down for {time:?}: {kind:?}"));
    if kind != Outage::LosesAnswers {
        scene.oracle.store_in_trouble();
    }
    if scene.dice.percent(50) {
        scene.network.outage(Some(Outage::Slow));
        scene.outside.sleep(scene.dice.up_to(scene.plan.shortest_lease())).await;
    }
    scene.network.outage(Some(kind));
    scene.outside.sleep(time).await;
    scene.network.outage(None);
    if kind != Outage::LosesAnswers {
        scene.oracle.store_in_trouble();
    }
}

async fn full(scene: &Scene) {
    let time = scene.dice.up_to(2 * scene.plan.shortest_lease());
    scene.oracle.strikes(Class::Full, format_args!("the store is full for {time:?}"));
    scene.network.full(true);
    scene.outside.sleep(time).await;
    scene.network.full(false);
}

fn amnesia(scene: &Scene) {
    scene.oracle.strikes(Class::Amnesia, format_args!("the store forgets everything"));
    scene.oracle.forgets();
    scene.network.shelf.forget();
}

fn store_clock(scene: &Scene) {
    let longest =
        scene.dice.pick(&[scene.plan.shortest_lease(), 10 * scene.plan.longest_lease(), Duration::from_secs(3600)]);
    let step = i64::try_from(scene.dice.up_to(longest).as_micros()).expect("at most an hour");
    let step = if scene.dice.percent(50) { step } else { -step };
    scene.oracle.strikes(Class::StoreClock, format_args!("the clock of the store steps by {step} us"));
    scene.oracle.store_clock_steps();
    scene.network.server.step_wall(step);
}

async fn crash(scene: &Arc<Scene>, site: usize) {
    scene.crash(site);
    scene.outside.sleep(scene.dice.up_to(2 * scene.plan.shortest_lease())).await;
    scene.restart(site);
}

async fn stall(scene: &Scene, site: usize, class: Class, parts: &[ProcessPart]) {
    let lease = scene.plan.shortest_lease();
    let time = match scene.dice.below(4) {
        0 => scene.dice.span(lease / 2, 20 * lease),
        _ => scene.dice.span(lease / 2, 3 * lease),
    };
    let process = {
        let sites = scene.sites();
        if !sites[site].up {
            return;
        }
        scene.oracle.stalls(sites[site].life, class, time);
        Arc::clone(&sites[site].process)
    };
    parts.iter().for_each(|part| process.pause(*part));
    scene.outside.sleep(time).await;
    resume(&process);
}

/// Lets everything go on that stands still.
pub(crate) fn resume(process: &Process) {
    process.resume(ProcessPart::Tasks);
    process.resume(ProcessPart::Threads);
}

/// The executor of a process is shut down; the process ends a little later.
async fn abort(scene: &Arc<Scene>, site: usize) {
    let process = {
        let sites = scene.sites();
        if !sites[site].up {
            return;
        }
        scene.oracle.is_cut_off(sites[site].life);
        Arc::clone(&sites[site].process)
    };
    process.abort_tasks();
    scene.outside.sleep(scene.dice.up_to(scene.plan.shortest_lease())).await;
    crash(scene, site).await;
}

fn clocks(scene: &Scene, site: usize) {
    scene.oracle.strikes(Class::Clocks, format_args!("the wall clock of process {site} steps"));
    let sites = scene.sites();
    sites[site].clocks_step(scene);
}

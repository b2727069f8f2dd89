//! The store on Redis beside the driver alone, which sends the same commands. Client and server share the cores.

mod bare;
mod latency;
mod load;
mod memory;
mod ours;
mod world;

use std::cell::OnceCell;
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, ensure};

use crate::harness::{Figures, Limit, Run, Subject};
use crate::subjects::Calls;
use bare::Bare;
use load::{Per, measured, threads};
use ours::{Gated, Ours, Task};
use world::World;

const OPERATIONS: usize = 20_000;

/// How many records replays, renewals and reads go round.
const KNOWN: usize = 1_000;

/// What is done to a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Begin,
    Cycle,
    Replay,
    Renew,
    Read,
}

pub(crate) fn all() -> anyhow::Result<Vec<Subject>> {
    let world = Rc::new(World::start(&[])?);
    let mut subjects = beside_the_driver(&world);
    subjects.push(redis_benchmark(&world));
    subjects.extend([memory::completed(&world), memory::in_progress(&world)]);
    subjects.extend([latency::added(&world, 50), latency::added(&world, 99)]);
    subjects.extend([connections(&world, 2), connections(&world, 4)]);
    subjects.push(among_many(&world));
    subjects.extend([logged(&world, "everysec"), logged(&world, "always")]);
    Ok(subjects)
}

fn beside_the_driver(world: &Rc<World>) -> Vec<Subject> {
    let beside = |step, what, at_least| Some(Limit { what, run: bare(world, step, Per::Second), at_least });
    let same = "the same two commands by the driver alone";
    let subject = |name, what, run, limit| Subject { name, what, run, limit };
    vec![
        subject(
            "Redis, full cycle",
            "begin + complete of a new key, 256 in flight, one connection, one thread",
            steps(world, Step::Cycle, Per::Second),
            beside(Step::Cycle, same, Some(0.85)),
        ),
        subject(
            "Redis, full cycle, by CPU",
            "the same, for each second that this process spends on a core",
            steps(world, Step::Cycle, Per::SecondOfCpu),
            Some(Limit { what: same, run: bare(world, Step::Cycle, Per::SecondOfCpu), at_least: None }),
        ),
        subject(
            "Redis, gate.run",
            "a new key through the gate: ids, own task, kernel-drawn owner, begin, complete",
            gated(world),
            beside(Step::Cycle, same, None),
        ),
        subject(
            "Redis, replays",
            "begin of a key that was answered",
            steps(world, Step::Replay, Per::Second),
            beside(Step::Replay, "the same command by the driver alone", None),
        ),
        subject(
            "Redis, renew",
            "a renewal of a grant that is held",
            steps(world, Step::Renew, Per::Second),
            beside(Step::Renew, "the same script by the driver alone", None),
        ),
        subject(
            "Redis, read",
            "a look at a record that was answered",
            steps(world, Step::Read, Per::Second),
            beside(Step::Read, "the same script by the driver alone", None),
        ),
    ]
}

/// What the server takes from its own tool.
fn redis_benchmark(world: &Rc<World>) -> Subject {
    let world = Rc::clone(world);
    let run = move || {
        world.empty()?;
        let output = Command::new("fixtures/run.sh")
            .args(["redis", "redis-benchmark", "-P", "64", "-n", "1000000", "-r", "100000000", "-d", "58"])
            .args(["-t", "set", "--csv", "-p", &world.port()])
            .output()?;
        ensure!(output.status.success(), "redis-benchmark: {}", String::from_utf8_lossy(&output.stderr));
        let told = String::from_utf8(output.stdout)?;
        let rate = told.lines().last().and_then(|line| line.split('"').nth(3)).context("it says how fast it was")?;
        Ok(Figures { rate: rate.parse()?, note: String::new() })
    };
    Subject {
        name: "redis-benchmark -P 64",
        what: "SET of 58 bytes by the server's own tool, 64 to a write",
        run: Box::new(run),
        limit: None,
    }
}

/// More connections on two threads, beside one on two.
fn connections(world: &Rc<World>, count: usize) -> Subject {
    let run = |connections| {
        let world = Rc::clone(world);
        let mut calls = Calls::new();
        let run = move || {
            world.empty()?;
            let runtime = threads(2)?;
            let store = runtime.block_on(async { world.store(connections) })?;
            let tasks = calls.take(OPERATIONS).into_iter().map(Task::new).collect();
            measured(&world, &runtime, Per::Second, (Ours { store, step: Step::Cycle }, tasks))
        };
        Box::new(run) as Run
    };
    Subject {
        name: if count == 2 { "Redis, 2 connections" } else { "Redis, 4 connections" },
        what: "begin + complete of a new key, 256 in flight, two threads",
        run: run(count),
        limit: Some(Limit { what: "the same over one connection", run: run(1), at_least: None }),
    }
}

/// A server that has ten million other keys, beside one that has none.
fn among_many(world: &Rc<World>) -> Subject {
    let full = OnceCell::<Rc<World>>::new();
    let mut calls = Calls::new();
    let run = move || {
        if full.get().is_none() {
            let world = World::start(&["--enable-debug-command", "local"])?;
            world.ask(&["DEBUG", "POPULATE", "10000000", "hx:other", "91"])?;
            let _ = full.set(Rc::new(world));
        }
        cycles(full.get().context("it was just set")?, &mut calls)
    };
    Subject {
        name: "Redis, among 10,000,000 keys",
        what: "begin + complete of a new key, 256 in flight",
        run: Box::new(run),
        limit: Some(Limit {
            what: "the same on a server without other keys",
            run: steps(world, Step::Cycle, Per::Second),
            at_least: Some(0.8),
        }),
    }
}

/// A server that logs its writes, beside one that does not.
fn logged(world: &Rc<World>, sync: &'static str) -> Subject {
    let logged = OnceCell::<Rc<World>>::new();
    let mut calls = Calls::new();
    let run = move || {
        if logged.get().is_none() {
            let _ = logged.set(Rc::new(World::start(&["--appendonly", "yes", "--appendfsync", sync])?));
        }
        let world = logged.get().context("it was just set")?;
        world.empty()?;
        cycles(world, &mut calls)
    };
    Subject {
        name: if sync == "always" { "Redis, appendfsync always" } else { "Redis, appendfsync everysec" },
        what: "begin + complete of a new key, 256 in flight, on a server with a log",
        run: Box::new(run),
        limit: Some(Limit {
            what: "the same without a log",
            run: steps(world, Step::Cycle, Per::Second),
            at_least: None,
        }),
    }
}

fn cycles(world: &World, calls: &mut Calls) -> anyhow::Result<Figures> {
    let runtime = threads(1)?;
    let store = runtime.block_on(async { world.store(1) })?;
    let tasks = calls.take(OPERATIONS).into_iter().map(Task::new).collect();
    measured(world, &runtime, Per::Second, (Ours { store, step: Step::Cycle }, tasks))
}

/// A step on the store, on one thread.
fn steps(world: &Rc<World>, step: Step, per: Per) -> Run {
    let world = Rc::clone(world);
    Box::new(move || {
        world.empty()?;
        let runtime = threads(1)?;
        let ours = Ours { store: runtime.block_on(async { world.store(1) })?, step };
        let known = if step == Step::Cycle { OPERATIONS } else { KNOWN };
        let tasks = runtime.block_on(ours.prepared(&Calls::new().take(known)))?;
        measured(&world, &runtime, per, (ours, round(&tasks)))
    })
}

/// The same by the driver alone.
fn bare(world: &Rc<World>, step: Step, per: Per) -> Run {
    let world = Rc::clone(world);
    Box::new(move || {
        world.empty()?;
        let runtime = threads(1)?;
        let bare = runtime.block_on(Bare::connect(&world, step))?;
        let known = if step == Step::Cycle { OPERATIONS } else { KNOWN };
        let names: Vec<_> = Calls::new().take(known).iter().map(bare::name).collect();
        match step {
            Step::Begin | Step::Cycle => {}
            Step::Replay | Step::Read => {
                runtime.block_on(load::all(&bare.with(Step::Cycle), &names, load::IN_FLIGHT))?;
            }
            Step::Renew => runtime.block_on(load::all(&bare.with(Step::Begin), &names, load::IN_FLIGHT))?,
        }
        measured(&world, &runtime, per, (bare, round(&names)))
    })
}

fn gated(world: &Rc<World>) -> Run {
    let world = Rc::clone(world);
    Box::new(move || {
        world.empty()?;
        let runtime = threads(1)?;
        let gated = runtime.block_on(async { Gated::over(world.store(1)?) })?;
        measured(&world, &runtime, Per::Second, (gated, (0..OPERATIONS as u64).collect()))
    })
}

/// These again and again.
fn round<T: Clone>(tasks: &[T]) -> Vec<T> {
    tasks.iter().cycle().take(OPERATIONS).cloned().collect()
}

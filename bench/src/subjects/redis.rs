//! The store on Redis, against the driver alone, which sends the same commands. Client and server share the cores.

mod driver;
mod groups;
mod latency;
mod load;
mod memory;
mod server;
mod store;

use std::cell::OnceCell;
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, ensure};

use crate::harness::{BatchResult, Limit, MeasuredBatch, Subject};
use crate::subjects::FreshCalls;
use driver::DriverWorkload;
use load::{RateBasis, measured, threads};
use server::BenchServer;
use store::{GateWorkload, StoreTask, StoreWorkload};

const OPERATIONS: usize = 20_000;

/// How many records the replays, renewals and reads use in turn.
const KNOWN: usize = 1_000;

/// An operation on a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MeasuredStep {
    Begin,
    Cycle,
    Replay,
    Renew,
    Read,
}

pub(crate) fn all() -> anyhow::Result<Vec<Subject>> {
    let server = Rc::new(BenchServer::start(&[])?);
    let mut subjects = beside_the_driver(&server);
    subjects.push(redis_benchmark(&server));
    subjects.extend([memory::completed(&server), memory::in_progress(&server)]);
    subjects.extend([latency::added(&server, 50), latency::added(&server, 99)]);
    subjects.extend([connections(&server, 2), connections(&server, 4)]);
    subjects.push(among_many(&server));
    subjects.extend([logged(&server, "everysec"), logged(&server, "always")]);
    subjects.extend([groups::cluster(&server), groups::confirmed()]);
    Ok(subjects)
}

/// The subjects that are measured against the driver alone.
fn beside_the_driver(server: &Rc<BenchServer>) -> Vec<Subject> {
    let mut subjects = full_cycles(server);
    subjects.extend(single_steps(server));
    subjects
}

/// A begin and a completion of a new key, by the clock, by CPU and through the gate.
fn full_cycles(server: &Rc<BenchServer>) -> Vec<Subject> {
    let beside = |basis, at_least| {
        let run = bare(server, MeasuredStep::Cycle, basis);
        Some(Limit {
            what: "the same commands by the driver alone: SET and GETRANGE in one write, then the script",
            run,
            at_least,
        })
    };
    vec![
        Subject {
            name: "Redis, full cycle",
            what: "begin + complete of a new key, 256 in flight, one connection, one thread",
            run: steps(server, MeasuredStep::Cycle, RateBasis::Second),
            limit: beside(RateBasis::Second, Some(0.85)),
        },
        Subject {
            name: "Redis, full cycle, by CPU",
            what: "the same, for each second that this process spends on a core",
            run: steps(server, MeasuredStep::Cycle, RateBasis::SecondOfCpu),
            limit: beside(RateBasis::SecondOfCpu, None),
        },
        Subject {
            name: "Redis, gate.run",
            what: "a new key through the gate: ids, own task, kernel-drawn owner, begin, complete",
            run: gated(server),
            limit: beside(RateBasis::Second, None),
        },
    ]
}

/// The operations that send one write.
fn single_steps(server: &Rc<BenchServer>) -> Vec<Subject> {
    let subject = |name, what, operation, limit| Subject {
        name,
        what,
        run: steps(server, operation, RateBasis::Second),
        limit: Some(Limit { what: limit, run: bare(server, operation, RateBasis::Second), at_least: None }),
    };
    let (command, script) = ("the same two commands by the driver alone", "the same script by the driver alone");
    vec![
        subject("Redis, replays", "begin of a key that was answered", MeasuredStep::Replay, command),
        subject("Redis, renew", "a renewal of a grant that is held", MeasuredStep::Renew, script),
        subject("Redis, read", "a look at a record that was answered", MeasuredStep::Read, script),
    ]
}

/// The rate of `redis-benchmark` with the same server.
fn redis_benchmark(server: &Rc<BenchServer>) -> Subject {
    let server = Rc::clone(server);
    let run = move || {
        server.empty()?;
        let output = Command::new("fixtures/run.sh")
            .args(["redis", "redis-benchmark", "-P", "64", "-n", "1000000", "-r", "100000000", "-d", "58"])
            .args(["-t", "set", "--csv", "-p", &server.port()])
            .output()?;
        ensure!(output.status.success(), "redis-benchmark: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout)?;
        let rate = text
            .lines()
            .last()
            .and_then(|line| line.split('"').nth(3))
            .with_context(|| format!("the output of redis-benchmark has no rate: {text}"))?;
        Ok(BatchResult { rate: rate.parse()?, note: String::new() })
    };
    Subject {
        name: "redis-benchmark -P 64",
        what: "SET of 58 bytes by the server's own tool, 64 to a write",
        run: Box::new(run),
        limit: None,
    }
}

/// Several connections on two threads, against one connection on two threads.
fn connections(server: &Rc<BenchServer>, count: usize) -> Subject {
    let run = |connections| {
        let server = Rc::clone(server);
        let mut calls = FreshCalls::new();
        let run = move || {
            server.empty()?;
            let runtime = threads(2)?;
            let store = runtime.block_on(async { server.store(connections) })?;
            let tasks = calls.take(OPERATIONS).into_iter().map(StoreTask::new).collect();
            measured(
                &server,
                &runtime,
                RateBasis::Second,
                (StoreWorkload { store, operation: MeasuredStep::Cycle }, tasks),
            )
        };
        Box::new(run) as MeasuredBatch
    };
    Subject {
        name: if count == 2 { "Redis, 2 connections" } else { "Redis, 4 connections" },
        what: "begin + complete of a new key, 256 in flight, two threads",
        run: run(count),
        limit: Some(Limit { what: "the same over one connection", run: run(1), at_least: None }),
    }
}

/// A server that has ten million other keys, against a server that has none.
fn among_many(server: &Rc<BenchServer>) -> Subject {
    let full = OnceCell::<Rc<BenchServer>>::new();
    let mut calls = FreshCalls::new();
    let run = move || {
        if full.get().is_none() {
            let server = BenchServer::start(&["--enable-debug-command", "local"])?;
            server.ask(&["DEBUG", "POPULATE", "10000000", "hx:other", "91"])?;
            let _ = full.set(Rc::new(server));
        }
        cycles(full.get().context("the server with many keys is not started")?, &mut calls)
    };
    Subject {
        name: "Redis, among 10,000,000 keys",
        what: "begin + complete of a new key, 256 in flight",
        run: Box::new(run),
        limit: Some(Limit {
            what: "the same on a server without other keys",
            run: steps(server, MeasuredStep::Cycle, RateBasis::Second),
            at_least: Some(0.8),
        }),
    }
}

/// A server that logs its writes, against a server that does not.
fn logged(server: &Rc<BenchServer>, sync: &'static str) -> Subject {
    let logged = OnceCell::<Rc<BenchServer>>::new();
    let mut calls = FreshCalls::new();
    let run = move || {
        if logged.get().is_none() {
            let _ = logged.set(Rc::new(BenchServer::start(&["--appendonly", "yes", "--appendfsync", sync])?));
        }
        let server = logged.get().context("the server with a log is not started")?;
        server.empty()?;
        cycles(server, &mut calls)
    };
    Subject {
        name: if sync == "always" { "Redis, appendfsync always" } else { "Redis, appendfsync everysec" },
        what: "begin + complete of a new key, 256 in flight, on a server with a log",
        run: Box::new(run),
        limit: Some(Limit {
            what: "the same without a log",
            run: steps(server, MeasuredStep::Cycle, RateBasis::Second),
            at_least: None,
        }),
    }
}

fn cycles(server: &BenchServer, calls: &mut FreshCalls) -> anyhow::Result<BatchResult> {
    let runtime = threads(1)?;
    let store = runtime.block_on(async { server.store(1) })?;
    let tasks = calls.take(OPERATIONS).into_iter().map(StoreTask::new).collect();
    measured(server, &runtime, RateBasis::Second, (StoreWorkload { store, operation: MeasuredStep::Cycle }, tasks))
}

/// An operation on the store, on one thread.
fn steps(server: &Rc<BenchServer>, operation: MeasuredStep, per: RateBasis) -> MeasuredBatch {
    let server = Rc::clone(server);
    Box::new(move || {
        server.empty()?;
        let runtime = threads(1)?;
        let ours = StoreWorkload { store: runtime.block_on(async { server.store(1) })?, operation };
        let known = if operation == MeasuredStep::Cycle { OPERATIONS } else { KNOWN };
        let tasks = runtime.block_on(ours.prepared(&FreshCalls::new().take(known)))?;
        measured(&server, &runtime, per, (ours, round(&tasks)))
    })
}

/// The same operation by the driver alone.
fn bare(server: &Rc<BenchServer>, operation: MeasuredStep, per: RateBasis) -> MeasuredBatch {
    let server = Rc::clone(server);
    Box::new(move || {
        server.empty()?;
        let runtime = threads(1)?;
        let bare = runtime.block_on(DriverWorkload::connect(&server, operation))?;
        let known = if operation == MeasuredStep::Cycle { OPERATIONS } else { KNOWN };
        let names: Vec<_> = FreshCalls::new().take(known).iter().map(driver::record_name).collect();
        match operation {
            MeasuredStep::Begin | MeasuredStep::Cycle => {}
            MeasuredStep::Replay | MeasuredStep::Read => {
                runtime.block_on(load::all(&bare.with(MeasuredStep::Cycle), &names, load::IN_FLIGHT))?;
            }
            MeasuredStep::Renew => {
                runtime.block_on(load::all(&bare.with(MeasuredStep::Begin), &names, load::IN_FLIGHT))?;
            }
        }
        measured(&server, &runtime, per, (bare, round(&names)))
    })
}

fn gated(server: &Rc<BenchServer>) -> MeasuredBatch {
    let server = Rc::clone(server);
    Box::new(move || {
        server.empty()?;
        let runtime = threads(1)?;
        let gated = runtime.block_on(async { GateWorkload::over(server.store(1)?) })?;
        measured(&server, &runtime, RateBasis::Second, (gated, (0..OPERATIONS as u64).collect()))
    })
}

/// Repeats these tasks up to the number of operations.
fn round<T: Clone>(tasks: &[T]) -> Vec<T> {
    tasks.iter().cycle().take(OPERATIONS).cloned().collect()
}

//! Measures each subject and its limit in alternating pairs of one run, and writes `docs/performance.md`.
//!
//! ```text
//! cargo xtask bench core      the gate, the memory store and SQLite
//! cargo xtask bench core gate only those whose name contains "gate"
//! cargo xtask bench http      the HTTP layer
//! cargo xtask bench redis     the store on Redis, beside the driver alone
//! cargo xtask bench postgres  the store on PostgreSQL, beside its statements alone and beside single statements, and
//!                             the ledger in SQL beside the one in Rust
//! cargo xtask bench postgres-10m  the same among 10,000,000 records, which takes minutes to fill
//! cargo xtask bench ledger    the ledger on PostgreSQL and SQLite, beside bare claim rows
//! cargo xtask bench ledger-10m  the same in a table of 10,000,000 rows, which takes minutes to fill
//! cargo xtask bench worker    the worker on Kafka, NATS and SQLite, beside loops without it
//! cargo xtask bench worker-1m the memory of a worker in front of 1,000,000 messages, which takes minutes
//! cargo xtask bench answers   large answers in a bucket of MinIO, beside its calls alone
//! cargo xtask bench sizing    the bytes of a record in each store, by the size of its answer, for `hapax plan`
//! cargo xtask bench relay     the relay from PostgreSQL to NATS and Kafka, beside loops without it
//! cargo xtask bench relay-1m  a backlog of 1,000,000 rows beside a small one, which takes minutes
//! cargo xtask bench pipeline  all layers between Redis, Kafka, PostgreSQL and NATS, beside a pipeline without them
//! cargo xtask bench pipeline latency  only what each layer adds to the latency; writes nothing
//! cargo xtask bench keys      lists of 1,000,000 records on SQLite and Redis, and requests meanwhile; takes minutes
//! cargo xtask bench keys "" N the same among N records; writes nothing
//! cargo xtask bench gateway   the gateway as a process, beside a bare forwarder and nginx
//! ```
//!
//! Machines differ and are noisy. The ratio of two alternating measurements is reliable; an absolute figure is only a
//! rough guide.

mod harness;
mod proxies;
mod report;
mod requests;
mod sizing;
mod stages;
mod subjects;

use std::process::Command;

use anyhow::{Context, bail};

/// The allocator of `hapax`. The limits use it too, so that they are not slower because of another allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let (set, filter) = (words.next(), words.next().unwrap_or_default());
    if set.as_deref() == Some("resident") {
        println!("{}", subjects::resident_bytes(Some(&filter))?);
        return Ok(());
    }
    if set.as_deref() == Some("sizing") {
        return sizing::run();
    }
    if set.as_deref() == Some("drain") {
        return subjects::drain(&[filter].into_iter().chain(words).collect::<Vec<_>>());
    }
    if set.as_deref() == Some("publish") {
        return subjects::publish_until_end(&[filter].into_iter().chain(words).collect::<Vec<_>>());
    }
    if let Some(verb @ ("api" | "forwarder")) = set.as_deref() {
        return run_proxy(verb, &filter, words.next());
    }
    if set.as_deref() == Some("stage") {
        return stages::run(&filter, &words.next().context("the address is missing")?);
    }
    let records = words.next().unwrap_or_default();
    let (set, subjects) = match set.as_deref() {
        Some("core") => ("core", subjects::library()),
        Some("http") => ("http", subjects::http()),
        Some("redis") => ("redis", subjects::redis()?),
        Some("postgres") => ("postgres", subjects::postgres()?),
        Some("postgres-10m") => ("postgres-10m", subjects::large_postgres()?),
        Some("ledger") => ("ledger", subjects::ledger()?),
        Some("ledger-10m") => ("ledger-10m", subjects::large_ledger()?),
        Some("worker") => ("worker", subjects::worker()?),
        Some("worker-1m") => ("worker-1m", subjects::worker_backlog()?),
        Some("relay") => ("relay", subjects::relay()?),
        Some("relay-1m") => ("relay-1m", subjects::relay_backlog()?),
        Some("answers") => ("answers", subjects::answers()?),
        Some("gateway") => ("gateway", subjects::gateway()?),
        Some("keys") => ("keys", subjects::keys(&records)?),
        Some("pipeline") => ("pipeline", subjects::pipeline()?),
        Some(_) | None => {
            bail!(
                "the first argument must be answers, core, http, redis, postgres, postgres-10m, ledger, ledger-10m, \
                 worker, worker-1m, relay, relay-1m, pipeline, sizing, keys or gateway"
            )
        }
    };
    let chosen = subjects.into_iter().filter(|subject| subject.name.contains(&filter));
    let measured =
        chosen.map(|subject| harness::measure(subject, harness::pairs(set))).collect::<anyhow::Result<Vec<_>>>()?;
    let more = match (set, &*filter) {
        ("http", "") => allocations()?,
        ("pipeline", "" | "latency") => subjects::pipeline_latencies()?,
        _ => String::new(),
    };
    if filter.is_empty() && records.is_empty() {
        report::write(set, &measured, &more)?;
    }
    Ok(())
}

/// Runs as the API or as the forwarder that the gateway is measured with.
fn run_proxy(verb: &str, address: &str, upstream: Option<String>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    match (verb, upstream) {
        ("forwarder", Some(upstream)) => runtime.block_on(proxies::forwarder(address.parse()?, upstream.parse()?)),
        _ => runtime.block_on(proxies::api(address.parse()?)),
    }
}

/// Runs `hapax-allocations`. Counting allocations costs time, so a separate binary does it.
fn allocations() -> anyhow::Result<String> {
    let counter = std::env::current_exe()?.with_file_name("hapax-allocations");
    let output = Command::new(&counter)
        .output()
        .with_context(|| format!("{} is missing; build all binaries of this package", counter.display()))?;
    let text = String::from_utf8(output.stdout)?;
    print!("{text}");
    Ok(text.lines().map(|line| format!("- {line}\n")).collect())
}

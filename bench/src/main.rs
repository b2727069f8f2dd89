//! Measures each subject beside its limit, in alternating pairs of one run, and writes `docs/performance.md`.
//!
//! ```text
//! cargo xtask bench core      every subject of the library
//! cargo xtask bench core gate only those whose name contains "gate"
//! cargo xtask bench http      the HTTP layer
//! cargo xtask bench redis     the store on Redis, beside the driver alone
//! cargo xtask bench gateway   the gateway as a process, beside a bare forwarder and nginx
//! ```
//!
//! Machines differ and are noisy: a ratio of two things measured in turn is what counts, an absolute figure only orients.

mod harness;
mod proxies;
mod report;
mod requests;
mod subjects;

use std::process::Command;

use anyhow::{Context, bail};

/// The allocator of `hapax`: what stands beside it must not be slower for want of it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let (set, filter) = (words.next(), words.next().unwrap_or_default());
    if set.as_deref() == Some("resident") {
        println!("{}", subjects::resident_bytes(Some(&filter))?);
        return Ok(());
    }
    if let Some(verb @ ("api" | "forwarder")) = set.as_deref() {
        return stand_in(verb, &filter, words.next());
    }
    let (set, subjects) = match set.as_deref() {
        Some("core") => ("core", subjects::core()),
        Some("http") => ("http", subjects::http()),
        Some("redis") => ("redis", subjects::redis()?),
        Some("gateway") => ("gateway", subjects::gateway()?),
        Some(_) | None => bail!("name what to measure: core, http, redis or gateway"),
    };
    let chosen = subjects.into_iter().filter(|subject| subject.name.contains(&filter));
    let measured = chosen.map(harness::measure).collect::<anyhow::Result<Vec<_>>>()?;
    if filter.is_empty() {
        let more = if set == "http" { allocations()? } else { String::new() };
        report::write(set, &measured, &more)?;
    }
    Ok(())
}

/// Runs as one of the processes that the gateway is measured with.
fn stand_in(verb: &str, address: &str, upstream: Option<String>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    match (verb, upstream) {
        ("forwarder", Some(upstream)) => runtime.block_on(proxies::forwarder(address.parse()?, upstream.parse()?)),
        _ => runtime.block_on(proxies::api(address.parse()?)),
    }
}

/// What the binary beside this one prints: it counts allocations, which would cost time here.
fn allocations() -> anyhow::Result<String> {
    let counter = std::env::current_exe()?.with_file_name("hapax-allocations");
    let output =
        Command::new(&counter).output().with_context(|| format!("{} is built beside this", counter.display()))?;
    let told = String::from_utf8(output.stdout)?;
    print!("{told}");
    Ok(told)
}

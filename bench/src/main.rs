//! Measures each subject beside its limit, in alternating pairs of one run, and writes `docs/performance.md`.
//!
//! ```text
//! cargo xtask bench core      every subject of the library
//! cargo xtask bench core gate only those whose name contains "gate"
//! ```
//!
//! Machines differ and are noisy: a ratio of two things measured in turn is what counts, an absolute figure only orients.

mod harness;
mod report;
mod subjects;

use anyhow::bail;

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let (set, filter) = (words.next(), words.next().unwrap_or_default());
    if set.as_deref() == Some("resident") {
        println!("{}", subjects::resident_bytes(Some(&filter))?);
        return Ok(());
    }
    let subjects = match set.as_deref() {
        Some("core") => subjects::core(),
        Some(_) | None => bail!("name what to measure: core"),
    };
    let chosen = subjects.into_iter().filter(|subject| subject.name.contains(&filter));
    let measured = chosen.map(harness::measure).collect::<anyhow::Result<Vec<_>>>()?;
    if filter.is_empty() {
        report::write("core", &measured)?;
    }
    Ok(())
}

//! Alternating pairs, medians and ratios.

use std::fs;
use std::time::Instant;

use anyhow::Context;

/// How often each subject of a set is measured, alternating with its limit.
pub(crate) fn pairs(set: &str) -> usize {
    if set.starts_with("ledger") { 7 } else { 5 }
}

/// A measured subject, with its limit.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    /// A description of one operation.
    pub(crate) what: &'static str,
    pub(crate) run: MeasuredBatch,
    pub(crate) limit: Option<Limit>,
}

/// The same work without the measured code: the best rate that the subject could reach.
pub(crate) struct Limit {
    pub(crate) what: &'static str,
    pub(crate) run: MeasuredBatch,
    /// The required ratio, if there is one.
    pub(crate) at_least: Option<f64>,
}

/// Runs a batch of operations.
pub(crate) type MeasuredBatch = Box<dyn FnMut() -> anyhow::Result<BatchResult>>;

/// The result of one batch.
pub(crate) struct BatchResult {
    /// Operations per second, or another figure that the subject names.
    pub(crate) rate: f64,
    /// Another result, for the list below the table.
    pub(crate) note: String,
}

/// The result of a subject over its batches.
pub(crate) struct SubjectResult {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) rate: PairSpread,
    pub(crate) note: String,
    pub(crate) against: Option<LimitResult>,
}

pub(crate) struct LimitResult {
    pub(crate) what: &'static str,
    pub(crate) rate: PairSpread,
    /// Each pair has its own ratio, because the machine is faster in some pairs than in others.
    pub(crate) ratio: PairSpread,
    pub(crate) at_least: Option<f64>,
}

/// The median, the lowest and the highest of the values that the pairs measured.
#[derive(Debug, PartialEq)]
pub(crate) struct PairSpread {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl PairSpread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { median: values[values.len() / 2], lowest: values[0], highest: values[values.len() - 1] }
    }
}

/// Times a batch.
pub(crate) fn per_second(operations: usize, batch: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<BatchResult> {
    let started = Instant::now();
    batch()?;
    let rate = operations as f64 / started.elapsed().as_secs_f64();
    Ok(BatchResult { rate, note: String::new() })
}

/// Measures once and returns the same result each time, because the result does not vary.
pub(crate) fn once(mut run: MeasuredBatch) -> MeasuredBatch {
    let mut known: Option<(f64, String)> = None;
    Box::new(move || {
        let (rate, note) = match &known {
            Some(known) => known.clone(),
            None => {
                let figures = run()?;
                known.insert((figures.rate, figures.note)).clone()
            }
        };
        Ok(BatchResult { rate, note })
    })
}

/// The CPU time of all threads of a process.
pub(crate) fn seconds_of_cpu(process: &str) -> anyhow::Result<f64> {
    let mut nanoseconds = 0.0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let output = fs::read_to_string(thread?.path().join("schedstat"))?;
        nanoseconds += output.split(' ').next().unwrap_or_default().parse::<f64>()?;
    }
    Ok(nanoseconds / 1e9)
}

/// The CPU time of this process, with that of threads that have ended, in steps of 10 ms.
pub(crate) fn own_seconds_of_cpu() -> anyhow::Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may contain spaces. Behind it, user and system time are the 12th and 13th word.
    let (_, words) = stat.rsplit_once(") ").context("/proc/self/stat has no name")?;
    let ticks = words.split(' ').skip(11).take(2).map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks / 100.0)
}

/// The memory of this process in KiB: `VmRSS:` is what is resident, `VmHWM:` the most that ever was.
pub(crate) fn memory_of(field: &str) -> anyhow::Result<usize> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    Ok(line.with_context(|| format!("/proc/self/status has no {field}"))?.trim().trim_end_matches(" kB").parse()?)
}

pub(crate) fn measure(mut subject: Subject, pairs: usize) -> anyhow::Result<SubjectResult> {
    println!("{}: {}", subject.name, subject.what);
    let (mut rates, mut limits, mut ratios, mut note) = (Vec::new(), Vec::new(), Vec::new(), String::new());
    for _ in 0..pairs {
        let figures = (subject.run)()?;
        note = figures.note;
        rates.push(figures.rate);
        if let Some(limit) = &mut subject.limit {
            let beside = (limit.run)()?;
            limits.push(beside.rate);
            ratios.push(figures.rate / beside.rate);
            if !beside.note.is_empty() {
                note = format!("{note}; beside it {}", beside.note);
            }
        }
    }
    let against = subject.limit.map(|limit| LimitResult {
        what: limit.what,
        rate: PairSpread::of(limits),
        ratio: PairSpread::of(ratios),
        at_least: limit.at_least,
    });
    let measured = SubjectResult { name: subject.name, what: subject.what, rate: PairSpread::of(rates), note, against };
    println!("  {}", crate::report::line(&measured));
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_median_and_both_ends() {
        let spread = PairSpread::of(vec![3.0, 1.0, 5.0, 4.0, 2.0]);
        assert_eq!(spread, PairSpread { median: 3.0, lowest: 1.0, highest: 5.0 });
    }
}

//! Alternating pairs, medians and ratios.

use std::time::Instant;

/// How often each subject is measured, alternating with its limit.
const PAIRS: usize = 5;

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

pub(crate) fn measure(mut subject: Subject) -> anyhow::Result<SubjectResult> {
    println!("{}: {}", subject.name, subject.what);
    let (mut rates, mut limits, mut ratios, mut note) = (Vec::new(), Vec::new(), Vec::new(), String::new());
    for _ in 0..PAIRS {
        let figures = (subject.run)()?;
        note = figures.note;
        rates.push(figures.rate);
        if let Some(limit) = &mut subject.limit {
            let rate = (limit.run)()?.rate;
            limits.push(rate);
            ratios.push(figures.rate / rate);
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

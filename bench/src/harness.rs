//! Alternating pairs, medians and ratios.

use std::time::Instant;

/// How often each subject is measured, in turn with its limit.
const PAIRS: usize = 5;

/// Something to be measured, and what it is measured against.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    /// What is done once per operation.
    pub(crate) what: &'static str,
    pub(crate) run: Run,
    pub(crate) limit: Option<Limit>,
}

/// The same work without what is measured.
pub(crate) struct Limit {
    pub(crate) what: &'static str,
    pub(crate) run: Run,
    /// The ratio to reach, if one is asked for.
    pub(crate) at_least: Option<f64>,
}

/// Does a batch of operations.
pub(crate) type Run = Box<dyn FnMut() -> anyhow::Result<Figures>>;

/// What one batch showed.
pub(crate) struct Figures {
    /// Operations per second, or whatever the subject counts.
    pub(crate) rate: f64,
    /// Anything else worth a line.
    pub(crate) note: String,
}

/// What all batches of a subject showed.
pub(crate) struct Measured {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) rate: f64,
    pub(crate) note: String,
    pub(crate) against: Option<Against>,
}

pub(crate) struct Against {
    pub(crate) what: &'static str,
    pub(crate) rate: f64,
    pub(crate) ratio: f64,
    pub(crate) at_least: Option<f64>,
}

/// Times a batch.
pub(crate) fn per_second(operations: usize, batch: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Figures> {
    let started = Instant::now();
    batch()?;
    let rate = operations as f64 / started.elapsed().as_secs_f64();
    Ok(Figures { rate, note: String::new() })
}

pub(crate) fn measure(mut subject: Subject) -> anyhow::Result<Measured> {
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
    let against = subject.limit.map(|limit| Against {
        what: limit.what,
        rate: median(&mut limits),
        ratio: median(&mut ratios),
        at_least: limit.at_least,
    });
    let measured = Measured { name: subject.name, what: subject.what, rate: median(&mut rates), note, against };
    println!("  {}", crate::report::line(&measured));
    Ok(measured)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

//! The same steps on a store and on the one in memory, drawn from a seed: every reply must be the same, and every stored header.
//!
//! Tokens are compared by the order in which they come up, and spans with some slack, since the clock of a server goes on.

mod side;
mod step;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::store::{Memory, MemorySettings};
use hapax_core::{Record, RecordKey, State};

use crate::clock::ManualClock;
use crate::setup::{self, Setup};
use side::{Side, Told};
use step::{Draw, Step};

/// How much later a server may be asked than the store in memory.
const SLACK: Duration = Duration::from_millis(900);

/// A sequence that took longer was kept waiting by the machine: its spans say nothing.
const BUSY: Duration = Duration::from_millis(400);

const APART: Duration = Duration::from_secs(60);

/// By so many margins a difference must show: with one, a life may end at the very instant of a look, which the clocks see apart.
const MARGINS: u64 = 3;

/// How often a sequence is tried again.
const TRIES: u64 = 20;

/// Runs the sequences of these seeds, each on records of its own, and says how many steps they had.
///
/// # Panics
/// At the first difference, with the steps that led there.
pub async fn differential(setup: &dyn Setup, seeds: std::ops::Range<u64>) -> usize {
    let (mut steps, memory) = (0, InMemory::new());
    // A store may want to know that its clock and ours will be apart: it looks once a minute.
    setup.step_clock(setup::Step::Forward(APART)).await;
    let _findings = setup.inspect().check().await.expect("a check is answered");
    for seed in seeds {
        steps += sequence(setup, &memory, seed).await;
    }
    steps
}

/// The store that is right by definition, and its clock.
struct InMemory {
    clock: Arc<ManualClock>,
    store: Arc<Memory>,
}

impl InMemory {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        let store = Memory::new(Arc::clone(&clock) as _, MemorySettings::default());
        Self { clock, store: Arc::new(store) }
    }
}

async fn sequence(setup: &dyn Setup, memory: &InMemory, seed: u64) -> usize {
    for attempt in 0..TRIES {
        let started = Instant::now();
        let told = Pair::new(setup, memory, seed, attempt).run().await;
        match told {
            Ok(steps) => return steps,
            Err(_) if attempt < MARGINS || started.elapsed() > BUSY => {}
            Err(difference) => panic!("seed {seed}: {difference}"),
        }
    }
    panic!("seed {seed}: the machine is too busy to compare spans");
}

/// Both stores, with what has been done to them.
struct Pair<'a> {
    setup: &'a dyn Setup,
    clock: Arc<ManualClock>,
    draw: Draw,
    expected: Side,
    actual: Side,
    /// How far the clocks have been moved, to be moved back in the end.
    ahead: Duration,
    back: Duration,
    /// How much further than asked for the clock is moved next, in tenths of a second. It grows: if two moves had the same, one
    /// life could end exactly as much later than another as the look at it comes.
    margin: u64,
    trace: String,
}

impl<'a> Pair<'a> {
    fn new(setup: &'a dyn Setup, memory: &InMemory, seed: u64, attempt: u64) -> Self {
        let keys = [0, 1].map(|key| RecordKey::from_bytes(step::mixed(&[seed, attempt, key])));
        let (expected, actual) = (Side::new(Arc::clone(&memory.store) as _, keys), Side::new(setup.store(), keys));
        let (ahead, back) = (Duration::ZERO, Duration::ZERO);
        let clock = Arc::clone(&memory.clock);
        Self {
            setup,
            clock,
            draw: Draw::new(seed),
            expected,
            actual,
            ahead,
            back,
            margin: 7 + attempt,
            trace: String::new(),
        }
    }

    async fn run(mut self) -> Result<usize, String> {
        let steps = self.draw.between(8, 30);
        let mut outcome = Ok(steps);
        for _ in 0..steps {
            if let Err(difference) = self.step().await {
                outcome = Err(format!("{difference}\nafter\n{}", self.trace));
                break;
            }
        }
        let (ahead, back) = (self.ahead, self.back);
        self.backward(ahead).await;
        self.setup.step_clock(setup::Step::Forward(back)).await;
        self.clock.forward(back);
        outcome
    }

    async fn step(&mut self) -> Result<(), String> {
        let step = self.draw.step(self.expected.grants(), self.expected.tokens());
        let _ = writeln!(self.trace, "{step:?}");
        let mut touched = 0..2;
        match step {
            Step::Lapse(key) => self.forward(self.expected.seen(key).await.lease_left).await,
            Step::Expire(key) => self.forward(self.expected.seen(key).await.life_left).await,
            Step::Forward(by) => self.forward(by).await,
            Step::Back(by) => self.backward(by).await,
            Step::Ask(ask) => {
                let (expected, actual) = (self.expected.told(&ask).await, self.actual.told(&ask).await);
                let _ = writeln!(self.trace, "    {}", expected.text);
                same("the reply", &expected, &actual)?;
                let key = self.expected.touched(&ask);
                touched = key..key + 1;
            }
        }
        for key in touched {
            self.compare_records(key).await?;
        }
        Ok(())
    }

    /// Further than asked for, so that no span ends where the clocks differ.
    async fn forward(&mut self, by: Duration) {
        let by = by + Duration::from_millis(100 * self.margin);
        self.margin += 1;
        self.ahead += by;
        self.clock.forward(by);
        self.setup.step_clock(setup::Step::Forward(by)).await;
    }

    async fn backward(&mut self, by: Duration) {
        self.back += by;
        self.clock.back(by);
        self.setup.step_clock(setup::Step::Back(by)).await;
    }

    async fn compare_records(&mut self, key: usize) -> Result<(), String> {
        let (expected, seen) = self.expected.shown(key).await;
        let (actual, other) = self.actual.shown(key).await;
        same("the record", &expected, &actual)?;
        let (Some(record), Some(other)) = (seen, other) else { return Ok(()) };
        let Some(stored) = self.setup.value(&self.actual.key(key)).await else { return Ok(()) };
        let header = as_stored(record, &other).encode(&self.actual.key(key));
        if stored == header { Ok(()) } else { Err(format!("stored {stored:02x?} instead of {header:02x?}")) }
    }
}

/// The record as the other store must have it: with the token and the expiry that are its own.
fn as_stored(record: Record, other: &Record) -> Record {
    let state = match (record.state, &other.state) {
        (State::Completed(mut completion), State::Completed(theirs)) => {
            completion.expiry = theirs.expiry;
            State::Completed(completion)
        }
        (state, _) => state,
    };
    Record { token: other.token, state, ..record }
}

fn same(what: &str, expected: &Told, actual: &Told) -> Result<(), String> {
    let close = |(one, other): (&Duration, &Duration)| one.abs_diff(*other) < SLACK;
    let spans = expected.spans.len() == actual.spans.len() && expected.spans.iter().zip(&actual.spans).all(close);
    if expected.text == actual.text && spans {
        return Ok(());
    }
    Err(format!("{what} was to be\n    {expected:?}\nand is\n    {actual:?}"))
}

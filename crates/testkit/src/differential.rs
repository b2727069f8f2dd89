//! Runs the same random steps on a store and on the store in memory. Every reply and every stored header must be the
//! same.
//!
//! Tokens are compared by the order of their first appearance. Durations may differ a little, because a server's clock
//! runs on.

mod step;
mod store_driver;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_core::store::{Memory, MemorySettings};
use hapax_core::{Record, RecordKey, State};

use crate::clock::ManualClock;
use crate::setup::{self, Setup};
use step::{DifferentialStep, SeededRandom};
use store_driver::{ReplySummary, StoreDriver};

/// How far two durations may differ: the server gets each call later than the store in memory.
const SLACK: Duration = Duration::from_millis(900);

/// If a sequence took longer, the machine was too busy for its durations to be compared.
const MAX_ELAPSED: Duration = Duration::from_millis(400);

/// How far the store's clock is moved ahead of this host's clock.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// A difference must appear with this many margins. With a single one, a record may expire at the very instant of a
/// read, on which the two clocks disagree.
const MARGINS: u64 = 3;

/// How often a sequence is repeated on a busy machine.
const TRIES: u64 = 20;

/// Runs the sequences of these seeds, each on its own records. Returns the number of steps.
///
/// # Panics
/// At the first difference, with the steps that led to it.
pub async fn differential(setup: &dyn Setup, seeds: std::ops::Range<u64>) -> usize {
    let (mut steps, memory) = (0, ReferenceStore::new());
    // With two different clocks, a store that reads the wrong one shows it. The check lets the store measure the skew.
    setup.step_clock(setup::ClockStep::Forward(CLOCK_SKEW)).await;
    let _findings = setup.inspect().check().await.expect("the check failed");
    for seed in seeds {
        steps += sequence(setup, &memory, seed).await;
    }
    steps
}

/// The store in memory, which defines the right behaviour, and its clock.
struct ReferenceStore {
    clock: Arc<ManualClock>,
    store: Arc<Memory>,
}

impl ReferenceStore {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        let store = Memory::with(Arc::clone(&clock) as _, MemorySettings::default());
        Self { clock, store: Arc::new(store) }
    }
}

async fn sequence(setup: &dyn Setup, memory: &ReferenceStore, seed: u64) -> usize {
    for attempt in 0..TRIES {
        let started = Instant::now();
        match StorePair::new(setup, memory, seed, attempt).run().await {
            Ok(steps) => return steps,
            // An early or slow difference may come from the clocks: try again with another margin.
            Err(_) if attempt < MARGINS || started.elapsed() > MAX_ELAPSED => {}
            Err(difference) => panic!("seed {seed}: {difference}"),
        }
    }
    panic!("seed {seed}: the machine is too busy to compare durations");
}

/// Both stores, and the steps that were run on them.
struct StorePair<'a> {
    setup: &'a dyn Setup,
    clock: Arc<ManualClock>,
    random: SeededRandom,
    expected: StoreDriver,
    actual: StoreDriver,
    /// How far the clocks were moved in each direction. The end of the sequence undoes both.
    ahead: Duration,
    back: Duration,
    /// How much further than drawn the clock is moved next, in tenths of a second. It grows with each move: with a
    /// constant margin, a record could expire at the very instant of a read.
    margin: u64,
    trace: String,
}

impl<'a> StorePair<'a> {
    fn new(setup: &'a dyn Setup, memory: &ReferenceStore, seed: u64, attempt: u64) -> Self {
        let keys = [0, 1].map(|key| RecordKey::from_bytes(step::hash_numbers(&[seed, attempt, key])));
        let (expected, actual) =
            (StoreDriver::new(Arc::clone(&memory.store) as _, keys), StoreDriver::new(setup.store(), keys));
        let (ahead, back) = (Duration::ZERO, Duration::ZERO);
        let clock = Arc::clone(&memory.clock);
        Self {
            setup,
            clock,
            random: SeededRandom::new(seed),
            expected,
            actual,
            ahead,
            back,
            margin: 7 + attempt,
            trace: String::new(),
        }
    }

    async fn run(mut self) -> Result<usize, String> {
        let steps = self.random.between(8, 30);
        let mut outcome = Ok(steps);
        for _ in 0..steps {
            if let Err(difference) = self.step().await {
                outcome = Err(format!("{difference}\nafter\n{}", self.trace));
                break;
            }
        }
        // The next sequence runs on the same stores, so both clocks go back to where they were.
        let (ahead, back) = (self.ahead, self.back);
        self.backward(ahead).await;
        self.setup.step_clock(setup::ClockStep::Forward(back)).await;
        self.clock.forward(back);
        outcome
    }

    async fn step(&mut self) -> Result<(), String> {
        let step = self.random.step(self.expected.grants(), self.expected.tokens());
        let _ = writeln!(self.trace, "{step:?}");
        let mut touched = 0..2;
        match step {
            DifferentialStep::Lapse(key) => self.forward(self.expected.observe(key).await.lease_left).await,
            DifferentialStep::Expire(key) => self.forward(self.expected.observe(key).await.life_left).await,
            DifferentialStep::Forward(by) => self.forward(by).await,
            DifferentialStep::Back(by) => self.backward(by).await,
            DifferentialStep::Call(call) => {
                let (expected, actual) = (self.expected.execute(&call).await, self.actual.execute(&call).await);
                let _ = writeln!(self.trace, "    {}", expected.text);
                compare("the reply", &expected, &actual)?;
                let key = self.expected.key_of(&call);
                touched = key..key + 1;
            }
        }
        for key in touched {
            self.compare_records(key).await?;
        }
        Ok(())
    }

    /// Moves both clocks further than asked for, so that no lease or record expires within their difference.
    async fn forward(&mut self, by: Duration) {
        let by = by + Duration::from_millis(100 * self.margin);
        self.margin += 1;
        self.ahead += by;
        self.clock.forward(by);
        self.setup.step_clock(setup::ClockStep::Forward(by)).await;
    }

    async fn backward(&mut self, by: Duration) {
        self.back += by;
        self.clock.back(by);
        self.setup.step_clock(setup::ClockStep::Back(by)).await;
    }

    async fn compare_records(&mut self, key: usize) -> Result<(), String> {
        let (expected, record) = self.expected.summarize_record(key).await;
        let (actual, other) = self.actual.summarize_record(key).await;
        compare("the record", &expected, &actual)?;
        let (Some(record), Some(other)) = (record, other) else { return Ok(()) };
        let Some(stored) = self.setup.value(&self.actual.key(key)).await else { return Ok(()) };
        let header = as_stored(record, &other).encode(&self.actual.key(key));
        if stored == header { Ok(()) } else { Err(format!("stored {stored:02x?} instead of {header:02x?}")) }
    }
}

/// The record that the other store must have stored: with its own token and expiry.
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

fn compare(what: &str, expected: &ReplySummary, actual: &ReplySummary) -> Result<(), String> {
    let close = |(one, other): (&Duration, &Duration)| one.abs_diff(*other) < SLACK;
    let same_durations = expected.durations.len() == actual.durations.len()
        && expected.durations.iter().zip(&actual.durations).all(close);
    if expected.text == actual.text && same_durations {
        return Ok(());
    }
    Err(format!("{what} should be\n    {expected:?}\nand is\n    {actual:?}"))
}

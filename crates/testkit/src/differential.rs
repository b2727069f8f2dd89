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

/// If a lease or a record ends closer to the present than this, the two clocks may disagree on whether it has ended. It
/// is longer than [`MAX_ELAPSED`], and shorter than the smallest margin.
const NEAR: Duration = Duration::from_millis(500);

/// How much a margin grows with each move: by more than [`NEAR`], so that no two margins cancel out.
const GROWTH: Duration = Duration::from_millis(600);

/// How often a sequence is repeated, with another margin each time.
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
    let mut last = String::new();
    for attempt in 0..TRIES {
        let started = Instant::now();
        match StorePair::new(setup, memory, seed, attempt).run().await {
            Ok(steps) => return steps,
            Err(Stop::Unclear) => {}
            Err(Stop::Difference(difference)) if started.elapsed() > MAX_ELAPSED => last = difference,
            Err(Stop::Difference(difference)) => panic!("seed {seed}: {difference}"),
        }
    }
    panic!("seed {seed}: the clocks are never clear, or the machine is too busy; the last difference: {last}");
}

/// Why a sequence ended early.
enum Stop {
    /// The clocks may disagree on whether a lease or a record has ended, so nothing can be compared.
    Unclear,
    Difference(String),
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
    /// How much further than drawn the clock is moved next. It grows with each move: with a constant margin, a record
    /// could expire at the very instant of a read.
    margin: Duration,
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
            margin: Duration::from_millis(700 + 100 * attempt),
            trace: String::new(),
        }
    }

    async fn run(mut self) -> Result<usize, Stop> {
        let steps = self.random.between(8, 30);
        let mut outcome = Ok(steps);
        for _ in 0..steps {
            if let Err(stop) = self.step().await {
                outcome = Err(stop);
                break;
            }
        }
        // The next sequence runs on the same stores, so both clocks go back to where they were.
        let (ahead, back) = (self.ahead, self.back);
        self.backward(ahead).await;
        self.setup.step_clock(setup::ClockStep::Forward(back)).await;
        self.clock.forward(back);
        outcome.map_err(|stop| match stop {
            Stop::Unclear => Stop::Unclear,
            Stop::Difference(difference) => Stop::Difference(format!("{difference}\nafter\n{}", self.trace)),
        })
    }

    async fn step(&mut self) -> Result<(), Stop> {
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
                compare("the reply", &expected, &actual).map_err(Stop::Difference)?;
                let key = self.expected.key_of(&call);
                touched = key..key + 1;
            }
        }
        // Between two moves the time stands still, as far as the sequence can tell.
        if touched.len() == 2 && !self.is_clear().await {
            return Err(Stop::Unclear);
        }
        for key in touched {
            self.compare_records(key).await.map_err(Stop::Difference)?;
        }
        Ok(())
    }

    /// Whether no lease and no record begins or ends about now.
    async fn is_clear(&self) -> bool {
        self.clock.back(NEAR);
        let earlier = [self.expected.phase(0).await, self.expected.phase(1).await];
        self.clock.forward(2 * NEAR);
        let later = [self.expected.phase(0).await, self.expected.phase(1).await];
        self.clock.back(NEAR);
        earlier == later
    }

    /// Moves both clocks further than asked for, so that no lease or record expires within their difference.
    async fn forward(&mut self, by: Duration) {
        let by = by + self.margin;
        self.margin += GROWTH;
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

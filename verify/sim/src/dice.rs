//! Random numbers. Everything random in a world comes from its seed.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A random number generator. Clones share their state.
#[derive(Clone)]
pub(crate) struct Dice(Arc<Mutex<u64>>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        // Without the multiplication, neighbouring seeds would start with similar numbers.
        let dice = Self(Arc::new(Mutex::new(seed.wrapping_mul(0xd134_2543_de82_ef95))));
        dice.next();
        dice
    }

    /// SplitMix64.
    pub(crate) fn next(&self) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which must not be zero.
    pub(crate) fn below(&self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("smaller than a usize")
    }

    /// A number between these two, both included.
    pub(crate) fn between(&self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    /// True with a probability of this many percent.
    pub(crate) fn percent(&self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A duration up to this one, in whole microseconds.
    pub(crate) fn up_to(&self, longest: Duration) -> Duration {
        let micros = u64::try_from(longest.as_micros()).expect("a span of a simulation is short");
        Duration::from_micros(self.next() % (micros + 1))
    }

    /// A duration between these two.
    pub(crate) fn span(&self, shortest: Duration, longest: Duration) -> Duration {
        shortest + self.up_to(longest.saturating_sub(shortest))
    }
}

impl fmt::Debug for Dice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dice")
    }
}

//! Random numbers from a seed, so that the same seed repeats the same orders and the same faults.

use std::ops::Range;

/// A stream of random numbers (SplitMix64).
#[derive(Debug)]
pub struct SplitMix(u64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl SplitMix {
    /// A stream of its own for each instance of a topic.
    pub fn new(seed: u64, topic: u64, instance: u64) -> Self {
        let mut stream = Self(seed);
        for part in [topic, instance] {
            stream.0 = stream.next() ^ part.wrapping_mul(STEP);
        }
        stream
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of the range, which is not empty.
    pub fn of(&mut self, range: Range<u32>) -> u32 {
        let width = u64::from(range.end - range.start);
        range.start + u32::try_from(self.next() % width).unwrap_or_default()
    }

    /// True in this many of 100 cases.
    pub fn percent(&mut self, cases: u32) -> bool {
        self.of(0..100) < cases
    }

    /// A time of up to this many milliseconds.
    pub fn millis(&mut self, longest: u32) -> std::time::Duration {
        std::time::Duration::from_millis(self.of(0..longest + 1).into())
    }
}

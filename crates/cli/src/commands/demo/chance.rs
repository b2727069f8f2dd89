//! Seeded decisions: the same seed makes the same traffic.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A stream of numbers (SplitMix64), one for each thing that is to be decided.
#[derive(Debug)]
pub(super) struct Chance(u64);

/// What a stream decides, so that no two decisions share their numbers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Topic {
    /// What a payment is and how its client behaves.
    Traffic,
    /// What the payment service does with the first request for a payment.
    Conduct,
    /// How long the payment service takes over one request.
    Pace,
    /// How long a client waits before it asks again.
    Pause,
    /// How long the gateway stays away after a crash.
    Outage,
}

impl Chance {
    /// The stream for one topic, and the place in it that the numbers name.
    pub(super) fn new(seed: u64, topic: Topic, place: &[u64]) -> Self {
        let mut chance = Self(seed);
        for part in [topic as u64].iter().chain(place) {
            chance.0 = chance.draw() ^ part.wrapping_mul(STEP);
        }
        chance
    }

    /// The next number.
    pub(super) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high - low + 1)
    }
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A seed for a run that was given none; short enough to be typed.
pub(super) fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish() % 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_published_generator() {
        let mut chance = Chance(1_234_567);
        assert_eq!(chance.draw(), 6_457_827_717_110_365_317);
        assert_eq!(chance.draw(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn another_seed_topic_or_place_gives_other_numbers() {
        let first = |seed, topic, place: &[u64]| Chance::new(seed, topic, place).draw();
        let one = first(1, Topic::Traffic, &[1]);
        assert_eq!(one, first(1, Topic::Traffic, &[1]));
        assert_ne!(one, first(2, Topic::Traffic, &[1]));
        assert_ne!(one, first(1, Topic::Pace, &[1]));
        assert_ne!(one, first(1, Topic::Traffic, &[2]));
    }
}

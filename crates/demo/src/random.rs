//! Random numbers from a seed, so that the same seed repeats the same traffic.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A stream of random numbers (SplitMix64). Every instance of a topic has a stream of its own.
#[derive(Debug)]
pub(super) struct RandomStream(u64);

/// The topic of a stream: what its numbers decide. Each topic starts its streams at other states.
#[derive(Debug, Clone, Copy)]
pub(super) enum RandomTopic {
    /// The content of a payment and the behaviour of its client.
    Traffic,
    /// The response of the payment service.
    ServiceBehavior,
    /// How long the payment service takes for one request.
    ServiceDelay,
    /// How long a client waits before a retry.
    RetryDelay,
    /// Which clients never ask again.
    Leaving,
    /// Which faults a process has, and when.
    Faults,
    /// Which messages are delivered again.
    Redelivery,
}

impl RandomStream {
    /// Creates the stream for one instance of a topic, for example for one payment and one try.
    pub(super) fn new(seed: u64, topic: RandomTopic, instance: &[u64]) -> Self {
        let mut random = Self(seed);
        for part in [topic as u64].iter().chain(instance) {
            random.0 = random.next_number() ^ part.wrapping_mul(STEP);
        }
        random
    }

    /// Returns the next number.
    pub(super) fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from `low` to `high`, both included.
    pub(super) fn in_range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next_number() % (high - low + 1)
    }
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Creates a random seed that is short enough to type.
pub(super) fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish() % 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_match_the_published_generator() {
        let mut random = RandomStream(1_234_567);
        assert_eq!(random.next_number(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_number(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn another_seed_topic_or_instance_gives_other_numbers() {
        let first = |seed, topic, instance: &[u64]| RandomStream::new(seed, topic, instance).next_number();
        let one = first(1, RandomTopic::Traffic, &[1]);
        assert_eq!(one, first(1, RandomTopic::Traffic, &[1]));
        assert_ne!(one, first(2, RandomTopic::Traffic, &[1]));
        assert_ne!(one, first(1, RandomTopic::ServiceDelay, &[1]));
        assert_ne!(one, first(1, RandomTopic::Traffic, &[2]));
    }
}

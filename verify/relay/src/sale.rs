use std::time::Duration;

use hapax_torture::SplitMix;

use crate::run::RelayTortureOptions;

/// The topics of random numbers.
const SALE: u64 = 1;
pub(crate) const FAULTS: u64 = 2;
pub(crate) const REDELIVERIES: u64 = 3;

/// One transaction of a writer, with one event.
#[derive(Debug)]
pub(crate) struct Sale {
    pub(crate) number: u32,
    /// The ordering key. Without one, the event may arrive in any order.
    pub(crate) shop: Option<u32>,
    /// Whether a ledger emits it. Otherwise the function `hapax_emit` does.
    pub(crate) has_ledger: bool,
    pub(crate) is_rolled_back: bool,
    /// When its writer begins with it after the one before, as a share of the time that the writer has for it.
    pub(crate) begins_after: f64,
    /// How long the transaction stays open after it emitted its event.
    pub(crate) pause: Duration,
}

impl Sale {
    pub(crate) fn draw(options: &RelayTortureOptions, number: u32) -> Self {
        let mut random = SplitMix::new(options.seed, SALE, number.into());
        let shop = random.of(0..options.keys);
        let shop = random.percent(90).then_some(shop);
        let (has_ledger, is_rolled_back) = (random.percent(40), random.percent(10));
        let pause = if random.percent(3) { random.millis(600) } else { Duration::ZERO };
        let begins_after = f64::from(random.of(0..200)) / 100.0;
        Self { number, shop, has_ledger, is_rolled_back, begins_after, pause }
    }
}

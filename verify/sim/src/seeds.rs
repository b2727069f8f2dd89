//! Many seeds, one after the other.

use std::ops::Range;

use crate::totals::RunTotals;
use crate::world::run;

/// One seed in this many runs twice, and both runs must have the same hash.
const COMPARED: u64 = 100;

/// A seed whose world broke a rule, or whose two runs differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedSeed {
    /// The seed.
    pub seed: u64,
    /// The rule.
    pub rule: String,
}

impl FailedSeed {
    /// The command that prints the trace of this seed.
    pub fn command(&self) -> String {
        format!("cargo xtask prove sim --seed {}", self.seed)
    }
}

/// Runs the worlds of these seeds and stops at the first that breaks a rule.
///
/// # Errors
/// The first seed that fails.
pub fn run_all(seeds: Range<u64>) -> Result<RunTotals, FailedSeed> {
    let mut tally = RunTotals::default();
    for seed in seeds {
        let first = run(seed, false);
        if let Some(rule) = first.violation {
            return Err(FailedSeed { seed, rule });
        }
        if seed % COMPARED == 0 {
            tally.compared += 1;
            if run(seed, false).hash != first.hash {
                return Err(FailedSeed { seed, rule: "two runs of one seed differ".into() });
            }
        }
        tally.add(&first);
    }
    Ok(tally)
}

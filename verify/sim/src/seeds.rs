//! Many seeds, one after the other.

use std::ops::Range;

use crate::tally::Tally;
use crate::world::run;

/// Each so many-th seed is run twice, and both runs must be the same.
const COMPARED: u64 = 100;

/// A seed whose world broke a rule, or was not the same twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The rule.
    pub rule: String,
}

impl Failure {
    /// What to type to read what happened.
    pub fn command(&self) -> String {
        format!("cargo xtask prove sim --seed {}", self.seed)
    }
}

/// Runs the worlds of these seeds, up to the first that breaks a rule.
///
/// # Errors
/// That one.
pub fn run_all(seeds: Range<u64>) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    for seed in seeds {
        let first = run(seed, false);
        if let Some(rule) = first.violation {
            return Err(Failure { seed, rule });
        }
        if seed % COMPARED == 0 {
            tally.compared += 1;
            if run(seed, false).hash != first.hash {
                return Err(Failure { seed, rule: "two runs of one seed differ".into() });
            }
        }
        tally.add(&first);
    }
    Ok(tally)
}

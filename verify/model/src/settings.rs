//! The table of settings: what is shipped must hold, and what must not be done must break.

mod deep;
mod forbidden;
mod shipped;

use std::fmt;

use hapax_core::machine::Lapse;

use crate::check::Verdict;
use crate::invariant::Invariant;
use crate::setting::{Allowed, Clock, Effect, Faults, Operator, Sent, Setting, Wrong};

pub use deep::DEEP;

/// Every setting but the deep ones: what is shipped, then what must not be done.
pub fn settings() -> impl Iterator<Item = &'static Listed> {
    shipped::SHIPPED.iter().chain(forbidden::FORBIDDEN)
}

/// A setting with its name, and what is expected of it.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// Its name.
    pub name: &'static str,
    /// What is tried.
    pub what: &'static str,
    /// What is expected.
    pub expected: Expected,
    /// The setting itself.
    pub setting: Setting,
}

/// What is expected of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Everything holds.
    Holds,
    /// This breaks, and nothing breaks sooner.
    Breaks(Invariant),
}

impl Listed {
    /// Whether a verdict is the expected one.
    ///
    /// # Errors
    /// What is otherwise.
    pub fn as_expected(&self, verdict: &Verdict) -> Result<(), String> {
        let broken = verdict.broken.as_ref().map(|(invariant, _)| *invariant);
        match self.expected {
            Expected::Holds if broken.is_none() => Ok(()),
            Expected::Breaks(invariant) if broken == Some(invariant) => Ok(()),
            Expected::Holds => Err("everything should hold".to_owned()),
            Expected::Breaks(invariant) => Err(format!("this should break first: {}", invariant.sentence())),
        }
    }
}

/// The short form: the letter of what breaks.
impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds => f.write_str("holds"),
            Self::Breaks(invariant) => f.write_str(invariant.letter()),
        }
    }
}

const CALL: Sent = Sent { tenant: 0, payload: 1 };
const TWO: &[Sent] = &[CALL; 2];
const THREE: &[Sent] = &[CALL; 3];
const TWO_PAYLOADS: &[Sent] = &[CALL, Sent { tenant: 0, payload: 2 }, CALL];
const TWO_TENANTS: &[Sent] = &[CALL, Sent { tenant: 1, payload: 1 }];

const NO_FAULTS: Faults =
    Faults { network: 0, crashes: 0, errors: 0, amnesias: 0, failovers: 0, expiries: 0, steps_back: 0, looks: 0 };
/// One of each that a process and its network can have.
const FAULTS: Faults = Faults { network: 1, crashes: 1, errors: 1, ..NO_FAULTS };
const CRASH: Faults = Faults { network: 0, errors: 0, ..FAULTS };
const ONE_LOOK: Faults = Faults { looks: 1, ..CRASH };
const STRICT: Allowed = Allowed { waits: false, spills: false, passes: false, probes: false, buries: false };
const WAITS: Allowed = Allowed { waits: true, ..STRICT };
const SPILLS: Allowed = Allowed { spills: true, ..STRICT };
const PASSES: Allowed = Allowed { passes: true, ..STRICT };
const PROBES: Allowed = Allowed { probes: true, ..STRICT };
const BURIES: Allowed = Allowed { buries: true, ..STRICT };

/// The default policy: what lapsed is held, and nobody resolves it.
const HOLD: Setting = Setting {
    calls: TWO,
    on_lapse: Lapse::Hold,
    effect: Effect::Plain,
    operator: Operator::Nobody,
    allowed: STRICT,
    clock: Clock::Stands,
    faults: FAULTS,
    wrong: None,
};
/// What lapsed is run again, behind a ledger.
const RETRY: Setting = Setting { on_lapse: Lapse::Retry, effect: Effect::Ledger, ..HOLD };

const fn holds(name: &'static str, what: &'static str, setting: Setting) -> Listed {
    Listed { name, what, expected: Expected::Holds, setting }
}

const fn breaks(name: &'static str, what: &'static str, invariant: Invariant, setting: Setting) -> Listed {
    Listed { name, what, expected: Expected::Breaks(invariant), setting }
}

/// The same, and the store's clock goes on: without it tokens cannot grow across an amnesia.
const GOING_ON: Setting = Setting { clock: Clock::GoesOn, ..RETRY };
const HOLD_WITH_CARE: Setting = Setting { operator: Operator::Careful, ..HOLD };
const IN_OWN_WORDS: Setting = Setting { operator: Operator::InOwnWords, ..HOLD };

/// With somebody who finds out.
const fn resolved(setting: Setting, operator: Operator) -> Setting {
    Setting { operator, faults: Faults { looks: 1, ..setting.faults }, ..setting }
}

/// With a rule broken.
const fn wrong(setting: Setting, wrong: Wrong) -> Setting {
    Setting { wrong: Some(wrong), ..setting }
}

/// With more that may be done.
const fn with(setting: Setting, allowed: Allowed) -> Setting {
    Setting { allowed, ..setting }
}

/// With these faults.
const fn given(setting: Setting, faults: Faults) -> Setting {
    Setting { faults, ..setting }
}

/// With these calls.
const fn by(setting: Setting, calls: &'static [Sent]) -> Setting {
    Setting { calls, ..setting }
}

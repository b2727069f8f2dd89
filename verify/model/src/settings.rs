//! The table of settings. Shipped settings must hold, forbidden settings must break.

mod deep;
mod forbidden;
mod ledger;
mod outbox;
mod shipped;

use std::fmt;

use hapax_core::machine::Lapse;

use crate::check::{CheckResult, CheckedSetting};
use crate::invariant::Invariant;
use crate::setting::{
    AllowedSteps, BrokenRule, EffectKind, FaultBudget, ModelCall, ModelSetting, OperatorKind, StoreClock,
};

/// All settings except the deep ones: the shipped ones, then the forbidden ones.
pub fn settings() -> impl Iterator<Item = &'static NamedSetting> {
    let shipped = shipped::SHIPPED.iter().chain(ledger::SHIPPED).chain(outbox::SHIPPED);
    shipped.chain(forbidden::FORBIDDEN).chain(ledger::FORBIDDEN).chain(outbox::FORBIDDEN)
}

/// The settings with millions of states.
pub fn deep_settings() -> impl Iterator<Item = &'static NamedSetting> {
    deep::DEEP.iter().chain(outbox::DEEP)
}

/// A setting with its name and its expected result.
#[derive(Clone, Copy, Debug)]
pub struct NamedSetting {
    /// The name of the setting.
    pub name: &'static str,
    /// What the setting does.
    pub what: &'static str,
    /// The expected result.
    pub expected: ExpectedResult,
    /// The setting itself.
    pub setting: CheckedSetting,
}

/// The expected result of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedResult {
    /// All invariants hold.
    Holds,
    /// This invariant breaks first.
    Breaks(Invariant),
}

impl NamedSetting {
    /// Compares a result with the expected one.
    ///
    /// # Errors
    /// What was expected instead.
    pub fn as_expected(&self, verdict: &CheckResult) -> Result<(), String> {
        let broken = verdict.broken.as_ref().map(|broken| broken.invariant);
        match self.expected {
            ExpectedResult::Holds if broken.is_none() => Ok(()),
            ExpectedResult::Breaks(invariant) if broken == Some(invariant) => Ok(()),
            ExpectedResult::Holds => Err("all invariants should hold".to_owned()),
            ExpectedResult::Breaks(invariant) => {
                Err(format!("this invariant should break first: {}", invariant.sentence()))
            }
        }
    }
}

/// Prints the short name of the invariant.
impl fmt::Display for ExpectedResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds => f.write_str("holds"),
            Self::Breaks(invariant) => f.write_str(invariant.letter()),
        }
    }
}

const CALL: ModelCall = ModelCall { tenant: 0, payload: 1 };
const TWO: &[ModelCall] = &[CALL; 2];
const THREE: &[ModelCall] = &[CALL; 3];
const TWO_PAYLOADS: &[ModelCall] = &[CALL, ModelCall { tenant: 0, payload: 2 }, CALL];
const TWO_TENANTS: &[ModelCall] = &[CALL, ModelCall { tenant: 1, payload: 1 }];

const NO_FAULTS: FaultBudget =
    FaultBudget { network: 0, crashes: 0, errors: 0, amnesias: 0, failovers: 0, expiries: 0, steps_back: 0, looks: 0 };
/// One fault of each kind that a process and its network can have.
const FAULTS: FaultBudget = FaultBudget { network: 1, crashes: 1, errors: 1, ..NO_FAULTS };
const CRASH: FaultBudget = FaultBudget { network: 0, errors: 0, ..FAULTS };
const ONE_LOOK: FaultBudget = FaultBudget { looks: 1, ..CRASH };
const STRICT: AllowedSteps = AllowedSteps { waits: false, spills: false, passes: false, probes: false, buries: false };
const WAITS: AllowedSteps = AllowedSteps { waits: true, ..STRICT };
const SPILLS: AllowedSteps = AllowedSteps { spills: true, ..STRICT };
const PASSES: AllowedSteps = AllowedSteps { passes: true, ..STRICT };
const PROBES: AllowedSteps = AllowedSteps { probes: true, ..STRICT };
const BURIES: AllowedSteps = AllowedSteps { buries: true, ..STRICT };

/// The default policy: a lapsed attempt is held, and no operator resolves it.
const HOLD: ModelSetting = ModelSetting {
    calls: TWO,
    on_lapse: Lapse::Hold,
    effect: EffectKind::Plain,
    operator: OperatorKind::Nobody,
    allowed: STRICT,
    clock: StoreClock::ModelState,
    faults: FAULTS,
    broken_rule: None,
};
/// A lapsed attempt is retried. A ledger guards the effect.
const RETRY: ModelSetting = ModelSetting { on_lapse: Lapse::Retry, effect: EffectKind::Ledger, ..HOLD };

const fn holds(name: &'static str, what: &'static str, setting: ModelSetting) -> NamedSetting {
    NamedSetting { name, what, expected: ExpectedResult::Holds, setting: CheckedSetting::Protocol(setting) }
}

const fn breaks(name: &'static str, what: &'static str, invariant: Invariant, setting: ModelSetting) -> NamedSetting {
    let expected = ExpectedResult::Breaks(invariant);
    NamedSetting { name, what, expected, setting: CheckedSetting::Protocol(setting) }
}

/// `RETRY` with a running store clock, without which tokens cannot grow across an amnesia.
const GOING_ON: ModelSetting = ModelSetting { clock: StoreClock::GoesOn, ..RETRY };
const HOLD_WITH_CARE: ModelSetting = ModelSetting { operator: OperatorKind::Careful, ..HOLD };
const OWN_ANSWER: ModelSetting = ModelSetting { operator: OperatorKind::OwnAnswer, ..HOLD };

/// Adds an operator.
const fn resolved(setting: ModelSetting, operator: OperatorKind) -> ModelSetting {
    ModelSetting { operator, faults: FaultBudget { looks: 1, ..setting.faults }, ..setting }
}

/// Breaks a rule.
const fn breaking(setting: ModelSetting, rule: BrokenRule) -> ModelSetting {
    ModelSetting { broken_rule: Some(rule), ..setting }
}

/// Allows optional behaviour.
const fn with(setting: ModelSetting, allowed: AllowedSteps) -> ModelSetting {
    ModelSetting { allowed, ..setting }
}

/// Replaces the faults.
const fn given(setting: ModelSetting, faults: FaultBudget) -> ModelSetting {
    ModelSetting { faults, ..setting }
}

/// Replaces the calls.
const fn by(setting: ModelSetting, calls: &'static [ModelCall]) -> ModelSetting {
    ModelSetting { calls, ..setting }
}

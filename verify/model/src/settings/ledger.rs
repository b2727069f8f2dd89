//! Settings in which each step of the ledger's transaction is a step of the model, and the same settings without it.

use super::*;

/// A lapsed attempt is retried, and its handler runs in a transaction of the ledger.
pub(super) const LEDGER: ModelSetting = ModelSetting { effect: EffectKind::Transaction, ..RETRY };
const AMNESIA: ModelSetting =
    ModelSetting { clock: StoreClock::GoesOn, faults: FaultBudget { amnesias: 1, ..FAULTS }, ..LEDGER };
const FAIL_OPEN: ModelSetting = with(LEDGER, PASSES);
const AMNESIA_FAIL_OPEN: ModelSetting = with(given(AMNESIA, FaultBudget { amnesias: 1, errors: 0, ..FAULTS }), PASSES);
/// The store forgets, so that only the ledger compares payloads.
const AMNESIA_PAYLOADS: ModelSetting =
    by(given(AMNESIA, FaultBudget { amnesias: 1, network: 1, ..NO_FAULTS }), TWO_PAYLOADS);

pub(super) const SHIPPED: &[NamedSetting] = &[
    holds("ledger-retry", "a lapsed attempt is retried in a transaction of the ledger", LEDGER),
    holds("ledger-amnesia", "the store forgets everything", AMNESIA),
    holds("ledger-pass", "handlers run while the store is down", FAIL_OPEN),
    holds("ledger-amnesia-pass", "the store forgets everything, and handlers run while it is down", AMNESIA_FAIL_OPEN),
    holds("ledger-payloads", "two payloads, and the store forgets the first one", AMNESIA_PAYLOADS),
    holds("ledger-spill", "completions are spilled and drained later", with(LEDGER, SPILLS)),
    holds(
        "ledger-failover",
        "a lagging replica replaces the store",
        given(AMNESIA, FaultBudget { failovers: 1, crashes: 1, ..NO_FAULTS }),
    ),
    holds(
        "ledger-expiry",
        "a call arrives after its answer expired",
        given(LEDGER, FaultBudget { expiries: 1, errors: 0, ..FAULTS }),
    ),
    holds(
        "ledger-network",
        "two faults of the network",
        given(LEDGER, FaultBudget { network: 2, errors: 0, ..FAULTS }),
    ),
    holds(
        "ledger-3",
        "three attempts, a fault of the network",
        by(given(LEDGER, FaultBudget { network: 1, ..NO_FAULTS }), THREE),
    ),
];

pub(super) const FORBIDDEN: &[NamedSetting] = &[
    breaks("bare-retry", "`ledger-retry` without the ledger", Invariant::OneEffect, without_ledger(LEDGER)),
    breaks("bare-amnesia", "`ledger-amnesia` without the ledger", Invariant::OneEffect, without_ledger(AMNESIA)),
    breaks("bare-pass", "`ledger-pass` without the ledger", Invariant::OneEffect, without_ledger(FAIL_OPEN)),
    breaks(
        "bare-amnesia-pass",
        "`ledger-amnesia-pass` without the ledger",
        Invariant::OneEffect,
        without_ledger(AMNESIA_FAIL_OPEN),
    ),
    breaks(
        "claim-first",
        "the claim commits before the transaction of the effect",
        Invariant::RestIsReachable,
        breaking(LEDGER, BrokenRule::CommitsTheClaimFirst),
    ),
    breaks(
        "effect-outside",
        "the effect happens outside the transaction of the claim",
        Invariant::OneEffect,
        breaking(LEDGER, BrokenRule::ActsOutsideTheTransaction),
    ),
    breaks(
        "claim-unlocked",
        "a claim reads the row but takes no lock",
        Invariant::OneEffect,
        breaking(LEDGER, BrokenRule::ClaimsWithoutLock),
    ),
    breaks(
        "commit-trusted",
        "a COMMIT without a reply counts as committed",
        Invariant::AnswerHasEffect,
        breaking(LEDGER, BrokenRule::TrustsLostCommits),
    ),
    breaks(
        "open-commit-forgotten",
        "a database that is not available after a COMMIT without a reply counts as not applied",
        Invariant::NoReleaseAfterEffect,
        breaking(LEDGER, BrokenRule::ForgetsOpenCommits),
    ),
    breaks(
        "row-for-any-payload",
        "a row of the ledger is replayed to another payload",
        Invariant::AnswerFits,
        breaking(AMNESIA_PAYLOADS, BrokenRule::ReplaysAnyPayload),
    ),
    breaks(
        "busy-is-done",
        "a busy operation counts as done",
        Invariant::AnswerHasEffect,
        breaking(LEDGER, BrokenRule::TakesBusyForDone),
    ),
];

const fn without_ledger(setting: ModelSetting) -> ModelSetting {
    ModelSetting { effect: EffectKind::Plain, ..setting }
}

//! Settings with millions of states.

use super::*;

/// Settings that need minutes and gigabytes of memory. The tests do not run them.
pub(super) const DEEP: &[NamedSetting] = &[
    holds(
        "deep-hold",
        "three attempts, two faults of the network and two errors",
        by(given(HOLD, FaultBudget { network: 2, errors: 2, ..FAULTS }), THREE),
    ),
    holds(
        "deep-resolve",
        "three attempts, a careful operator, and completions are spilled",
        by(with(given(resolved(HOLD, OperatorKind::Careful), FaultBudget { looks: 2, ..FAULTS }), SPILLS), THREE),
    ),
    holds("deep-retry", "three attempts, one fault of each kind; a ledger guards the effect", by(RETRY, THREE)),
    holds(
        "deep-ledger",
        "three attempts in transactions of the ledger, one fault of each kind",
        by(ledger::LEDGER, THREE),
    ),
    holds(
        "deep-bury",
        "three attempts, the last one buries the key; a ledger guards the effect",
        by(
            with(given(resolved(RETRY, OperatorKind::Careful), FaultBudget { network: 0, looks: 1, ..FAULTS }), BURIES),
            THREE,
        ),
    ),
    holds(
        "deep-expiry",
        "three attempts, and records expire; a ledger guards the effect",
        by(given(RETRY, FaultBudget { expiries: 1, network: 0, ..FAULTS }), THREE),
    ),
    holds(
        "deep-payloads",
        "three attempts with two payloads, two faults of the network",
        by(given(HOLD, FaultBudget { network: 2, ..FAULTS }), TWO_PAYLOADS),
    ),
];

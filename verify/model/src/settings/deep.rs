//! Settings with millions of states.

use super::*;

/// For a machine with time and memory to spare: not among the tests.
pub const DEEP: &[Listed] = &[
    holds(
        "deep-hold",
        "three attempts, two faults of the network and two errors",
        by(given(HOLD, Faults { network: 2, errors: 2, ..FAULTS }), THREE),
    ),
    holds(
        "deep-resolve",
        "three attempts, found out with care, and completions are spilled",
        by(with(given(resolved(HOLD, Operator::Careful), Faults { looks: 2, ..FAULTS }), SPILLS), THREE),
    ),
    holds("deep-retry", "three attempts behind a ledger, one fault of each kind", by(RETRY, THREE)),
    holds(
        "deep-bury",
        "three attempts behind a ledger, the last one closes the key",
        by(with(given(resolved(RETRY, Operator::Careful), Faults { network: 0, looks: 1, ..FAULTS }), BURIES), THREE),
    ),
    holds(
        "deep-expiry",
        "three attempts behind a ledger, and records expire",
        by(given(RETRY, Faults { expiries: 1, network: 0, ..FAULTS }), THREE),
    ),
    holds(
        "deep-payloads",
        "three attempts with two payloads, two faults of the network",
        by(given(HOLD, Faults { network: 2, ..FAULTS }), TWO_PAYLOADS),
    ),
];

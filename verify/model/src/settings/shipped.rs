//! The shipped settings, and harmless variants of them. Every invariant holds. Settings with few states come first.

use super::*;

pub(super) const SHIPPED: &[NamedSetting] = &[
    holds("hold", "a lapsed attempt is held", HOLD),
    holds("spill", "completions are spilled and drained later", with(HOLD, SPILLS)),
    holds(
        "late-renewals",
        "renewals go on while a grant is given back",
        breaking(HOLD, BrokenRule::RenewsWhileGivingBack),
    ),
    // The released record outlives every late request, so a late begin still finds it.
    holds(
        "release-alone",
        "an ambiguous begin that was granted is released, but not cancelled",
        breaking(HOLD, BrokenRule::ReleasesWithoutCancelling),
    ),
    holds("operator-answer", "an operator records an answer of their own", given(OWN_ANSWER, ONE_LOOK)),
    holds(
        "expiry-ledger",
        "records expire; a ledger guards the effect",
        given(RETRY, FaultBudget { expiries: 1, ..CRASH }),
    ),
    holds(
        "reopen",
        "the last attempt buries the key, and an operator reopens it; no network fault",
        with(given(resolved(HOLD, OperatorKind::Careful), FaultBudget { network: 0, looks: 1, ..FAULTS }), BURIES),
    ),
    holds(
        "retry-reopen",
        "under Retry, the last attempt buries the key, and an operator reopens it; no network fault",
        with(given(resolved(RETRY, OperatorKind::Careful), FaultBudget { network: 0, looks: 1, ..FAULTS }), BURIES),
    ),
    holds(
        "late-owner",
        "an operator resolves as not done too early, and the late owner heals the record",
        given(ModelSetting { effect: EffectKind::Ledger, operator: OperatorKind::Hasty, ..HOLD }, ONE_LOOK),
    ),
    holds(
        "slow-operator",
        "an operator resolves after a later attempt has begun",
        by(given(HOLD_WITH_CARE, FaultBudget { errors: 1, looks: 1, ..NO_FAULTS }), THREE),
    ),
    holds("clock-back", "the store's clock steps back", given(HOLD, FaultBudget { steps_back: 1, ..FAULTS })),
    holds(
        "failover-ledger",
        "a lagging replica replaces the store; a ledger guards the effect",
        given(GOING_ON, FaultBudget { failovers: 1, ..CRASH }),
    ),
    holds(
        "amnesia-ledger",
        "the store forgets everything; a ledger guards the effect",
        given(GOING_ON, FaultBudget { amnesias: 1, ..CRASH }),
    ),
    // Two takeovers that read the same record in the same microsecond mint the same token. Only one of them is written,
    // unless a failover undoes it. A completion then counts by its fingerprint, as under another token.
    holds(
        "same-token",
        "a failover gives two attempts the same token; a ledger guards the effect",
        by(given(GOING_ON, FaultBudget { failovers: 1, ..NO_FAULTS }), THREE),
    ),
    holds("retry", "a lapsed attempt is retried; a ledger guards the effect", RETRY),
    holds("tenants", "two tenants use the same key, and replies are mixed up", by(HOLD, TWO_TENANTS)),
    holds("payloads", "the same key with two payloads", by(HOLD, TWO_PAYLOADS)),
    holds("pass", "handlers run while the store is down; a ledger guards the effect", with(RETRY, PASSES)),
    holds(
        "probe",
        "a lapsed attempt is held, and an attempt that finds the record indeterminate calls a probe",
        with(HOLD, PROBES),
    ),
    holds("hold-network", "two faults of the network", given(HOLD, FaultBudget { network: 2, ..FAULTS })),
    holds("retry-clock-back", "the store's clock steps back", given(RETRY, FaultBudget { steps_back: 1, ..FAULTS })),
    holds(
        "resolve",
        "a lapsed attempt is held, and a careful operator resolves it",
        with(resolved(HOLD, OperatorKind::Careful), WAITS),
    ),
    holds(
        "resolve-spill",
        "a careful operator resolves held attempts, and completions are spilled",
        with(resolved(HOLD, OperatorKind::Careful), SPILLS),
    ),
    holds(
        "resolve-3",
        "three attempts; a careful operator resolves the held ones",
        by(
            with(given(resolved(HOLD, OperatorKind::Careful), FaultBudget { looks: 2, network: 0, ..FAULTS }), STRICT),
            THREE,
        ),
    ),
    holds(
        "bury",
        "the last attempt buries the key, and an operator reopens it; with a network fault",
        with(resolved(HOLD, OperatorKind::Careful), BURIES),
    ),
    holds(
        "retry-amnesia",
        "the store forgets everything; a ledger guards the effect",
        given(GOING_ON, FaultBudget { amnesias: 1, ..FAULTS }),
    ),
    holds(
        "retry-failover",
        "a lagging replica replaces the store; a ledger guards the effect",
        given(GOING_ON, FaultBudget { failovers: 1, crashes: 0, ..FAULTS }),
    ),
    holds(
        "hasty-ledger",
        "an operator resolves as not done too early; a ledger guards the effect",
        with(resolved(ModelSetting { effect: EffectKind::Ledger, ..HOLD }, OperatorKind::Hasty), WAITS),
    ),
    holds(
        "retry-expiry",
        "records expire, and completions are spilled; a ledger guards the effect",
        with(given(RETRY, FaultBudget { expiries: 1, ..FAULTS }), SPILLS),
    ),
    holds(
        "probe-3",
        "three attempts; an attempt that finds the record indeterminate calls a probe",
        by(with(given(HOLD, FaultBudget { network: 0, ..FAULTS }), PROBES), THREE),
    ),
    holds("hold-3", "three attempts", by(HOLD, THREE)),
    holds(
        "retry-3",
        "three attempts; a process crashes and one error occurs; a ledger guards the effect",
        by(given(RETRY, FaultBudget { network: 0, ..FAULTS }), THREE),
    ),
    holds("retry-network", "two faults of the network", given(RETRY, FaultBudget { network: 2, ..FAULTS })),
    holds(
        "retry-bury",
        "under Retry, the last attempt buries the key, and an operator reopens it; no crash",
        with(given(resolved(RETRY, OperatorKind::Careful), FaultBudget { crashes: 0, looks: 1, ..FAULTS }), BURIES),
    ),
    holds(
        "retry-3-network",
        "three attempts, a fault of the network",
        by(given(RETRY, FaultBudget { crashes: 0, errors: 0, ..FAULTS }), THREE),
    ),
];

//! What is shipped, and harmless departures from it: everything holds. What has the fewest states comes first.

use super::*;

/// What must hold.
pub(super) const SHIPPED: &[Listed] = &[
    holds("hold", "what lapsed is held", HOLD),
    holds("spill", "completions are spilled and drained late", with(HOLD, SPILLS)),
    holds("late-renewals", "renewals go on while a grant is given back", wrong(HOLD, Wrong::RenewsWhileGivingBack)),
    // What was released stands in the way of a begin that comes late, for longer than that can take.
    holds(
        "release-alone",
        "an ambiguous begin that was granted all the same is released, but not cancelled",
        wrong(HOLD, Wrong::ReleasesWithoutCancelling),
    ),
    holds("own-words", "an operator tells the answer in words of their own", given(IN_OWN_WORDS, ONE_LOOK)),
    holds("expiry-ledger", "records expire, behind a ledger", given(RETRY, Faults { expiries: 1, ..CRASH })),
    holds(
        "reopen",
        "the last attempt closes the key, and it is reopened",
        with(given(resolved(HOLD, Operator::Careful), Faults { network: 0, looks: 1, ..FAULTS }), BURIES),
    ),
    holds(
        "retry-reopen",
        "the last attempt closes the key where what lapsed runs again",
        with(given(resolved(RETRY, Operator::Careful), Faults { network: 0, looks: 1, ..FAULTS }), BURIES),
    ),
    holds(
        "late-owner",
        "an operator says too early that nothing happened, and the owner who knows better heals it",
        given(Setting { effect: Effect::Ledger, operator: Operator::Hasty, ..HOLD }, ONE_LOOK),
    ),
    holds(
        "slow-operator",
        "an operator tells what was found when a later attempt has come",
        by(given(HOLD_WITH_CARE, Faults { errors: 1, looks: 1, ..NO_FAULTS }), THREE),
    ),
    holds("clock-back", "the store's clock steps back", given(HOLD, Faults { steps_back: 1, ..FAULTS })),
    holds(
        "failover-ledger",
        "a replica that lags behind takes over, behind a ledger",
        given(GOING_ON, Faults { failovers: 1, ..CRASH }),
    ),
    holds(
        "amnesia-ledger",
        "the store forgets everything, behind a ledger",
        given(GOING_ON, Faults { amnesias: 1, ..CRASH }),
    ),
    holds("retry", "what lapsed runs again, behind a ledger", RETRY),
    holds("tenants", "two tenants use the same key, and replies are mixed up", by(HOLD, TWO_TENANTS)),
    holds("payloads", "the same key with two payloads", by(HOLD, TWO_PAYLOADS)),
    holds("pass", "the store is down and the ledger stands in for it", with(RETRY, PASSES)),
    holds("probe", "what lapsed is held, and each attempt asks a probe", with(HOLD, PROBES)),
    holds("hold-network", "two faults of the network", given(HOLD, Faults { network: 2, ..FAULTS })),
    holds("retry-clock-back", "the store's clock steps back", given(RETRY, Faults { steps_back: 1, ..FAULTS })),
    holds("resolve", "what lapsed is held, and found out with care", with(resolved(HOLD, Operator::Careful), WAITS)),
    holds("resolve-spill", "likewise, and completions are spilled", with(resolved(HOLD, Operator::Careful), SPILLS)),
    holds(
        "resolve-3",
        "likewise, three attempts",
        by(with(given(resolved(HOLD, Operator::Careful), Faults { looks: 2, network: 0, ..FAULTS }), STRICT), THREE),
    ),
    holds(
        "bury",
        "the last attempt closes the key, and it is reopened",
        with(resolved(HOLD, Operator::Careful), BURIES),
    ),
    holds(
        "retry-amnesia",
        "the store forgets everything, behind a ledger",
        given(GOING_ON, Faults { amnesias: 1, ..FAULTS }),
    ),
    holds(
        "retry-failover",
        "a replica that lags behind takes over, behind a ledger",
        given(GOING_ON, Faults { failovers: 1, crashes: 0, ..FAULTS }),
    ),
    holds(
        "ledger-hasty",
        "an operator says too early that nothing happened, behind a ledger",
        with(resolved(Setting { effect: Effect::Ledger, ..HOLD }, Operator::Hasty), WAITS),
    ),
    holds(
        "retry-expiry",
        "records expire, behind a ledger; completions are spilled",
        with(given(RETRY, Faults { expiries: 1, ..FAULTS }), SPILLS),
    ),
    holds("probe-3", "likewise, three attempts", by(with(given(HOLD, Faults { network: 0, ..FAULTS }), PROBES), THREE)),
    holds("hold-3", "three attempts", by(HOLD, THREE)),
    holds("retry-3", "three attempts, a process dies", by(given(RETRY, Faults { network: 0, ..FAULTS }), THREE)),
    holds("retry-network", "two faults of the network", given(RETRY, Faults { network: 2, ..FAULTS })),
    holds(
        "retry-bury",
        "the last attempt closes the key, and it is reopened",
        with(given(resolved(RETRY, Operator::Careful), Faults { crashes: 0, looks: 1, ..FAULTS }), BURIES),
    ),
    holds(
        "retry-3-network",
        "three attempts, a fault of the network",
        by(given(RETRY, Faults { crashes: 0, errors: 0, ..FAULTS }), THREE),
    ),
];

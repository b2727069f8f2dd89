//! The forbidden settings. Each breaks the expected invariant.

use super::*;

pub(super) const FORBIDDEN: &[NamedSetting] = &[
    breaks(
        "fence",
        "a fencing token instead of a ledger",
        Invariant::OneEffect,
        ModelSetting { effect: EffectKind::Fence, ..RETRY },
    ),
    breaks(
        "minted-ids",
        "a ledger under ids that each attempt mints",
        Invariant::OneEffect,
        ModelSetting { effect: EffectKind::MintedIds, ..RETRY },
    ),
    breaks(
        "release-on-unknown",
        "an unknown outcome releases the key",
        Invariant::NoReleaseAfterEffect,
        breaking(HOLD, BrokenRule::ReleasesOnUnknown),
    ),
    breaks(
        "reply-first",
        "the caller gets the answer before it is recorded",
        Invariant::AnswerIsKept,
        breaking(HOLD, BrokenRule::RepliesBeforeRecording),
    ),
    breaks(
        "lease-is-life",
        "a record lives as long as its lease",
        Invariant::OneEffect,
        breaking(given(HOLD, FaultBudget { network: 0, ..FAULTS }), BrokenRule::LivesAsLongAsItsLease),
    ),
    breaks("no-lease", "a lease never expires", Invariant::RestIsReachable, breaking(HOLD, BrokenRule::HasNoLease)),
    breaks(
        "pass-plain",
        "handlers run while the store is down, without a ledger",
        Invariant::OneEffect,
        with(HOLD, PASSES),
    ),
    breaks(
        "no-cancel",
        "an ambiguous begin is not cancelled",
        Invariant::NothingHeldForNobody,
        breaking(HOLD, BrokenRule::NeverCancels),
    ),
    breaks(
        "one-cancel",
        "an ambiguous begin is cancelled only once",
        Invariant::NothingHeldForNobody,
        breaking(given(HOLD, FaultBudget { network: 2, ..FAULTS }), BrokenRule::CancelsOnce),
    ),
    breaks(
        "early-cancel",
        "an ambiguous begin is cancelled the second time while its swap is in transit",
        Invariant::NothingHeldForNobody,
        breaking(given(HOLD, FaultBudget { network: 2, ..FAULTS }), BrokenRule::CancelsWhileSwapsAreUnderWay),
    ),
    breaks(
        "mark-by-begin",
        "the store forgets the tokens of takeovers with their records",
        Invariant::TokensGrow,
        breaking(given(RETRY, FaultBudget { expiries: 1, ..FAULTS }), BrokenRule::MarksByBeginAlone),
    ),
    breaks(
        "one-step-begin",
        "the store carries out a begin in one step, also where a record exists",
        Invariant::NoGrantAfterTheEnd,
        breaking(RETRY, BrokenRule::BeginsInOneStep),
    ),
    breaks(
        "blind-hold",
        "a hold overwrites the record without comparing it",
        Invariant::OnlyTheLapsed,
        breaking(HOLD, BrokenRule::HoldsBlindly),
    ),
    breaks(
        "lost-spill",
        "a spilled completion is lost with its process",
        Invariant::AnswerIsKept,
        breaking(with(HOLD, SPILLS), BrokenRule::ForgetsWhatItSpilled),
    ),
    breaks(
        "own-answer",
        "an attempt that lost gives its own answer to its caller",
        Invariant::AnswerIsKept,
        breaking(with(resolved(HOLD, OperatorKind::OwnAnswer), WAITS), BrokenRule::ReturnsOwnAnswerWhenLost),
    ),
    breaks(
        "mixed-replies",
        "an attempt trusts a reply for another key",
        Invariant::AnswerFits,
        breaking(by(HOLD, TWO_TENANTS), BrokenRule::TakesRepliesOfOtherKeys),
    ),
    breaks(
        "amnesia",
        "the store forgets everything, without a ledger",
        Invariant::OneEffect,
        given(ModelSetting { clock: StoreClock::GoesOn, ..HOLD }, FaultBudget { amnesias: 1, ..FAULTS }),
    ),
    breaks(
        "failover",
        "a lagging replica replaces the store, without a ledger",
        Invariant::OneEffect,
        given(ModelSetting { clock: StoreClock::GoesOn, ..HOLD }, FaultBudget { failovers: 1, ..FAULTS }),
    ),
    breaks(
        "expiry",
        "a call arrives after its answer expired, without a ledger",
        Invariant::OneEffect,
        given(HOLD, FaultBudget { expiries: 1, ..FAULTS }),
    ),
    breaks(
        "amnesia-clock",
        "the store forgets everything and its clock stands",
        Invariant::TokensGrow,
        given(RETRY, FaultBudget { amnesias: 1, ..FAULTS }),
    ),
    breaks(
        "hasty",
        "an operator resolves as not done too early, without a ledger",
        Invariant::OneEffect,
        with(resolved(HOLD, OperatorKind::Hasty), WAITS),
    ),
    breaks(
        "operator-answer-spill",
        "an operator records another answer while the completion is in a journal",
        Invariant::AnswerIsKept,
        with(resolved(HOLD, OperatorKind::OwnAnswer), SPILLS),
    ),
];

//! What must not be done: each breaks by what it is named for.

use super::*;

/// What must break.
pub(super) const FORBIDDEN: &[Listed] = &[
    breaks(
        "plain-retry",
        "what lapsed runs again without a ledger",
        Invariant::OneEffect,
        Setting { effect: Effect::Plain, ..RETRY },
    ),
    breaks(
        "fence",
        "a fencing token in place of a ledger",
        Invariant::OneEffect,
        Setting { effect: Effect::Fence, ..RETRY },
    ),
    breaks(
        "minted-ids",
        "a ledger under ids that each attempt mints",
        Invariant::OneEffect,
        Setting { effect: Effect::MintedIds, ..RETRY },
    ),
    breaks(
        "release-on-unknown",
        "an unknown outcome gives the key back",
        Invariant::NoReleaseAfterEffect,
        wrong(HOLD, Wrong::ReleasesOnUnknown),
    ),
    breaks(
        "reply-first",
        "the answer is given before it is recorded",
        Invariant::AnswerIsKept,
        wrong(HOLD, Wrong::RepliesBeforeRecording),
    ),
    breaks(
        "lease-is-life",
        "a record lives as long as its lease",
        Invariant::OneEffect,
        wrong(given(HOLD, Faults { network: 0, ..FAULTS }), Wrong::LivesAsLongAsItsLease),
    ),
    breaks("no-lease", "a grant is believed for ever", Invariant::RestIsReachable, wrong(HOLD, Wrong::HasNoLease)),
    breaks("pass-plain", "the store is down and nothing stands in for it", Invariant::OneEffect, with(HOLD, PASSES)),
    breaks(
        "no-cancel",
        "an ambiguous begin is not cancelled",
        Invariant::NothingHeldForNobody,
        wrong(HOLD, Wrong::NeverCancels),
    ),
    breaks(
        "one-cancel",
        "it is cancelled once",
        Invariant::NothingHeldForNobody,
        wrong(given(HOLD, Faults { network: 2, ..FAULTS }), Wrong::CancelsOnce),
    ),
    breaks(
        "early-cancel",
        "it is cancelled the second time while its swap is under way",
        Invariant::NothingHeldForNobody,
        wrong(given(HOLD, Faults { network: 2, ..FAULTS }), Wrong::CancelsWhileSwapsAreUnderWay),
    ),
    breaks(
        "mark-by-begin",
        "the tokens of takeovers are forgotten with their records",
        Invariant::TokensGrow,
        wrong(given(RETRY, Faults { expiries: 1, ..FAULTS }), Wrong::MarksByBeginAlone),
    ),
    breaks(
        "blind-hold",
        "a hold is written over whatever stands there by then",
        Invariant::OnlyTheLapsed,
        wrong(HOLD, Wrong::HoldsBlindly),
    ),
    breaks(
        "lost-spill",
        "what is spilled dies with its process",
        Invariant::AnswerIsKept,
        wrong(with(HOLD, SPILLS), Wrong::ForgetsWhatItSpilled),
    ),
    breaks(
        "own-answer",
        "an attempt that lost gives its own answer all the same",
        Invariant::AnswerIsKept,
        wrong(with(resolved(HOLD, Operator::InOwnWords), WAITS), Wrong::AnswersForItselfWhenLost),
    ),
    breaks(
        "mixed-replies",
        "a reply for another key is believed",
        Invariant::AnswerFits,
        wrong(by(HOLD, TWO_TENANTS), Wrong::TakesRepliesOfOtherKeys),
    ),
    breaks(
        "amnesia",
        "the store forgets everything, without a ledger",
        Invariant::OneEffect,
        given(Setting { clock: Clock::GoesOn, ..HOLD }, Faults { amnesias: 1, ..FAULTS }),
    ),
    breaks(
        "failover",
        "a replica that lags behind takes over, without a ledger",
        Invariant::OneEffect,
        given(Setting { clock: Clock::GoesOn, ..HOLD }, Faults { failovers: 1, ..FAULTS }),
    ),
    // Takeovers that look at the same record in the same microsecond mint the same token. Only one of them is written, unless a
    // failover undoes it; then a completion is taken for that of another owner's grant.
    breaks(
        "same-token",
        "a failover lets two attempts hold the same token",
        Invariant::KnownEffectCounts,
        by(given(GOING_ON, Faults { failovers: 1, ..NO_FAULTS }), THREE),
    ),
    breaks(
        "expiry",
        "a call comes after its answer expired, without a ledger",
        Invariant::OneEffect,
        given(HOLD, Faults { expiries: 1, ..FAULTS }),
    ),
    breaks(
        "amnesia-clock",
        "the store forgets everything and its clock does not go on",
        Invariant::TokensGrow,
        given(RETRY, Faults { amnesias: 1, ..FAULTS }),
    ),
    breaks(
        "hasty",
        "an operator says too early that nothing happened, without a ledger",
        Invariant::OneEffect,
        with(resolved(HOLD, Operator::Hasty), WAITS),
    ),
    breaks(
        "own-words-spill",
        "an operator tells the answer in words of their own while it lies in a journal",
        Invariant::AnswerIsKept,
        with(resolved(HOLD, Operator::InOwnWords), SPILLS),
    ),
];

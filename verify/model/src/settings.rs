//! The table of settings: what is shipped must hold, and what must not be done must break.

use std::fmt;

use hapax_core::machine::Lapse;

use crate::check::Verdict;
use crate::invariant::Invariant;
use crate::setting::{Allowed, Clock, Effect, Faults, Operator, Sent, Setting, Wrong};

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
const IN_OWN_WORDS: Setting = Setting { operator: Operator::InOwnWords, ..HOLD };

/// The same with somebody who finds out.
const fn resolved(setting: Setting, operator: Operator) -> Setting {
    Setting { operator, faults: Faults { looks: 1, ..setting.faults }, ..setting }
}

const fn wrong(setting: Setting, wrong: Wrong) -> Setting {
    Setting { wrong: Some(wrong), ..setting }
}

const fn with(setting: Setting, allowed: Allowed) -> Setting {
    Setting { allowed, ..setting }
}

const fn given(setting: Setting, faults: Faults) -> Setting {
    Setting { faults, ..setting }
}

const fn by(setting: Setting, calls: &'static [Sent]) -> Setting {
    Setting { calls, ..setting }
}

/// Every setting: what is shipped first, and of that what has the fewest states first.
pub const SETTINGS: &[Listed] = &[
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
    holds("expiry-ledger", "records expire, before a ledger", given(RETRY, Faults { expiries: 1, ..CRASH })),
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
    holds("clock-back", "the store's clock steps back", given(HOLD, Faults { steps_back: 1, ..FAULTS })),
    holds(
        "failover-ledger",
        "a replica that lags behind takes over, before a ledger",
        given(GOING_ON, Faults { failovers: 1, ..CRASH }),
    ),
    holds(
        "amnesia-ledger",
        "the store forgets everything, before a ledger",
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
        "an operator says too early that nothing happened, before a ledger",
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
        with(resolved(RETRY, Operator::Careful), BURIES),
    ),
    holds(
        "retry-3-network",
        "three attempts, a fault of the network",
        by(given(RETRY, Faults { crashes: 0, errors: 0, ..FAULTS }), THREE),
    ),
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

/// Settings with millions of states, for a machine with time and memory to spare: not among the tests.
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

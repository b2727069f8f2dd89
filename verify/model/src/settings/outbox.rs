//! Settings of the outbox and its relays.

use crate::check::CheckedSetting;
use crate::invariant::Invariant;
use crate::outbox::{HorizonKind, OutboxFaults, OutboxRule, OutboxSetting};
use crate::settings::{ExpectedResult, NamedSetting};

const NO_FAULTS: OutboxFaults =
    OutboxFaults { network: 0, crashes: 0, lapses: 0, moves: 0, refusals: 0, resumes: 0, drops: 0, losses: 0 };

/// Two transactions of one key, one relay, and a broker that recognizes no id.
const TWO_ROWS: OutboxSetting = OutboxSetting {
    keys: &[0, 0],
    relays: 1,
    horizon: HorizonKind::Known,
    window: false,
    inbox: true,
    faults: NO_FAULTS,
    broken_rule: None,
};

const ONE_ROW: OutboxSetting = OutboxSetting { keys: &[0], ..TWO_ROWS };
const TWO_KEYS: OutboxSetting = OutboxSetting { keys: &[0, 1], ..TWO_ROWS };
/// A slow transaction of one key beside two of another one.
const THREE_ROWS: OutboxSetting = OutboxSetting { keys: &[0, 1, 0], ..TWO_ROWS };
const NETWORK: OutboxSetting = given(TWO_ROWS, OutboxFaults { network: 2, ..NO_FAULTS });
const ZOMBIE: OutboxFaults = OutboxFaults { lapses: 1, ..NO_FAULTS };
const CRASH: OutboxFaults = OutboxFaults { crashes: 1, ..NO_FAULTS };
const PARKING: OutboxSetting = given(TWO_ROWS, OutboxFaults { refusals: 1, resumes: 1, network: 1, ..NO_FAULTS });
/// Two relays send a row, and the broker refuses it to one of them.
const DROPPING: OutboxFaults = OutboxFaults { refusals: 1, drops: 1, resumes: 1, lapses: 1, ..NO_FAULTS };
const LOSS: OutboxSetting = given(TWO_KEYS, OutboxFaults { losses: 1, ..NO_FAULTS });

pub(super) const SHIPPED: &[NamedSetting] = &[
    holds("relay-network", "two faults of the network between a relay and its broker or its database", NETWORK),
    holds("relay-window", "the same with a broker that recognizes ids", OutboxSetting { window: true, ..NETWORK }),
    holds("relay-slow", "a slow transaction, and a relay that always knows which rows are decided", THREE_ROWS),
    holds("relay-horizon", "a slow transaction, and a relay that reads the horizon in steps", in_steps(TWO_KEYS)),
    holds("relay-crash", "a relay dies, and another one takes the bucket", two_relays(TWO_ROWS, CRASH)),
    holds("relay-zombie", "the lease of a relay ends, and it publishes on", two_relays(TWO_ROWS, ZOMBIE)),
    holds(
        "relay-zombie-network",
        "the same with a fault of the network",
        two_relays(TWO_ROWS, OutboxFaults { network: 1, ..ZOMBIE }),
    ),
    holds("relay-move", "the bucket moves", two_relays(TWO_ROWS, OutboxFaults { moves: 2, ..NO_FAULTS })),
    holds("relay-park", "the broker refuses a row, and an operator resumes its key", PARKING),
    holds("relay-drop", "two relays, a refused row, and an operator who drops it", two_relays(ONE_ROW, DROPPING)),
    holds("relay-loss", "the broker loses events, and an operator republishes", LOSS),
];

pub(super) const FORBIDDEN: &[NamedSetting] = &[
    breaks("relay-cursor", "the cursor is the truth", Invariant::EventsArrive, TWO_KEYS, OutboxRule::CursorIsTheTruth),
    breaks(
        "relay-cursor-ahead",
        "the cursor passes a row that is not decided, and comes back later",
        Invariant::EventsInOrder,
        THREE_ROWS,
        OutboxRule::CursorRunsAhead,
    ),
    breaks(
        "relay-id-before-xid",
        "a transaction draws its row id before it counts as running",
        Invariant::EventsArrive,
        in_steps(TWO_KEYS),
        OutboxRule::IdBeforeXid,
    ),
    breaks(
        "relay-stamp-before-drawn",
        "the horizon is read in the wrong order",
        Invariant::EventsArrive,
        in_steps(TWO_KEYS),
        OutboxRule::StampBeforeDrawn,
    ),
    breaks(
        "relay-uncommitted",
        "an event is published inside its transaction",
        Invariant::NoGhostEvent,
        TWO_ROWS,
        OutboxRule::ReadsUncommitted,
    ),
    breaks(
        "relay-mark-first",
        "a row is marked when its publication starts, and the relay dies",
        Invariant::EventsArrive,
        two_relays(ONE_ROW, CRASH),
        OutboxRule::MarksFirst,
    ),
    breaks(
        "relay-mark-first-order",
        "the same with a second row of the key",
        Invariant::EventsInOrder,
        two_relays(TWO_ROWS, CRASH),
        OutboxRule::MarksFirst,
    ),
    breaks("relay-skip", "a refused row is skipped", Invariant::EventsInOrder, PARKING, OutboxRule::SkipsRefused),
    breaks(
        "relay-per-row",
        "two rows of one key are published at once",
        Invariant::EventsInOrder,
        TWO_ROWS,
        OutboxRule::ClaimsPerRow,
    ),
    breaks("relay-minted", "each publication has its own id", Invariant::SameEventId, NETWORK, OutboxRule::MintsIds),
    breaks(
        "relay-mark-any",
        "a mark changes a row that is set aside or dropped",
        Invariant::OnlyOpenRowsAreMarked,
        two_relays(ONE_ROW, DROPPING),
        OutboxRule::MarksAnyState,
    ),
    breaks(
        "relay-aside-any",
        "a row is set aside after its key was resumed",
        Invariant::EventsArrive,
        PARKING,
        OutboxRule::SetsAsideAnyKey,
    ),
    breaks(
        "relay-no-rewind",
        "a relay does not read again what an operator has opened",
        Invariant::EventsArrive,
        PARKING,
        OutboxRule::IgnoresRewinds,
    ),
    breaks(
        "relay-sweep-early",
        "published rows are removed while the broker may lose them",
        Invariant::EventsArrive,
        LOSS,
        OutboxRule::SweepsEarly,
    ),
    breaks(
        "relay-mark-late",
        "a mark counts although an operator republishes what the broker lost",
        Invariant::EventsArrive,
        LOSS,
        OutboxRule::MarksIgnoreRepublications,
    ),
    NamedSetting {
        name: "relay-no-inbox",
        what: "the consumer has no inbox, and the broker recognizes ids for a while",
        expected: ExpectedResult::Breaks(Invariant::OneEffectOfEvent),
        setting: CheckedSetting::Outbox(OutboxSetting { inbox: false, window: true, ..NETWORK }),
    },
];

/// Settings with millions of states.
pub(super) const DEEP: &[NamedSetting] = &[
    holds("deep-relay-horizon", "a slow transaction, three rows, and the horizon in steps", in_steps(THREE_ROWS)),
    holds(
        "deep-relay-zombies",
        "two leases end, a fault of the network, and a broker that recognizes ids",
        two_relays(OutboxSetting { window: true, ..TWO_ROWS }, OutboxFaults { network: 1, lapses: 2, ..ZOMBIE }),
    ),
    holds("deep-relay-drop", "two rows, two relays, a refused row, and an operator", two_relays(TWO_ROWS, DROPPING)),
    holds(
        "deep-relay-loss",
        "the broker loses events, and a fault of the network",
        given(TWO_ROWS, OutboxFaults { network: 1, ..LOSS.faults }),
    ),
];

const fn given(setting: OutboxSetting, faults: OutboxFaults) -> OutboxSetting {
    OutboxSetting { faults, ..setting }
}

const fn in_steps(setting: OutboxSetting) -> OutboxSetting {
    OutboxSetting { horizon: HorizonKind::InSteps, ..setting }
}

const fn two_relays(setting: OutboxSetting, faults: OutboxFaults) -> OutboxSetting {
    OutboxSetting { relays: 2, faults, ..setting }
}

const fn holds(name: &'static str, what: &'static str, setting: OutboxSetting) -> NamedSetting {
    NamedSetting { name, what, expected: ExpectedResult::Holds, setting: CheckedSetting::Outbox(setting) }
}

const fn breaks(
    name: &'static str,
    what: &'static str,
    invariant: Invariant,
    setting: OutboxSetting,
    rule: OutboxRule,
) -> NamedSetting {
    let setting = OutboxSetting { broken_rule: Some(rule), ..setting };
    NamedSetting { name, what, expected: ExpectedResult::Breaks(invariant), setting: CheckedSetting::Outbox(setting) }
}

//! A state of the outbox, its relays, the broker and the consumer.

use hapax_core::outbox::RowState;
use hapax_core::relay::DecidedRows;

use crate::invariant::Invariant;
use crate::outbox::setting::{OutboxFaults, OutboxSpace};

/// The largest number of rows. A row has the number of its transaction.
pub(crate) const ROWS: usize = 3;
pub(crate) const KEYS: usize = 2;
pub(crate) const RELAYS: usize = 2;

/// The holder of a claim whose process is gone.
pub(crate) const NOBODY: usize = RELAYS;

/// A set of rows or keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct NumberSet(u8);

impl NumberSet {
    pub(crate) fn has(self, number: usize) -> bool {
        self.0 & (1 << number) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn insert(&mut self, number: usize) {
        self.0 |= 1 << number;
    }

    pub(crate) fn remove(&mut self, number: usize) {
        self.0 &= !(1 << number);
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

impl FromIterator<usize> for NumberSet {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut set = Self::default();
        numbers.into_iter().for_each(|number| set.insert(number));
        set
    }
}

/// How many republications the relay of a row knew when it started the row; 0 where no mark of the row is to come.
pub(crate) type Republications = [u8; ROWS];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EventWorld {
    pub(crate) transactions: [ModelTransaction; ROWS],
    /// How many transactions have begun, and how many row ids are drawn.
    pub(crate) begun: u8,
    pub(crate) drawn: u8,
    /// The committed rows. None before the commit, and after the row was removed.
    pub(crate) rows: [Option<RowState>; ROWS],
    pub(crate) parked: [Option<ModelParking>; KEYS],
    pub(crate) rewinds: u8,
    /// How many republications have begun, and the rows that the last one has yet to open.
    pub(crate) republications: u8,
    pub(crate) reopening: NumberSet,
    pub(crate) claim: BucketClaim,
    pub(crate) relays: [ModelRelay; RELAYS],
    /// Publications and marks that arrive late or never.
    pub(crate) late_publications: NumberSet,
    pub(crate) late_marks: NumberSet,
    pub(crate) late_under: Republications,
    pub(crate) broker: ModelBroker,
    /// The first invariant that a step has broken.
    pub(crate) broken: Option<Invariant>,
    pub(crate) faults_left: OutboxFaults,
}

/// A transaction that writes one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelTransaction {
    /// Its place among all that began; 0 before that.
    pub(crate) stamp: u8,
    /// The id of its row; 0 before it is drawn.
    pub(crate) id: u8,
    /// Whether it was committed; None while it runs.
    pub(crate) committed: Option<bool>,
}

impl ModelTransaction {
    pub(crate) fn is_committed(self) -> bool {
        self.committed == Some(true)
    }
}

/// A parked key: the row that was refused, and whether an operator has begun to resume the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelParking {
    pub(crate) row: u8,
    pub(crate) is_being_resumed: bool,
}

/// Who may publish the rows of the bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct BucketClaim {
    pub(crate) holder: Option<usize>,
    pub(crate) has_lapsed: bool,
    /// Relay 1 comes first, so that two worlds that differ only in the names of the relays are one.
    pub(crate) was_claimed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelRelay {
    /// It takes the bucket for its own.
    pub(crate) holds: bool,
    pub(crate) decided: DecidedRows,
    pub(crate) cursor: u8,
    pub(crate) reading: ReadPhase,
    /// The rewinds that the last read saw.
    pub(crate) rewinds: Option<u8>,
    /// The republications that the last read saw, and those that it had seen when each row was started.
    pub(crate) republications: u8,
    pub(crate) under: Republications,
    pub(crate) held: [HeldPhase; ROWS],
    /// Rows in flight that were started while the bucket was held before.
    pub(crate) strays: NumberSet,
    pub(crate) unmarked: NumberSet,
    /// The rows of the mark that is under way.
    pub(crate) marking: NumberSet,
    pub(crate) just_marked: NumberSet,
    /// Keys that this relay has parked, rows whose key it has yet to park in the database, and rows to set aside.
    pub(crate) parked: NumberSet,
    pub(crate) refused: NumberSet,
    pub(crate) aside: NumberSet,
}

impl ModelRelay {
    /// Forgets the bucket. What was started goes on.
    pub(crate) fn drop_bucket(&mut self) {
        for row in 0..ROWS {
            if self.held[row] == HeldPhase::InFlight {
                self.strays.insert(row);
            }
        }
        self.holds = false;
        self.held = Default::default();
        self.cursor = 0;
        (self.just_marked, self.parked) = Default::default();
    }

    pub(crate) fn is_in_flight(&self, row: usize) -> bool {
        self.held[row] == HeldPhase::InFlight || self.strays.has(row)
    }

    /// Notes what the relay knows when it starts a row. A mark of an earlier publication may be to come.
    pub(crate) fn note_start(&mut self, row: usize) {
        let has_mark = self.strays.has(row) || self.unmarked.has(row) || self.marking.has(row);
        self.under[row] = if has_mark { self.under[row].min(self.republications) } else { self.republications };
    }

    /// Forgets it where no mark is to come.
    pub(crate) fn forget_starts(&mut self) {
        for row in 0..ROWS {
            if !self.is_in_flight(row) && !self.unmarked.has(row) && !self.marking.has(row) {
                self.under[row] = 0;
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum HeldPhase {
    #[default]
    NotHeld,
    Waiting,
    InFlight,
    Published,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum ReadPhase {
    #[default]
    Idle,
    /// The first half of the horizon: how many ids are drawn, or, in the wrong order, which transactions run.
    Drawn(u8),
    Stamped(u8, u8),
    /// The reply to a read is on its way.
    Seen(OutboxSnapshot),
}

/// What a read saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OutboxSnapshot {
    pub(crate) after: u8,
    pub(crate) decided: u8,
    pub(crate) open: NumberSet,
    pub(crate) parked: NumberSet,
    pub(crate) rewinds: u8,
    pub(crate) republications: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelBroker {
    /// Rows whose event has arrived at least once.
    pub(crate) arrived: NumberSet,
    /// The ids that it recognizes.
    pub(crate) known: NumberSet,
    /// The number of copies that the consumer has yet to read.
    pub(crate) unread: [u8; ROWS],
    /// The number of effects of each event.
    pub(crate) effects: [u8; ROWS],
    /// Events that it can no longer lose.
    pub(crate) kept: NumberSet,
    pub(crate) has_lost: bool,
}

impl EventWorld {
    pub(crate) fn new(space: &OutboxSpace) -> Self {
        Self {
            transactions: Default::default(),
            begun: 0,
            drawn: 0,
            rows: Default::default(),
            parked: Default::default(),
            rewinds: 0,
            republications: 0,
            reopening: NumberSet::default(),
            claim: BucketClaim::default(),
            relays: Default::default(),
            late_publications: NumberSet::default(),
            late_marks: NumberSet::default(),
            late_under: Default::default(),
            broker: ModelBroker::default(),
            broken: None,
            faults_left: space.0.faults,
        }
    }

    pub(crate) fn id(&self, row: usize) -> u8 {
        self.transactions[row].id
    }

    /// Notes that a step broke an invariant.
    pub(crate) fn breaks(&mut self, invariant: Invariant) {
        self.broken.get_or_insert(invariant);
    }
}

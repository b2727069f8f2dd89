//! A setting of the model of the outbox.

use crate::outbox::world::ROWS;

/// Who writes and publishes, what may fail, and which rule is broken.
#[derive(Clone, Copy, Debug)]
pub struct OutboxSetting {
    /// The ordering key of the event of each transaction.
    pub(crate) keys: &'static [u8],
    /// The number of relays, at most two.
    pub(crate) relays: u8,
    pub(crate) horizon: HorizonKind,
    /// Whether the broker recognizes a repeated id, for as long as it likes.
    pub(crate) window: bool,
    /// Whether the consumer remembers the ids of events that had their effect.
    pub(crate) inbox: bool,
    pub(crate) faults: OutboxFaults,
    pub(crate) broken_rule: Option<OutboxRule>,
}

/// How a relay learns which rows are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HorizonKind {
    /// It reads the sequence, then the running transactions.
    InSteps,
    /// It always knows. Its cursor is as far ahead as it can be.
    Known,
}

/// How often each fault may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OutboxFaults {
    /// Requests and replies that are lost or late, to the broker or the database.
    pub(crate) network: u8,
    pub(crate) crashes: u8,
    /// Leases that run out although their relay lives.
    pub(crate) lapses: u8,
    /// Buckets that are given back to another relay.
    pub(crate) moves: u8,
    /// Publications that the broker refuses for good.
    pub(crate) refusals: u8,
    /// Parked keys that an operator resumes.
    pub(crate) resumes: u8,
    /// Refused rows that an operator drops.
    pub(crate) drops: u8,
    /// Failures of the broker that lose what it has. An operator republishes afterwards.
    pub(crate) losses: u8,
}

/// A mistake that a relay, a writer or an operator can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutboxRule {
    /// A read moves the cursor behind its last row.
    CursorIsTheTruth,
    /// The same, and rows that were passed over are read again later.
    CursorRunsAhead,
    /// A transaction draws its row id before it counts as running.
    IdBeforeXid,
    /// The horizon reads the running transactions before the sequence.
    StampBeforeDrawn,
    /// Rows are read before their transaction commits.
    ReadsUncommitted,
    /// A row is marked when its publication starts.
    MarksFirst,
    /// A row that the broker refuses is forgotten, and the next one of its key goes on.
    SkipsRefused,
    /// Each row is published on its own, without regard to its key.
    ClaimsPerRow,
    /// Each publication has an id of its own.
    MintsIds,
    /// A mark changes a row in any state.
    MarksAnyState,
    /// Rows are set aside although their key is no longer parked.
    SetsAsideAnyKey,
    /// A relay reads on from its cursor although rows behind it became open again.
    IgnoresRewinds,
    /// Published rows are removed while the broker may still lose them.
    SweepsEarly,
    /// A mark counts although a republication has begun since its row was published, and the broker may have lost it.
    MarksIgnoreRepublications,
}

/// A setting in the form that the checker explores.
#[derive(Clone, Debug)]
pub(crate) struct OutboxSpace(pub(crate) OutboxSetting);

impl OutboxSpace {
    pub(crate) fn violates(&self, rule: OutboxRule) -> bool {
        self.0.broken_rule == Some(rule)
    }

    /// The numbers of the transactions. Each has one row.
    pub(crate) fn rows(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.0.keys.len().min(ROWS)
    }

    pub(crate) fn relays(&self) -> impl Iterator<Item = usize> + use<> {
        0..usize::from(self.0.relays)
    }

    pub(crate) fn key(&self, row: usize) -> usize {
        usize::from(self.0.keys[row])
    }
}

use std::collections::BTreeSet;
use std::time::Duration;

use hapax_core::Millis;
use hapax_core::relay::RelaySettings;

use crate::dice::Dice;

/// A class of faults in a world of relays. Each class is possible in about a third of the worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OutboxFault {
    /// A transaction stays open for seconds.
    LateCommit,
    /// A transaction is rolled back.
    Rollback,
    /// A relay crashes, and another one starts.
    Crash,
    /// A relay stands still, with or without its heartbeat.
    Pause,
    /// A relay is asked to stop, and another one starts.
    Stop,
    /// A publication fails.
    Failed,
    /// A publication has no known outcome.
    Unknown,
    /// The broker never takes an event. An operator resumes its key, or drops the event.
    Refused,
    /// The broker takes nothing of a topic for a while.
    DeadTopic,
    /// The broker loses its last events, and an operator has them published again.
    LostEvents,
    /// A call of the database fails.
    FailedCall,
    /// The reply of a call is lost.
    LostReply,
    /// Rows are locked, so that they cannot be marked now.
    Locked,
    /// The database forgets marks that it has confirmed.
    LostMarks,
}

impl OutboxFault {
    /// Every class with its name.
    pub const ALL: &[(Self, &str)] = &[
        (Self::LateCommit, "late commit"),
        (Self::Rollback, "rollback"),
        (Self::Crash, "crash"),
        (Self::Pause, "pause"),
        (Self::Stop, "stop"),
        (Self::Failed, "failed publication"),
        (Self::Unknown, "unknown publication"),
        (Self::Refused, "refused publication"),
        (Self::DeadTopic, "dead topic"),
        (Self::LostEvents, "republication"),
        (Self::FailedCall, "failed call"),
        (Self::LostReply, "lost reply"),
        (Self::Locked, "locked row"),
        (Self::LostMarks, "lost mark"),
    ];

    pub(super) fn name(self) -> &'static str {
        let listed = Self::ALL.iter().find(|(class, _)| *class == self);
        listed.map_or("", |(_, name)| name)
    }
}

/// The shape of a world.
#[derive(Clone, Debug)]
pub(super) struct RelayPlan {
    pub(super) relays: usize,
    pub(super) settings: RelaySettings,
    /// How many ordering keys have events.
    pub(super) keys: u8,
    /// How many writers write events without a key.
    pub(super) unordered: usize,
    /// How long events are written and faults happen.
    pub(super) window: Duration,
    /// Whether the broker recognizes a repetition.
    pub(super) recognizes: bool,
    faults: BTreeSet<OutboxFault>,
}

impl RelayPlan {
    pub(super) fn draw(dice: &Dice) -> Self {
        let mut settings = RelaySettings::default();
        settings.lease = Millis(2000);
        settings.retention = None;
        // A tiny room, or one that is never full.
        let is_tiny = dice.percent(50);
        let (rows, bytes) = if is_tiny { (dice.between(1, 40), dice.between(30, 3000)) } else { (512, 1 << 20) };
        (settings.max_held, settings.max_held_bytes) = (rows, bytes);
        settings.max_in_flight = if is_tiny { dice.between(1, 8) } else { 64 };
        let possible = OutboxFault::ALL.iter().map(|(class, _)| *class).filter(|_| dice.percent(33));
        Self {
            relays: dice.between(1, 3),
            settings,
            keys: u8::try_from(dice.between(1, 8)).unwrap_or(1),
            unordered: dice.between(0, 3),
            window: Duration::from_secs(5) + dice.up_to(Duration::from_secs(15)),
            recognizes: dice.percent(50),
            faults: possible.collect(),
        }
    }

    pub(super) fn allows(&self, class: OutboxFault) -> bool {
        self.faults.contains(&class)
    }
}

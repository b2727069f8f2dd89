//! What a run does: how many messages, from which source, under which policy, and with which faults.

/// A fault of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TargetFault {
    /// `kill -9` of a worker.
    KillWorker,
    /// A worker stops for longer than a lease, and continues.
    PauseWorker,
    /// `kill -9` of the service.
    KillService,
    /// `kill -9` of the broker. A queue in SQLite has none.
    KillBroker,
    /// `kill -9` of the broker and of a worker, which is started before the broker is there again.
    StartWithoutBroker,
    /// A worker that keeps the order is asked to end, and started again.
    StopWorker,
    /// All connections of a worker that keeps the order break.
    CutConnections,
}

impl TargetFault {
    /// All faults.
    pub const ALL: [Self; 7] = [
        Self::KillWorker,
        Self::PauseWorker,
        Self::KillService,
        Self::KillBroker,
        Self::StartWithoutBroker,
        Self::StopWorker,
        Self::CutConnections,
    ];

    /// What the report calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::KillWorker => "worker killed",
            Self::PauseWorker => "worker stopped for longer than a lease",
            Self::KillService => "service killed",
            Self::KillBroker => "broker killed",
            Self::StartWithoutBroker => "worker started while the broker was away",
            Self::StopWorker => "worker stopped in order, and started again",
            Self::CutConnections => "connections to the broker cut",
        }
    }
}

/// What the workers do about an outcome that nobody knows: `--on-lapse`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LapsePolicy {
    /// It becomes a dead letter.
    Hold,
    /// The message is sent again.
    Retry,
}

impl LapsePolicy {
    /// Both policies.
    pub const ALL: [Self; 2] = [Self::Hold, Self::Retry];

    /// The value of the flag.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Retry => "retry",
        }
    }
}

/// Where the messages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageSource {
    /// A queue in an SQLite file.
    Sqlite,
    /// A stream of NATS JetStream.
    Nats,
    /// The same for one worker, which keeps the order of each account.
    NatsInOrder,
}

impl MessageSource {
    /// All sources.
    pub const ALL: [Self; 3] = [Self::Sqlite, Self::Nats, Self::NatsInOrder];

    /// Its name in commands and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Nats => "nats",
            Self::NatsInOrder => "nats-in-order",
        }
    }
}

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct TargetOptions {
    /// The number of messages, without copies.
    pub messages: u32,
    /// Decides the copies, the faults, and what the service does.
    pub seed: u64,
    /// What the workers do about unknown outcomes.
    pub policy: LapsePolicy,
    /// Where messages come from.
    pub source: MessageSource,
    /// Without faults, and with a service that always answers 201: to prove that the audit finds nothing then.
    pub is_calm: bool,
}

impl TargetOptions {
    /// How often a fault happens.
    pub fn number_of(&self, fault: TargetFault) -> u32 {
        let once_in = |messages: u32| (self.messages / messages).max(1);
        match (fault, self.source) {
            _ if self.is_calm => 0,
            (TargetFault::KillService, _) => once_in(100),
            (TargetFault::KillBroker, MessageSource::Nats | MessageSource::NatsInOrder) => once_in(200),
            // A worker keeps the order when it stops and when its connection breaks, and not when it dies.
            (TargetFault::StopWorker | TargetFault::CutConnections, MessageSource::NatsInOrder) => once_in(50),
            (TargetFault::StopWorker | TargetFault::CutConnections, _) | (_, MessageSource::NatsInOrder) => 0,
            (TargetFault::KillWorker, _) => once_in(100),
            (TargetFault::KillBroker | TargetFault::StartWithoutBroker, MessageSource::Sqlite) => 0,
            (TargetFault::PauseWorker | TargetFault::StartWithoutBroker, _) => once_in(400),
        }
    }
}

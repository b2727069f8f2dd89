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
}

impl TargetFault {
    /// All faults.
    pub const ALL: [Self; 5] =
        [Self::KillWorker, Self::PauseWorker, Self::KillService, Self::KillBroker, Self::StartWithoutBroker];

    /// What the report calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::KillWorker => "worker killed",
            Self::PauseWorker => "worker stopped for longer than a lease",
            Self::KillService => "service killed",
            Self::KillBroker => "broker killed",
            Self::StartWithoutBroker => "worker started while the broker was away",
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
}

impl MessageSource {
    /// Its name in commands and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Nats => "nats",
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
            (TargetFault::KillBroker | TargetFault::StartWithoutBroker, MessageSource::Sqlite) => 0,
            (TargetFault::KillWorker | TargetFault::KillService, _) => once_in(100),
            (TargetFault::KillBroker, MessageSource::Nats) => once_in(200),
            (TargetFault::PauseWorker | TargetFault::StartWithoutBroker, _) => once_in(400),
        }
    }
}

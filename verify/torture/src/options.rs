//! What a run does: how many transfers, and which faults.

/// A fault of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TortureFault {
    /// `kill -9` of the service.
    KillService,
    /// `kill -9` of the gateway.
    KillGateway,
    /// `kill -9` of Redis, which loses all its records.
    KillRedis,
    /// `kill -9` of PostgreSQL and all of its processes.
    KillDatabase,
    /// PostgreSQL stops for longer than a lease, and continues.
    PauseDatabase,
    /// The service's own records are removed, as if their retention had ended.
    ForgetRecords,
    /// A connection to PostgreSQL is cut at COMMIT: before the server gets it, after, or after its reply.
    CutCommit,
    /// A connection to PostgreSQL is cut at any statement.
    CutDatabase,
    /// A connection to Redis is cut at any command.
    CutRedis,
}

impl TortureFault {
    /// All faults.
    pub const ALL: [Self; 9] = [
        Self::KillService,
        Self::KillGateway,
        Self::KillRedis,
        Self::KillDatabase,
        Self::PauseDatabase,
        Self::ForgetRecords,
        Self::CutCommit,
        Self::CutDatabase,
        Self::CutRedis,
    ];

    /// What the report calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::KillService => "service killed",
            Self::KillGateway => "gateway killed",
            Self::KillRedis => "Redis killed, without its records",
            Self::KillDatabase => "PostgreSQL killed",
            Self::PauseDatabase => "PostgreSQL stopped for longer than a lease",
            Self::ForgetRecords => "records of the service removed",
            Self::CutCommit => "connections to PostgreSQL to be cut at COMMIT",
            Self::CutDatabase => "connections to PostgreSQL to be cut anywhere",
            Self::CutRedis => "connections to Redis to be cut anywhere",
        }
    }
}

/// Which faults a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSelection {
    /// All of them.
    Everything,
    /// PostgreSQL is killed this often.
    KillDatabase(u32),
    /// A connection to PostgreSQL is cut at COMMIT this often.
    CutCommits(u32),
}

/// The service of a run. All three do the same writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TorturedService {
    /// `examples/transfer-postgres`, which claims in a transaction of its own.
    OwnTransaction,
    /// One whose ledger runs the transaction.
    Runner,
    /// One without a ledger, to prove that the audit can fail.
    WithoutLedger,
}

impl TorturedService {
    /// Whether it has a ledger.
    pub fn has_ledger(self) -> bool {
        match self {
            Self::OwnTransaction | Self::Runner => true,
            Self::WithoutLedger => false,
        }
    }

    /// The name of its binary.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::OwnTransaction => "example-transfer-postgres",
            Self::Runner => "hapax-torture-runner-service",
            Self::WithoutLedger => "hapax-torture-bare-service",
        }
    }
}

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct TortureOptions {
    /// The number of transfers.
    pub transfers: u32,
    /// Decides the transfers, the behaviour of the client, and the faults.
    pub seed: u64,
    /// The service.
    pub service: TorturedService,
    /// The faults.
    pub faults: FaultSelection,
}

impl TortureOptions {
    /// How often a fault happens.
    pub fn number_of(&self, fault: TortureFault) -> u32 {
        let once_in = |transfers: u32| (self.transfers / transfers).max(1);
        match (self.faults, fault) {
            (FaultSelection::KillDatabase(times), TortureFault::KillDatabase)
            | (FaultSelection::CutCommits(times), TortureFault::CutCommit) => times,
            (FaultSelection::KillDatabase(_) | FaultSelection::CutCommits(_), _) => 0,
            (FaultSelection::Everything, TortureFault::CutCommit) => once_in(50),
            (FaultSelection::Everything, TortureFault::CutDatabase | TortureFault::CutRedis) => once_in(100),
            (FaultSelection::Everything, TortureFault::PauseDatabase) => once_in(2000),
            (FaultSelection::Everything, _) => once_in(500),
        }
    }
}

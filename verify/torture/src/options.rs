//! What a run does: how many transfers, and which faults.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::process::built;

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
    /// PostgreSQL and each gateway are killed this often.
    KillEach(u32),
}

/// The service of a run. All of them do the same writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TorturedService {
    /// `examples/transfer-postgres`, which claims in a transaction of its own.
    OwnTransaction,
    /// One whose ledger runs the transaction.
    Runner,
    /// `examples/any-language`, in Python, which calls the ledger in SQL. It has no records of its own.
    Python,
    /// One without a ledger, to prove that the audit can fail.
    WithoutLedger,
    /// One with a ledger and no records, behind two gateways that run an operation again after its lease. Their records
    /// are in the database of the ledger.
    Gated,
    /// The same without a ledger, and the gateways hold an operation whose outcome is unknown.
    Held,
}

/// Where the gateways of a run keep their records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordHome {
    /// There is one gateway, with records on Redis.
    Redis,
    /// There are two gateways, with records in the database of the service.
    Database,
}

impl TorturedService {
    /// Whether it has a ledger.
    pub fn has_ledger(self) -> bool {
        match self {
            Self::OwnTransaction | Self::Runner | Self::Python | Self::Gated => true,
            Self::WithoutLedger | Self::Held => false,
        }
    }

    /// Whether its gateways answer `outcome-unknown` to the copies of an operation that may have run.
    pub(crate) fn is_held(self) -> bool {
        self == Self::Held
    }

    pub(crate) fn record_home(self) -> RecordHome {
        match self {
            Self::OwnTransaction | Self::Runner | Self::Python | Self::WithoutLedger => RecordHome::Redis,
            Self::Gated | Self::Held => RecordHome::Database,
        }
    }

    /// How many gateways there are before it.
    pub(crate) fn gateways(self) -> u32 {
        match self.record_home() {
            RecordHome::Redis => 1,
            RecordHome::Database => 2,
        }
    }

    /// Whether a run without damage is what it has to show. The other runs prove that the audit can fail.
    pub fn must_be_clean(self) -> bool {
        self != Self::WithoutLedger
    }

    /// Whether it has records of layer 1. Otherwise only the gateway has some.
    pub(crate) fn has_records(self) -> bool {
        match self {
            Self::OwnTransaction | Self::Runner | Self::WithoutLedger => true,
            Self::Python | Self::Gated | Self::Held => false,
        }
    }

    /// Its program, and the arguments before the URL of the database and the port.
    ///
    /// # Errors
    /// If it is not built.
    pub(crate) fn program(self) -> Result<(PathBuf, Option<OsString>)> {
        let name = match self {
            Self::OwnTransaction => "example-transfer-postgres",
            Self::Runner => "hapax-torture-runner-service",
            Self::WithoutLedger => "hapax-torture-bare-service",
            Self::Gated => return Ok((built("hapax-torture-gated-service")?, Some("with-ledger".into()))),
            Self::Held => return Ok((built("hapax-torture-gated-service")?, Some("without-ledger".into()))),
            Self::Python => {
                let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
                let script = root.join("examples/any-language/service.py");
                return Ok((root.join("fixtures/psycopg/server.sh"), Some(script.into())));
            }
        };
        Ok((built(name)?, None))
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
            (FaultSelection::KillDatabase(times) | FaultSelection::KillEach(times), TortureFault::KillDatabase)
            | (FaultSelection::CutCommits(times), TortureFault::CutCommit) => times,
            (FaultSelection::KillEach(times), TortureFault::KillGateway) => times * self.service.gateways(),
            (FaultSelection::KillDatabase(_) | FaultSelection::CutCommits(_) | FaultSelection::KillEach(_), _) => 0,
            (FaultSelection::Everything, TortureFault::KillRedis | TortureFault::CutRedis)
                if self.service.record_home() == RecordHome::Database =>
            {
                0
            }
            (FaultSelection::Everything, TortureFault::ForgetRecords) if !self.service.has_records() => 0,
            (FaultSelection::Everything, TortureFault::CutCommit) => once_in(50),
            (FaultSelection::Everything, TortureFault::CutDatabase | TortureFault::CutRedis) => once_in(100),
            (FaultSelection::Everything, TortureFault::PauseDatabase) => once_in(2000),
            (FaultSelection::Everything, _) => once_in(500),
        }
    }
}

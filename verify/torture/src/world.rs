//! The processes and servers of a run:
//!
//! ```text
//! client ──► hapax gateway ──► service ──► proxy ──► PostgreSQL
//!                 └──► proxy ──► Redis
//!
//! client ──► two of hapax gateway ──► service ──► proxy ──► PostgreSQL
//!                   └─────────────────────────────► proxy
//! ```

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{PostgresServer, PostgresServerOptions, RedisKind, RedisServer, RedisServerOptions};
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::bank;
use crate::options::{RecordHome, TorturedService};
use crate::order::NAMESPACE;
use crate::process::{ProcessSpec, RestartableProcess, built, empty_file, free_address};

/// A running world. Everything ends when it is dropped.
#[derive(Debug)]
pub(crate) struct TortureWorld {
    pub(crate) gateways: Vec<RestartableProcess>,
    pub(crate) service: RestartableProcess,
    pub(crate) database_proxy: Proxy,
    redis: Option<TorturedRedis>,
    pub(crate) database: PostgresServer,
    /// Held while the server is down, so that two faults do not restart it at once.
    pub(crate) database_turn: Mutex<()>,
    /// Held until a cut at COMMIT has happened.
    pub(crate) cut_turn: Mutex<()>,
}

/// The Redis of a run whose gateway keeps its records there.
#[derive(Debug)]
pub(crate) struct TorturedRedis {
    pub(crate) server: RedisServer,
    pub(crate) proxy: Proxy,
    /// Held while the server is down, so that two faults do not restart it at once.
    pub(crate) turn: Mutex<()>,
}

impl TorturedRedis {
    /// It keeps nothing.
    async fn start() -> Result<Self> {
        let server = RedisServer::start(RedisServerOptions::new(RedisKind::Redis).with_system_clock()).await?;
        let proxy = Proxy::start(server.address()).await?;
        Ok(Self { server, proxy, turn: Mutex::default() })
    }
}

impl TortureWorld {
    /// Starts everything, with the files in a folder.
    pub(crate) async fn start(folder: &Path, tortured: TorturedService) -> Result<Self> {
        // It syncs every commit.
        let database = PostgresServer::start(PostgresServerOptions::new()).await?;
        let database_proxy = Proxy::start(database.address()).await?;
        bank::open_accounts(&database).await?;
        match tortured {
            TorturedService::Python | TorturedService::Gated | TorturedService::Held => {
                migrate(&database.url()).await?;
            }
            TorturedService::OwnTransaction | TorturedService::Runner | TorturedService::WithoutLedger => {}
        }
        let service = RestartableProcess::start(service(folder, &database_proxy, tortured)?).await?;
        let redis = match tortured.record_home() {
            RecordHome::Redis => Some(TorturedRedis::start().await?),
            RecordHome::Database => None,
        };
        let records = match &redis {
            Some(redis) => format!("redis://{}/0", redis.proxy.address()),
            None => format!("postgres://postgres@{}/postgres", database_proxy.address()),
        };
        let on_lapse = if tortured.is_held() { "hold" } else { "retry" };
        let mut gateways = Vec::new();
        for _ in 0..tortured.gateways() {
            let options = format!("--store {records} --on-lapse {on_lapse} --upstream http://{}", service.address());
            gateways.push(RestartableProcess::start(gateway(folder, &options)?).await?);
        }
        let (database_turn, cut_turn) = (Mutex::default(), Mutex::default());
        Ok(Self { gateways, service, database_proxy, redis, database, database_turn, cut_turn })
    }

    /// One of the gateways. They take turns by number.
    pub(crate) fn gateway(&self, number: u64) -> &RestartableProcess {
        &self.gateways[usize::try_from(number).unwrap_or_default() % self.gateways.len()]
    }

    /// The Redis of the run.
    ///
    /// # Errors
    /// If the gateways keep their records elsewhere.
    pub(crate) fn redis(&self) -> Result<&TorturedRedis> {
        self.redis.as_ref().context("this run has no Redis")
    }

    /// Ends all faults of the network.
    pub(crate) async fn heal(&self) -> Result<()> {
        if let Some(redis) = &self.redis {
            redis.proxy.heal().await?;
        }
        Ok(self.database_proxy.heal().await?)
    }

    /// The connections that the proxies have cut.
    pub(crate) fn cuts(&self) -> u64 {
        self.database_proxy.counts().cuts + self.redis.as_ref().map_or(0, |redis| redis.proxy.counts().cuts)
    }

    /// Removes all records of layer 1.
    pub(crate) async fn forget_records(&self) -> Result<()> {
        if let Some(redis) = &self.redis {
            redis.server.command(&["FLUSHALL"]).await?;
        }
        bank::forget_records(&self.database).await
    }

    /// Fails if a process has ended by itself.
    pub(crate) async fn check(&self) -> Result<()> {
        for gateway in &self.gateways {
            gateway.check().await?;
        }
        self.service.check().await
    }
}

fn service(folder: &Path, database: &Proxy, tortured: TorturedService) -> Result<ProcessSpec> {
    let (program, script) = tortured.program()?;
    let address = free_address(random())?;
    let url = format!("postgres://postgres@{}/postgres", database.address());
    let arguments = script.into_iter().chain([url.into(), address.port().to_string().into()]).collect();
    Ok(ProcessSpec { program, arguments, address, log: empty_file(&folder.join("service.log"))?, unavailable: None })
}

/// A service in Rust creates its tables itself.
async fn migrate(url: &str) -> Result<()> {
    let migrated = Command::new(built("hapax")?).args(["migrate", "--database", url]).output().await?;
    ensure!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    Ok(())
}

/// Its namespace is that of the services, so that its operations are theirs also where they come from its header. Two
/// gateways share a folder: either takes the completions that the other has left there.
fn gateway(folder: &Path, options: &str) -> Result<ProcessSpec> {
    let (address, admin) = (free_address(random())?, free_address(random())?);
    let words =
        format!("gateway --listen {address} --admin {admin} {options} --namespace {NAMESPACE} --lease 2s --data-dir");
    let mut arguments: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
    arguments.push(folder.join("gateway").into());
    Ok(ProcessSpec {
        program: built("hapax")?,
        arguments,
        address,
        log: empty_file(&folder.join("gateway.log"))?,
        unavailable: None,
    })
}

/// Two runs at the same time look for ports in different places.
pub(crate) fn random() -> u32 {
    u32::try_from(RandomState::new().hash_one(std::process::id()) % 8000).unwrap_or_default()
}

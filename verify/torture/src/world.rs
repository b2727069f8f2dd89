//! The processes and servers of a run:
//!
//! ```text
//! client ──► hapax gateway ──► service ──► proxy ──► PostgreSQL
//!                 └──► proxy ──► Redis
//! ```

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use anyhow::{Result, ensure};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{PostgresServer, PostgresServerOptions, RedisKind, RedisServer, RedisServerOptions};
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::bank;
use crate::options::TorturedService;
use crate::order::NAMESPACE;
use crate::process::{ProcessSpec, RestartableProcess, built, empty_file, free_address};

/// A running world. Everything ends when it is dropped.
#[derive(Debug)]
pub(crate) struct TortureWorld {
    pub(crate) gateway: RestartableProcess,
    pub(crate) service: RestartableProcess,
    pub(crate) redis_proxy: Proxy,
    pub(crate) database_proxy: Proxy,
    pub(crate) redis: RedisServer,
    pub(crate) database: PostgresServer,
    /// Held while a server is down, so that two faults do not restart it at once.
    pub(crate) redis_turn: Mutex<()>,
    pub(crate) database_turn: Mutex<()>,
    /// Held until a cut at COMMIT has happened.
    pub(crate) cut_turn: Mutex<()>,
}

impl TortureWorld {
    /// Starts everything, with the files in a folder.
    pub(crate) async fn start(folder: &Path, tortured: TorturedService) -> Result<Self> {
        // Redis keeps nothing; PostgreSQL syncs every commit.
        let redis = RedisServer::start(RedisServerOptions::new(RedisKind::Redis).with_system_clock()).await?;
        let database = PostgresServer::start(PostgresServerOptions::new()).await?;
        let redis_proxy = Proxy::start(redis.address()).await?;
        let database_proxy = Proxy::start(database.address()).await?;
        bank::open_accounts(&database).await?;
        if tortured == TorturedService::Python {
            migrate(&database.url()).await?;
        }
        let service = RestartableProcess::start(service(folder, &database_proxy, tortured)?).await?;
        let gateway = RestartableProcess::start(gateway(folder, &service, &redis_proxy)?).await?;
        let (redis_turn, database_turn, cut_turn) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Self { gateway, service, redis_proxy, database_proxy, redis, database, redis_turn, database_turn, cut_turn })
    }
}

fn service(folder: &Path, database: &Proxy, tortured: TorturedService) -> Result<ProcessSpec> {
    let (program, script) = tortured.program()?;
    let address = free_address(random())?;
    let url = format!("postgres://postgres@{}/postgres", database.address());
    let arguments = script.into_iter().chain([url.into(), address.port().to_string().into()]).collect();
    Ok(ProcessSpec { program, arguments, address, log: empty_file(&folder.join("service.log"))? })
}

/// A service in Rust creates its tables itself.
async fn migrate(url: &str) -> Result<()> {
    let migrated = Command::new(built("hapax")?).args(["migrate", "--database", url]).output().await?;
    ensure!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    Ok(())
}

/// Its namespace is that of the services, so that its operations are theirs also where they come from its header.
fn gateway(folder: &Path, service: &RestartableProcess, redis: &Proxy) -> Result<ProcessSpec> {
    let (address, admin) = (free_address(random())?, free_address(random())?);
    let words = format!(
        "gateway --listen {address} --admin {admin} --upstream http://{} --store redis://{}/0 --on-lapse retry \
         --namespace {NAMESPACE} --lease 2s --data-dir",
        service.address(),
        redis.address()
    );
    let mut arguments: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
    arguments.push(folder.join("gateway").into());
    Ok(ProcessSpec { program: built("hapax")?, arguments, address, log: empty_file(&folder.join("gateway.log"))? })
}

/// Two runs at the same time look for ports in different places.
pub(crate) fn random() -> u32 {
    u32::try_from(RandomState::new().hash_one(std::process::id()) % 8000).unwrap_or_default()
}

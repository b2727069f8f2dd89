//! The processes of a run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hapax::{Identity, Key, Scope};
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::process::{ProcessSpec, RestartableProcess, built, empty_file, free_address};
use crate::target::options::{LapsePolicy, MessageSource, TargetOptions};
use crate::target::source::{NAME, TargetQueue};
use crate::world::random;

/// The lease of records and deliveries: long enough for a loaded machine.
pub(super) const LEASE: Duration = Duration::from_secs(4);

/// A running world. Everything ends when it is dropped.
#[derive(Debug)]
pub(super) struct TargetWorld {
    pub(super) queue: TargetQueue,
    pub(super) service: RestartableProcess,
    /// Two, or one that keeps the order.
    pub(super) workers: Vec<RestartableProcess>,
    /// What the service writes.
    pub(super) journal: PathBuf,
    /// The URL of records and dead letters.
    store: String,
    /// Held while the broker is down.
    pub(super) broker_turn: Mutex<()>,
}

impl TargetWorld {
    pub(super) async fn start(folder: &Path, options: &TargetOptions) -> Result<Self> {
        let queue = match options.source {
            MessageSource::Sqlite => TargetQueue::sqlite(&folder.join("queue.db"))?,
            MessageSource::Nats => TargetQueue::nats(false).await?,
            MessageSource::NatsInOrder => TargetQueue::nats(true).await?,
        };
        let journal = empty_file(&folder.join("service.journal"))?;
        let store = format!("sqlite://{}", folder.join("records.db").display());
        let service = RestartableProcess::start(service(folder, &journal, options)?).await?;
        let (target, policy) = (service.address(), options.policy);
        let specs = WorkerSpecs { folder, source: queue.url(), target, store: &store, policy };
        let mut workers = vec![RestartableProcess::start(specs.spec("worker-1")?).await?];
        if options.source != MessageSource::NatsInOrder {
            workers.push(RestartableProcess::start(specs.spec("worker-2")?).await?);
        }
        Ok(Self { queue, service, workers, journal, store, broker_turn: Mutex::default() })
    }

    /// Starts workers again that began while the broker was down.
    pub(super) async fn start_unavailable_workers(&self) -> Result<()> {
        for worker in &self.workers {
            worker.start_if_unavailable().await?;
        }
        Ok(())
    }

    /// The reasons of the dead letters of each key, as `hapax dead list` shows them.
    pub(super) async fn letters(&self, keys: &[String]) -> Result<BTreeMap<String, Vec<String>>> {
        let mut command = Command::new(built("hapax")?);
        let output = command.args(["dead", "list", "--json", "--store", &self.store]).output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let by_operation: BTreeMap<String, &String> = keys.iter().map(|key| (operation(key), key)).collect();
        let mut letters: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in String::from_utf8(output.stdout)?.lines() {
            let letter: serde_json::Value = serde_json::from_str(line)?;
            let text = |name: &str| letter[name].as_str().map(str::to_owned).context("a letter has each field");
            let key = by_operation.get(&text("operation")?).context("a letter is about a message that was sent")?;
            letters.entry((*key).clone()).or_default().push(text("reason")?);
        }
        Ok(letters)
    }
}

/// The id of the operation of a message, which the worker derives in the same way.
fn operation(key: &str) -> String {
    let scope = Scope::untenanted(NAME).expect("a short name");
    let key = Key::new(key.as_bytes()).expect("a short key");
    Identity::plain().record_key(&scope, &key).operation().to_string()
}

fn service(folder: &Path, journal: &Path, options: &TargetOptions) -> Result<ProcessSpec> {
    let address = free_address(random())?;
    let mood = if options.is_calm { "calm" } else { "hostile" };
    let arguments =
        vec![address.port().to_string().into(), journal.into(), options.seed.to_string().into(), mood.into()];
    let program = built("hapax-torture-target-service")?;
    Ok(ProcessSpec { program, arguments, address, log: empty_file(&folder.join("service.log"))?, unavailable: None })
}

/// What the command lines of both workers have in common.
struct WorkerSpecs<'a> {
    folder: &'a Path,
    source: String,
    target: SocketAddr,
    store: &'a str,
    policy: LapsePolicy,
}

impl WorkerSpecs<'_> {
    fn spec(&self, name: &str) -> Result<ProcessSpec> {
        let Self { folder, source, target, store, policy } = self;
        let address = free_address(random())?;
        let words = format!(
            "worker --admin {address} --target http://{target}/ --store {store} --on-lapse {} --lease {}s \
             --concurrency 8 --namespace {NAME} --source {source}",
            policy.name(),
            LEASE.as_secs(),
        );
        let arguments: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        let log = empty_file(&folder.join(format!("{name}.log")))?;
        Ok(ProcessSpec { program: built("hapax")?, arguments, address, log, unavailable: Some(3) })
    }
}

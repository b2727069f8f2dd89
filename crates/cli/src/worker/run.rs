//! The process `hapax worker`, from its start to its stop.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use hapax::Gate;
use hapax::broker::Source;
use hapax::journal::FileJournal;
use hapax::runtime::{Runtime, Tokio};
use hapax::worker::{RecordReopener, Worker, WorkerEnd};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use crate::admin::access::AdminAccess;
use crate::admin::api::audit::AuditFile;
use crate::admin::api::records::{AnswerForm, RecordDesk, RecordLifetimes};
use crate::admin::api::{AdminApi, PolicyDescription, policy_fields};
use crate::admin::listener::{self, AdminState};
use crate::config::{self, Configured, Flags, HasFlags, WorkerConfig};
use crate::serve::bind::bind;
use crate::serve::exit::CommandError;
use crate::serve::logs::{self, Log};
use crate::serve::metrics::{self, describe_worker};
use crate::serve::otlp;
use crate::serve::shutdown::Shutdown;
use crate::serve::signals::{self, Reloads, StopSignals};
use crate::store::gate::{GateStart, StartedGate};
use crate::store::health::CheckIntervals;
use crate::store::wiring::files::OpenFiles;
use crate::store::wiring::{self, OpenedStore};
use crate::tls;
use crate::upstream::client::UpstreamClient;
use crate::upstream::forward::CONNECT;
use crate::worker::dead::WorkerDeadLetters;
use crate::worker::target::{HttpTarget, PROCESSED, Service, ServiceHealth};

/// The arguments of `hapax worker`.
pub(crate) type WorkerArgs = Flags<WorkerFlags>;

#[derive(Debug)]
pub(crate) struct WorkerFlags;

impl HasFlags for WorkerFlags {
    const COMMAND: Configured = Configured::Worker;
    const AFTER_HELP: &str = "\
The target gets one POST for each message. A record in --store keeps a second copy from running while the first one
runs, and after its outcome is known. The record does not commit with the effect: if the target, or the connection to
it, fails while it works, the outcome is unknown, and --on-lapse decides. A service that must be exact about that keeps
a ledger in its own database.";
}

/// Runs the worker until a stop signal.
pub(crate) async fn run(args: WorkerArgs) -> Result<ExitCode, CommandError> {
    // First of all, because an unhandled SIGHUP ends the process.
    let hangups = signals::hangups().map_err(CommandError::cannot_start)?;
    let config = WorkerConfig::load(&args).map_err(CommandError::usage)?;
    if args.check {
        // An error means that the reader has closed the pipe.
        let _ = io::stdout().write_all(config.show().as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    let stop = StopSignals::listen(config.worker.drain).map_err(CommandError::cannot_start)?;
    let config = Arc::new(config);
    let opening = Arc::clone(&config);
    let opened = tokio::select! {
        opened = spawn_blocking(move || OpenedWorker::open(&opening)) => opened.map_err(CommandError::cannot_start)??,
        () = stop.first.cancelled() => return Ok(stopped_early()),
    };
    let log = opened.log;
    let log = config.log.file.is_some().then_some(move || log.reopen());
    tokio::spawn(signals::at_each(hangups, Reloads { log, certificate: None::<fn()> }));
    let metrics = metrics::install().map_err(CommandError::cannot_start)?;
    describe_worker();
    let private = bind(config.admin.listen).await?;
    work(&config, Resources { store: opened.store, dead: opened.dead, private, metrics }, stop).await
}

fn stopped_early() -> ExitCode {
    tracing::warn!("stopped before the start was complete; no message was taken");
    ExitCode::SUCCESS
}

/// The log, the store and the dead letters that a worker opens at its start.
struct OpenedWorker {
    log: Log,
    store: OpenedStore,
    dead: WorkerDeadLetters,
}

impl OpenedWorker {
    /// Blocks as long as a file is a pipe with nobody at its other end.
    fn open(config: &WorkerConfig) -> Result<Self, CommandError> {
        let log = Log::start(&config.log).map_err(CommandError::cannot_start)?;
        for (name, guess) in config::mistyped(std::env::vars_os()) {
            tracing::warn!("{name} is not a setting and is ignored; did you mean {guess}?");
        }
        let runtime = || Arc::new(Tokio::current()) as Arc<dyn Runtime>;
        let store = wiring::open(&config.store, runtime())?;
        let dead = Handle::current().block_on(WorkerDeadLetters::open(&config.dead_letter, runtime()))?;
        Ok(Self { log, store, dead })
    }
}

/// What a worker uses beside its configuration.
struct Resources {
    store: OpenedStore,
    dead: WorkerDeadLetters,
    private: TcpListener,
    metrics: PrometheusHandle,
}

/// What a worker runs with, once its start is complete.
struct StartedWorker {
    gate: Gate,
    journal: Option<Arc<FileJournal>>,
    dead: WorkerDeadLetters,
    source: Box<dyn Source>,
}

/// Starts the gate and the private listener, and opens the source.
async fn start(
    config: &WorkerConfig,
    resources: Resources,
    shutdown: &Arc<Shutdown>,
    runtime: &Arc<dyn Runtime>,
) -> Result<StartedWorker, CommandError> {
    let files = Arc::new(OpenFiles::default());
    files.watch_dead_letters(&config.dead_letter).map_err(CommandError::cannot_start)?;
    let start = GateStart {
        opened: resources.store,
        place: config.store.place(),
        namespace: &config.namespace,
        secret: config.secret.clone(),
        settings: &config.gate,
        data_dir: config.data_dir.as_deref(),
        more: vec![Arc::clone(&files) as _],
        runtime: Arc::clone(runtime),
        intervals: CheckIntervals::default(),
    };
    let opened = start.opened.clone();
    let StartedGate { gate, journal, health } = start.start().await?;
    let (records, dead) = (Arc::clone(&opened.store), resources.dead);
    let (access, api) = (AdminAccess::new(&config.admin), Arc::new(admin_api(config, opened, &dead)));
    let state = AdminState { health, metrics: resources.metrics, access, api, shutdown: Arc::clone(shutdown) };
    tokio::spawn(listener::serve(resources.private, state));
    dead.check_start().await?;
    let source = config.source.open(Arc::clone(runtime), config.gate.policy.lease).await;
    let source = source.map_err(CommandError::cannot_start)?;
    files.watch_source(&config.source).map_err(CommandError::cannot_start)?;
    let reopen = RecordReopener::new(records, config.identity.clone(), &config.gate.policy, PROCESSED);
    let source = dead.redriven(source, Arc::clone(runtime), reopen);
    Ok(StartedWorker { gate, journal, dead, source })
}

/// Processes messages until a stop signal.
async fn work(config: &WorkerConfig, resources: Resources, stop: StopSignals) -> Result<ExitCode, CommandError> {
    let runtime = Arc::new(Tokio::current()) as Arc<dyn Runtime>;
    let shutdown = Arc::new(Shutdown::new(std::time::Duration::ZERO, config.worker.drain));
    let started = tokio::select! {
        started = start(config, resources, &shutdown, &runtime) => started?,
        () = stop.first.cancelled() => return Ok(stopped_early()),
    };
    let StartedWorker { gate, journal, dead, source } = started;
    let target = HttpTarget::new(service(config, gate.clone()).map_err(CommandError::cannot_start)?);
    log_start(config, source.name());
    let mut worker = Worker::builder(source, Arc::new(target), dead.letters(Arc::clone(&runtime)))
        .identity(config.identity.clone())
        .settings(config.worker)
        .runtime(runtime);
    if let Some(letters) = dead.kept().filter(|_| config.parks) {
        worker = worker.park(letters);
    }
    let worker = worker.build().map_err(CommandError::usage)?;
    let ended = tokio::select! {
        ended = worker.run(shutdown.wait(stop.first.cancelled())) => ended,
        () = stop.second.cancelled() => {
            logs::end_with(shutdown.left(), logs::report_missing);
            std::process::exit(1)
        }
    };
    gate.drain(config.gate.store_timeout.min(shutdown.left())).await;
    if let Some(journal) = &journal
        && tokio::time::timeout(shutdown.left(), journal.close()).await.is_err()
    {
        tracing::warn!("the journal was not closed in time; its answers are kept, and the next start records them");
    }
    let _ = tokio::time::timeout(shutdown.left(), dead.close()).await;
    otlp::end_within(shutdown.left_for_requests()).await;
    exit_code(ended)
}

fn admin_api(config: &WorkerConfig, store: OpenedStore, dead: &WorkerDeadLetters) -> AdminApi {
    let policy = PolicyDescription::new("worker", &config.namespace)
        .with("policy", policy_fields(&config.gate.policy))
        .with("attempts", json!(config.max_attempts))
        .with("parks", json!(config.parks));
    let lifetimes = RecordLifetimes::of(&config.gate.policy);
    AdminApi {
        process: "worker",
        records: Some(RecordDesk { store, lifetimes, answers: AnswerForm::Messages }),
        dead: dead.kept(),
        outbox: None,
        policy: policy.into_json(),
        audit: config.admin.audit_file.clone().map(AuditFile::new),
    }
}

fn exit_code(ended: hapax::Result<WorkerEnd>) -> Result<ExitCode, CommandError> {
    match ended {
        Ok(WorkerEnd { unfinished: 0 }) => Ok(ExitCode::SUCCESS),
        Ok(WorkerEnd { unfinished }) => {
            tracing::warn!(unfinished, "stopped with messages that have no end; they are delivered again");
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Err(CommandError::failed(error.into())),
    }
}

fn service(config: &WorkerConfig, gate: Gate) -> Result<Service, anyhow::Error> {
    let target = &config.target;
    let is_secure = target.upstream.scheme == http::uri::Scheme::HTTPS;
    let trust =
        if is_secure { tls::client_config(target.ca.as_deref(), Some("--target-ca"))? } else { tls::unused_config()? };
    let authority = &target.upstream.authority;
    let port = authority.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
    Ok(Service {
        gate,
        client: UpstreamClient::new(target.upstream.clone(), &trust, CONNECT.min(target.timeout / 2)),
        address: format!("{}:{port}", authority.host()),
        path: target.path.clone(),
        timeout: target.timeout,
        outcomes: target.outcomes.clone(),
        forwarded: target.forwarded.clone(),
        max_attempts: config.max_attempts,
        health: ServiceHealth::default(),
    })
}

/// Logs where messages come from and go to, and what the worker cannot promise.
fn log_start(config: &WorkerConfig, source: &str) {
    let (service, namespace) = (&config.target.upstream.authority, &config.namespace);
    let window = humantime::format_duration(config.gate.policy.retention);
    tracing::info!(source, %service, namespace, admin = %config.admin.listen, "messages are processed");
    tracing::info!(%window, "a copy of a message is recognized within this time");
    tracing::info!(
        "the target has no ledger: a record in --store keeps copies apart, and does not commit with the effect. \
         An unknown outcome follows --on-lapse"
    );
}

//! The process `hapax worker`, from its start to its stop.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use hapax::Gate;
use hapax::broker::Source;
use hapax::journal::FileJournal;
use hapax::runtime::{Runtime, Tokio};
use hapax::worker::{RecordReopener, Worker, WorkerEnd};
use hapax_systems::OpenedStore;
use serde_json::json;
use tokio::signal::unix::Signal;

use crate::admin::api::records::{AnswerForm, RecordDesk};
use crate::admin::api::{AdminApi, PolicyDescription, on_lapse, policy_fields};
use crate::config::WorkerConfig;
use crate::serve::exit::CommandError;
use crate::serve::frame::{FrameSettings, ProcessFrame};
use crate::serve::metrics::describe_worker;
use crate::store::files::OpenFiles;
use crate::store::gate::{GateStart, StartedGate, close_journal};
use crate::store::health::CheckIntervals;
use crate::store::opening;
use crate::store::waiting::OpeningWait;
use crate::tls;
use crate::upstream::client::UpstreamClient;
use crate::upstream::forward::CONNECT;
use crate::version::VERSION;
use crate::worker::dead::WorkerDeadLetters;
use crate::worker::target::{HttpTarget, PROCESSED, Service, ServiceHealth};

/// Runs the worker until a stop signal.
pub(crate) async fn run(config: WorkerConfig, hangups: Signal) -> Result<ExitCode, CommandError> {
    let config = Arc::new(config);
    let opening = Arc::clone(&config);
    let started = ProcessFrame::start(hangups, frame_settings(&config), move || OpenedWorker::open(&opening)).await?;
    let Some((frame, opened)) = started else { return Ok(ExitCode::SUCCESS) };
    describe_worker();
    work(&config, opened, frame).await
}

/// The end of the line for a stop signal that arrives before the start is complete.
const NOTHING_DONE: &str = "no message was taken";

fn frame_settings(config: &WorkerConfig) -> FrameSettings {
    FrameSettings {
        log: config.log.clone(),
        admin: config.admin.clone(),
        tls: None,
        drain_delay: Duration::ZERO,
        drain: config.worker.drain,
        nothing_done: NOTHING_DONE,
    }
}

/// The store and the dead letters that a worker opens at its start.
struct OpenedWorker {
    store: OpenedStore,
    dead: WorkerDeadLetters,
}

impl OpenedWorker {
    fn open(config: &WorkerConfig) -> Result<Self, CommandError> {
        let runtime = || Arc::new(Tokio::current()) as Arc<dyn Runtime>;
        let store = opening::open(&config.store, runtime())?;
        let dead = WorkerDeadLetters::open(&config.dead_letter, runtime())?;
        Ok(Self { store, dead })
    }
}

/// What a worker runs with, once its start is complete.
struct StartedWorker {
    gate: Gate,
    journal: Option<Arc<FileJournal>>,
    dead: WorkerDeadLetters,
    source: Box<dyn Source>,
}

/// Starts the gate and the admin listener, and opens the source.
async fn start(
    config: &WorkerConfig,
    opened: OpenedWorker,
    frame: &ProcessFrame,
    runtime: &Arc<dyn Runtime>,
) -> Result<StartedWorker, CommandError> {
    let OpenedWorker { store, dead } = opened;
    let private = frame.bind_admin().await?;
    let files = Arc::new(OpenFiles::default());
    files.watch(config.dead_letter.watch().map_err(CommandError::cannot_start)?);
    let wait = Arc::new(OpeningWait::of("source"));
    let start = GateStart {
        opened: store.clone(),
        place: config.store.place(),
        namespace: &config.namespace,
        secret: config.secret.clone(),
        settings: &config.gate,
        data_dir: config.data_dir.as_deref(),
        more: vec![Arc::clone(&files) as _, Arc::new(dead.clone()) as _, Arc::clone(&wait) as _],
        runtime: Arc::clone(runtime),
        intervals: CheckIntervals::default(),
    };
    let StartedGate { gate, journal, health } = start.start().await?;
    let records = Arc::clone(&store.store);
    frame.serve_admin(private, health, admin_api(config, store, &dead));
    // From here on /readyz tells what the worker waits for.
    dead.start(&config.dead_letter, runtime).await?;
    let source = wait.open(async || config.source.open(Arc::clone(runtime), config.gate.policy.lease).await).await?;
    files.watch(config.source.watch().map_err(CommandError::cannot_start)?);
    let reopen = RecordReopener::new(records, config.identity.clone(), &config.gate.policy, PROCESSED);
    let source = dead.redriven(source, Arc::clone(runtime), reopen);
    Ok(StartedWorker { gate, journal, dead, source })
}

/// Processes messages until a stop signal.
async fn work(config: &WorkerConfig, opened: OpenedWorker, frame: ProcessFrame) -> Result<ExitCode, CommandError> {
    let runtime = Arc::new(Tokio::current()) as Arc<dyn Runtime>;
    let shutdown = &frame.shutdown;
    let started = tokio::select! {
        started = start(config, opened, &frame, &runtime) => started?,
        () = frame.stop.first.cancelled() => {
            tracing::warn!("stopped before the start was complete; {NOTHING_DONE}");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let StartedWorker { gate, journal, dead, source } = started;
    let target = HttpTarget::new(service(config, gate.clone()).map_err(CommandError::cannot_start)?);
    log_start(config, source.name());
    let mut worker = Worker::builder(source, Arc::new(target), dead.letters(Arc::clone(&runtime))?)
        .identity(config.identity.clone())
        .settings(config.worker)
        .runtime(runtime);
    if let Some(letters) = dead.kept().filter(|_| config.parks) {
        worker = worker.park(letters);
    }
    let worker = worker.build().map_err(CommandError::usage)?;
    let ended = tokio::select! {
        ended = worker.run(frame.stopping()) => ended,
        () = frame.stop.second.cancelled() => frame.exit_at_once(),
    };
    gate.drain(config.gate.store_timeout.min(shutdown.left())).await;
    close_journal(journal.as_deref(), shutdown).await;
    let _ = tokio::time::timeout(shutdown.left(), dead.close()).await;
    frame.end_export().await;
    exit_code(ended)
}

fn admin_api(config: &WorkerConfig, store: OpenedStore, dead: &WorkerDeadLetters) -> AdminApi {
    let policy = PolicyDescription::new("worker", &config.namespace)
        .with("policy", policy_fields(&config.gate.policy))
        .with("attempts", json!(config.max_attempts))
        .with("parks", json!(config.parks));
    let records = RecordDesk::new(store, &config.gate.policy, AnswerForm::Messages);
    let api = AdminApi::new(policy, config.admin.audit_file.clone());
    AdminApi { records: Some(records), dead: dead.kept(), ..api }
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
    let (store, on_lapse) = (config.store.place(), on_lapse(&config.gate.policy.on_lapse));
    let admin = config.admin.listen;
    tracing::info!(version = VERSION, source, %service, namespace, %store, on_lapse, %admin, "messages are processed");
    tracing::info!(%window, "a copy of a message is recognized within this time");
    tracing::info!(
        "the target has no ledger: a record in --store keeps copies apart, and does not commit with the effect. \
         An unknown outcome follows --on-lapse"
    );
}

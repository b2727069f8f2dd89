//! The process `hapax gateway`, from its start to its stop.

mod stop;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use hapax::http::{IdempotencyLayer, RawFingerprint, Tenant};
use hapax::runtime::{Runtime, Tokio};
use hapax::{Gate, OnStoreDown};
use hapax_systems::OpenedStore;
use http::uri::Scheme;
use http::{HeaderName, Method};
use rustls::ClientConfig;
use serde_json::json;
use tokio::signal::unix::Signal;

use crate::admin::access::AdminAccess;
use crate::admin::api::records::{AnswerForm, RecordDesk};
use crate::admin::api::{AdminApi, PolicyDescription, on_lapse, policy_fields};
use crate::config::{Config, ConfiguredRoute, KeySource, Protect, Rules, tenant_fields};
use crate::gateway::ingress::IngressRules;
use crate::gateway::ingress::cross_origin::CrossOrigin;
use crate::gateway::ingress::field_names::ProtectedFields;
use crate::gateway::listen::executors::{ExecutorRuntime, Executors};
use crate::gateway::listen::{GatewayServer, open_files};
use crate::gateway::routing::{RouteLayer, Routes};
use crate::serve::bind::bind;
use crate::serve::exit::CommandError;
use crate::serve::frame::{FrameSettings, ProcessFrame};
use crate::serve::logs;
use crate::store::answers::CheckedAnswers;
use crate::store::gate::{GateStart, StartedGate, close_journal};
use crate::store::health::{CheckIntervals, StoreHealth};
use crate::store::opening;
use crate::tls::{self, ServerCertificate};
use crate::upstream::forward::Forward;
use crate::version::VERSION;

use stop::{GatewayStop, StopKind, log_end};

/// Runs the gateway until a stop signal.
pub(crate) async fn run(config: Config, hangups: Signal) -> Result<ExitCode, CommandError> {
    let opening = config.clone();
    let started = ProcessFrame::start(hangups, frame_settings(&config), move || OpenedGateway::open(&opening)).await?;
    let Some((frame, opened)) = started else { return Ok(ExitCode::SUCCESS) };
    serve(&config, opened, frame, CheckIntervals::default()).await
}

fn frame_settings(config: &Config) -> FrameSettings {
    FrameSettings {
        log: config.log.clone(),
        admin: config.admin.clone(),
        tls: config.tls.clone(),
        drain_delay: config.drain_delay,
        drain: config.drain,
        nothing_done: "no request was accepted",
    }
}

/// What a gateway opens at its start.
struct OpenedGateway {
    /// The authorities that may certify the API.
    trust: ClientConfig,
    store: OpenedStore,
    /// The place of large answers, if there is one.
    answers: Option<CheckedAnswers>,
}

impl OpenedGateway {
    fn open(config: &Config) -> Result<Self, CommandError> {
        let is_secure = config.upstream.scheme == Scheme::HTTPS;
        let trust = if is_secure {
            tls::client_config(config.upstream_ca.as_deref(), Some("--upstream-ca"))
        } else {
            tls::unused_config().map_err(Into::into)
        };
        let trust = trust.map_err(CommandError::cannot_start)?;
        let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
        let store = opening::open(&config.store, Arc::clone(&runtime))?;
        let Some(answers) = &config.answers else { return Ok(Self { trust, store, answers: None }) };
        let policies = config.routes.iter().map(|route| &route.rules.policy).chain([&config.rules.policy]);
        let (store, answers) = answers.around(store, policies, runtime)?;
        Ok(Self { trust, store, answers: Some(answers) })
    }
}

/// Serves clients until a stop signal.
async fn serve(
    config: &Config,
    opened: OpenedGateway,
    frame: ProcessFrame,
    intervals: CheckIntervals,
) -> Result<ExitCode, CommandError> {
    let OpenedGateway { trust, store, answers } = opened;
    let start = GateStart {
        opened: store,
        place: config.store.place(),
        namespace: &config.namespace,
        secret: config.has_secret.then(|| config.identity.clone()),
        settings: &config.settings,
        data_dir: config.data_dir.as_deref(),
        more: answers.into_iter().map(|answers| Arc::new(answers) as _).collect(),
        runtime: ExecutorRuntime::with_current_fallback(),
        intervals,
    };
    let api = admin_api(config, start.opened.clone());
    let StartedGate { gate, journal, health } = start.start().await?;
    let shutdown = &frame.shutdown;
    let mut served = Box::pin(async {
        let executors = listen(config, &gate, &frame, GatewayParts { health, api, trust }).await?;
        let is_idle = gate.wait_for_attempts(shutdown.left_for_requests()).await;
        // A store that is down would delay the stop; unreleased leases expire.
        gate.drain(config.settings.store_timeout.min(shutdown.left_for_requests())).await;
        // The releases that are still repeated end with the executors.
        let unconfirmed_releases = gate.unconfirmed_releases();
        close_journal(journal.as_deref(), shutdown).await;
        // Requests run on the executors until the gate has drained.
        if tokio::time::timeout(shutdown.left(), executors.stop()).await.is_err() {
            tracing::warn!("requests could not be cut in time; they have no line in the access log");
        }
        Ok::<_, CommandError>(GatewayStop {
            kind: if is_idle { StopKind::Idle } else { StopKind::StillRunning },
            unconfirmed_releases,
        })
    });
    let stopped = tokio::select! {
        stopped = &mut served => stopped?,
        // Counted while the executors run: they repeat the releases.
        () = frame.stop.second.cancelled() => {
            GatewayStop { kind: StopKind::AtOnce, unconfirmed_releases: gate.unconfirmed_releases() }
        }
    };
    // Ends the executors, and with them the requests that still run.
    drop(served);
    if !matches!(stopped.kind, StopKind::AtOnce) {
        frame.end_export().await;
    }
    let is_written = logs::end_with(shutdown.left(), || {
        logs::report_missing();
        log_end(stopped, &gate, config.data_dir.as_deref());
    });
    match stopped.kind {
        StopKind::AtOnce => std::process::exit(1),
        StopKind::Idle | StopKind::StillRunning if is_written => Ok(ExitCode::SUCCESS),
        StopKind::Idle | StopKind::StillRunning => Ok(ExitCode::FAILURE),
    }
}

/// What a gateway serves with, beside its gate.
struct GatewayParts {
    health: Arc<StoreHealth>,
    api: AdminApi,
    trust: ClientConfig,
}

/// Serves operators and clients until a stop signal. Requests of clients may still run on the executors that it
/// returns.
async fn listen(
    config: &Config,
    gate: &Gate,
    frame: &ProcessFrame,
    GatewayParts { health, api, trust }: GatewayParts,
) -> Result<Executors, CommandError> {
    let executors = Executors::start().context("the system has no thread left").map_err(CommandError::cannot_start)?;
    let routes = routes(config, gate).map_err(CommandError::usage)?;
    let acceptor = frame.certificate.clone().map(ServerCertificate::acceptor).transpose();
    let acceptor = acceptor.map_err(CommandError::cannot_start)?;
    // Bound before anything is served, so that a taken port prevents the start.
    let (public, private) = (bind(config.listen).await?, frame.bind_admin().await?);
    log_configuration(config);
    open_files::raise_limit(config.limits.connections);
    frame.serve_admin(private, health, api);
    // Each executor has its own connections to the API.
    let forward = || Forward::new(config.upstream.clone(), &trust, config.upstream_timeout);
    let services = executors.handles().map(|executor| (executor, forward()));
    let mut rules = IngressRules::new(routes, protected_fields(config), config.limits);
    rules.trusted = config.trusted_proxies.clone();
    rules.tenant = tenant(&config.tenant);
    rules.problem_template = config.problem_template.clone();
    rules.cross_origin = Arc::new(CrossOrigin::new(config.allowed_origins.clone()));
    let server = GatewayServer::new(services, rules).tls(acceptor);
    let stopping = async {
        frame.stopping().await;
        // Another gateway may give them the answer already, and the stop must not take as long as they would wait.
        gate.end_waits();
    };
    server.serve_until(stopping, public, frame.shutdown.time_for_requests()).await;
    Ok(executors)
}

/// Returns the fields that identify the tenant or the key on some route, or that are compared there.
fn protected_fields(config: &Config) -> ProtectedFields {
    let rules = std::iter::once(&config.rules).chain(config.routes.iter().map(|route| &route.rules));
    let names = rules.flat_map(|rules| {
        let key = match &rules.key {
            KeySource::Field(key) => Some(key.name().clone()),
            KeySource::Body(_) => None,
        };
        key.into_iter().chain(tenant_fields(&rules.tenant)).chain(rules.compared_headers.clone())
    });
    ProtectedFields::with(names).underscores(config.underscore_fields)
}

/// Returns the first field that identifies the tenant and must be there, if one does.
fn tenant(tenant: &Tenant) -> Option<HeaderName> {
    match tenant {
        Tenant::Authorization | Tenant::Header(_) | Tenant::None => tenant_fields(tenant).into_iter().next(),
        Tenant::Parts(parts) => parts.iter().find(|part| part.is_required()).map(|part| part.name().clone()),
    }
}

fn admin_api(config: &Config, store: OpenedStore) -> AdminApi {
    let routes = config.routes.iter().map(|route| {
        let policy = policy_fields(&route.rules.policy);
        json!({ "route": route.name(), "protect": route.protect.to_string(), "policy": policy })
    });
    let policy = PolicyDescription::new("gateway", &config.namespace)
        .with("key", json!(config.protect.to_string()))
        .with("policy", policy_fields(&config.settings.policy))
        .with("routes", routes.collect());
    let records = RecordDesk::new(store, &config.settings.policy, AnswerForm::Responses);
    AdminApi { records: Some(records), ..AdminApi::new(policy, config.admin.audit_file.clone()) }
}

/// Builds one layer for each route and one for all other requests.
fn routes(config: &Config, gate: &Gate) -> Result<Routes, hapax::Error> {
    let others = layer(config, gate, &config.rules, config.protect)?.methods(config.methods.clone());
    let routes = config.routes.iter().map(|route| {
        let layer = layer(config, &gate.with(&route.rules.policy)?, &route.rules, route.protect)?;
        let ConfiguredRoute { methods, pattern, .. } = route.clone();
        let is_protected = route.protect != Protect::Off;
        // A layer that protects no method lets the requests of an unprotected route stream through.
        let layer = layer.methods(if is_protected { methods.clone() } else { Vec::new() });
        Ok(RouteLayer { methods, pattern, layer, is_protected })
    });
    Ok(Routes::new(routes.collect::<Result<_, hapax::Error>>()?, others))
}

fn layer(config: &Config, gate: &Gate, rules: &Rules, protect: Protect) -> Result<IdempotencyLayer, hapax::Error> {
    let layer = IdempotencyLayer::new(gate.clone())
        .tenant(&config.namespace, rules.tenant.clone())?
        .identity(config.identity.clone())
        .fingerprint_with(with_scheme(config, &rules.fingerprint))
        .outcome_with(rules.outcomes.clone())
        .max_request_body(rules.max_request_body)
        .max_stored_body(rules.max_stored_body);
    let layer = match &rules.older_fingerprint {
        Some(older) => layer.older_fingerprint_with(with_scheme(config, older)),
        None => layer,
    };
    let layer = match &rules.key {
        KeySource::Field(key) => layer.key_with(key.clone()),
        KeySource::Body(key) => layer.key_with(key.clone()),
    };
    let layer = rules.store_headers.iter().cloned().try_fold(layer, IdempotencyLayer::store_header)?;
    Ok(match protect {
        Protect::Required => layer,
        Protect::Optional | Protect::Off => layer.key_optional(),
    })
}

/// Returns how payloads are compared. The listener knows the scheme, which the default port of a host depends on.
fn with_scheme(config: &Config, fingerprint: &RawFingerprint) -> RawFingerprint {
    let scheme = if config.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
    fingerprint.clone().scheme(scheme)
}

/// Logs the addresses and routes, and each setting that weakens the protection.
fn log_configuration(config: &Config) {
    let Config { listen, upstream, protect, .. } = config;
    let admin = config.admin.listen;
    for route in &config.routes {
        tracing::info!(protect = %route.protect, from = %route.table.line, "route {}", route.name());
    }
    let methods: Vec<_> = config.methods.iter().map(Method::as_str).collect();
    let (upstream, routes) = (&upstream.authority, config.routes.len());
    let (store, on_lapse) = (config.store.place(), on_lapse(&config.settings.policy.on_lapse));
    tracing::info!(
        version = VERSION, %listen, %admin, %upstream, %store, on_lapse, key = %protect, routes,
        "{} are protected", methods.join(" and ")
    );
    if matches!(AdminAccess::new(&config.admin), AdminAccess::NoClient) {
        let paths = "/metrics and the admin API are";
        tracing::warn!("{paths} disabled, because other hosts can connect to {admin}; set --admin-token-file");
    }
    if matches!(config.rules.policy.on_store_down, OnStoreDown::Pass(_)) {
        tracing::warn!("while the store is down, every copy of a request runs (--when-store-down pass)");
    }
    match config.tenant {
        Tenant::Authorization => tracing::info!(
            "tenants are identified by the Authorization field; a retry with a renewed credential is a new request. \
             If credentials are renewed, use --tenant header:NAME. A replay does not ask the API whether the \
             credential still holds"
        ),
        Tenant::None => {
            tracing::warn!("all callers share keys and can get each other's answers (--tenant none)");
        }
        Tenant::Header(ref name) => {
            tracing::info!(%name, "tenants are identified by this header; only a trusted proxy may set it");
        }
        Tenant::Parts(_) => {
            let names: Vec<_> = tenant_fields(&config.tenant).iter().map(ToString::to_string).collect();
            tracing::info!(names = names.join(","), "tenants are identified by these header fields together");
        }
    }
}

#[cfg(test)]
mod tests;

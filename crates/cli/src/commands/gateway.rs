use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use hapax::http::{Grammar, IdempotencyLayer, KeyField, Tenant, TenantScope};
use hapax::journal::{FileJournal, FileJournalSettings};
use hapax::runtime::{Runtime, Tokio};
use hapax::store::Severity;
use hapax::{Gate, Identity, OnBusy, OnLapse, Repeatable, Settings};
use http::HeaderName;
use http::uri::{Scheme, Uri};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tower_layer::Layer;

use crate::commands::Failure;
use crate::gateway::{
    Forward, Kept, LIMITS, Limits, Published, Server, Upstream, admin, descriptors, metrics, stop_signal, tls,
};
use crate::wiring::{self, Opened, SCHEMES, StoreUrl};

/// What `hapax gateway` takes.
#[derive(Args, Clone, Debug)]
#[command(after_help = LIMITS)]
pub(crate) struct GatewayArgs {
    /// The API to stand in front of, http://HOST:PORT or https://HOST:PORT.
    #[arg(long, env = "HAPAX_UPSTREAM", value_name = "URL", value_parser = upstream)]
    upstream: Upstream,
    /// Where clients connect.
    #[arg(long, env = "HAPAX_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Where /healthz, /readyz and /metrics are answered.
    #[arg(long, env = "HAPAX_ADMIN", value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    admin: SocketAddr,
    #[arg(long, env = "HAPAX_STORE", value_name = "URL", default_value = "sqlite://hapax.db", help = format!("Where records are kept: {SCHEMES}"))]
    store: StoreUrl,
    /// Where answers are kept that the store does not take; by default beside a SQLite file, FILE.spill. One directory a store.
    #[arg(long, env = "HAPAX_DATA_DIR", value_name = "DIRECTORY")]
    data_dir: Option<PathBuf>,
    /// The service whose keys these are; services that share a store have one each.
    #[arg(long, env = "HAPAX_NAMESPACE", value_name = "NAME", default_value = "default")]
    namespace: String,
    /// How long a request is believed to run without a sign of life; at least 1s.
    #[arg(long, env = "HAPAX_LEASE", value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    lease: Duration,
    /// How long an answer is given again.
    #[arg(long, env = "HAPAX_RETENTION", value_name = "DURATION", default_value = "24h", value_parser = humantime::parse_duration)]
    retention: Duration,
    /// What a retry gets after an attempt ended without a word, when it may have had its effect.
    #[arg(long, env = "HAPAX_ON_LAPSE", value_name = "POLICY", default_value = "hold")]
    on_lapse: OnLapseArg,
    /// Whose key a request carries: `authorization` (a hash of its Authorization field; a renewed credential is a new
    /// caller), `header:NAME` (set by a proxy that you trust), or `none` (all callers share keys and answers).
    #[arg(long, env = "HAPAX_TENANT", value_name = "SOURCE", default_value = "authorization", value_parser = tenant)]
    tenant: Tenant,
    /// How long a copy waits for the answer of the first while that runs; 0s tells it to come back at once.
    #[arg(long, env = "HAPAX_WAIT", value_name = "DURATION", default_value = "0s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// Whether a POST or PATCH must have a key.
    #[arg(long, env = "HAPAX_KEY", value_name = "RULE", default_value = "required")]
    key: KeyRule,
    /// How a key may be written.
    #[arg(long, env = "HAPAX_KEY_GRAMMAR", value_name = "GRAMMAR", default_value = "lenient")]
    key_grammar: GrammarArg,
    /// The longest body of a protected request, in bytes; a longer one is answered with 413.
    #[arg(long, env = "HAPAX_MAX_REQUEST_BODY", value_name = "BYTES", default_value_t = 1 << 20)]
    max_request_body: usize,
    /// The longest body of an answer that is kept, in bytes; a longer one is passed on, and its copies get 409.
    #[arg(long, env = "HAPAX_MAX_STORED_BODY", value_name = "BYTES", default_value_t = 1 << 20)]
    max_stored_body: usize,
    /// A header to keep with an answer beside the usual ones; may be given many times.
    #[arg(long, env = "HAPAX_STORE_HEADER", value_name = "NAME", value_delimiter = ',')]
    store_header: Vec<HeaderName>,
    /// How long the API may take to answer; after that the outcome is unknown.
    #[arg(long, env = "HAPAX_UPSTREAM_TIMEOUT", value_name = "DURATION", default_value = "60s", value_parser = some_time)]
    upstream_timeout: Duration,
    /// The certificate with which clients are served by TLS, with its chain, in PEM; HTTP/2 is spoken then, too.
    #[arg(long, env = "HAPAX_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key, in PEM.
    #[arg(long, env = "HAPAX_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The authorities that may have signed the certificate of an https:// API, in PEM; by default those of the system.
    #[arg(long, env = "HAPAX_UPSTREAM_CA", value_name = "FILE")]
    upstream_ca: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnLapseArg {
    /// 409 `outcome-unknown` until somebody finds out: never a second effect
    Hold,
    /// Run it again: only where a second effect does no harm
    Retry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KeyRule {
    /// 400 without one
    Required,
    /// Without one it is passed on unprotected
    Optional,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum GrammarArg {
    /// A quoted string, or the bare value; both are the same key
    Lenient,
    /// The quoted string alone, as the draft wants it
    Strict,
}

fn upstream(url: &str) -> Result<Upstream, anyhow::Error> {
    const WRITE: &str = "write http://HOST:PORT or https://HOST:PORT";
    let uri: Uri = url.parse().context(WRITE)?;
    let scheme = match uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS => scheme.clone(),
        _ => bail!("the API is spoken to in HTTP; {WRITE}"),
    };
    if uri.path() != "/" || uri.query().is_some() {
        bail!("a path is taken from each request; {WRITE} alone");
    }
    let authority = uri.authority().cloned().context(WRITE)?;
    if authority.as_str().contains('@') {
        bail!("credentials are passed on from each request; {WRITE} alone");
    }
    Ok(Upstream { scheme, authority })
}

fn some_time(duration: &str) -> Result<Duration, anyhow::Error> {
    match humantime::parse_duration(duration)? {
        Duration::ZERO => bail!("no answer comes in no time; write 60s for instance"),
        duration => Ok(duration),
    }
}

fn tenant(source: &str) -> Result<Tenant, anyhow::Error> {
    match source.split_once(':') {
        None if source == "authorization" => Ok(Tenant::Authorization),
        None if source == "none" => Ok(Tenant::None),
        Some(("header", name)) => Ok(Tenant::Header(name.parse().context("the name of the header is malformed")?)),
        _ => bail!("write authorization, header:NAME or none"),
    }
}

/// How long a shutdown waits for what still runs.
const DRAIN: Duration = Duration::from_secs(30);

/// Runs until it is told to stop.
pub(crate) async fn run(args: GatewayArgs) -> Result<ExitCode, Failure> {
    let stop = stop_signal().map_err(Failure::cannot_start)?;
    let runtime: Arc<dyn Runtime> = Arc::new(Tokio::current());
    let settings = settings(&args).map_err(Failure::usage)?;
    let scope = TenantScope::new(&args.namespace, args.tenant.clone(), Identity::plain()).map_err(Failure::usage)?;
    let metrics = metrics::install().map_err(Failure::cannot_start)?;
    let opened = wiring::open(&args.store, Arc::clone(&runtime))?;
    check(&opened).await?;
    let journal = open_journal(&args, &runtime)?;
    let mut gate = Gate::builder(Arc::clone(&opened.store), settings).runtime(runtime);
    if let Some(journal) = &journal {
        gate = gate.journal(Arc::clone(journal) as _);
    }
    let gate = gate.build().map_err(Failure::cannot_start)?;
    let layer = layer(&args, &gate, scope).map_err(Failure::usage)?;
    let service = Published::new(layer.page(), layer.layer(forward(&args)?));

    let (public, admin) = (bind(args.listen).await?, bind(args.admin).await?);
    explain(&args);
    let limits = Limits::default();
    descriptors::provide(limits.connections);
    let inspect = Arc::clone(&opened.inspect);
    tokio::spawn(admin::serve(admin, admin::Admin { inspect, metrics }));
    tokio::spawn(admin::sweep(Arc::clone(&opened.inspect)));
    let tenant = if let Tenant::Header(name) = &args.tenant { Some(name) } else { None };
    Server::new(service, Kept::with(tenant), limits).tls(acceptor(&args)?).until(stop, public, DRAIN).await;

    if gate.drain(DRAIN).await {
        tracing::info!("stopped; nothing was left running");
    } else {
        tracing::warn!("stopped; what still ran will lapse, and answer as the policy says");
    }
    if let Some(journal) = journal {
        journal.close().await;
    }
    Ok(ExitCode::SUCCESS)
}

fn forward(args: &GatewayArgs) -> Result<Forward, Failure> {
    let is_secure = args.upstream.scheme == Scheme::HTTPS;
    let trust = if is_secure { tls::client(args.upstream_ca.as_deref()) } else { tls::unused() };
    Ok(Forward::new(args.upstream.clone(), trust.map_err(Failure::cannot_start)?, args.upstream_timeout))
}

/// How clients are served by TLS, if they are.
fn acceptor(args: &GatewayArgs) -> Result<Option<TlsAcceptor>, Failure> {
    let files = args.tls_cert.as_deref().zip(args.tls_key.as_deref());
    files.map(|(cert, key)| tls::acceptor(cert, key)).transpose().map_err(Failure::cannot_start)
}

/// Where answers are kept that the store does not take.
fn open_journal(args: &GatewayArgs, runtime: &Arc<dyn Runtime>) -> Result<Option<Arc<FileJournal>>, Failure> {
    let Some(directory) = args.data_dir.clone().or_else(|| args.store.data_dir()) else {
        return Ok(None);
    };
    let journal = FileJournal::open(&directory, Arc::clone(runtime), FileJournalSettings::default());
    journal.map(|journal| Some(Arc::new(journal))).map_err(Failure::cannot_start)
}

fn settings(args: &GatewayArgs) -> Result<Settings, hapax::Error> {
    let mut settings = Settings::default();
    settings.policy.lease = args.lease;
    settings.policy.retention = args.retention;
    settings.policy.on_lapse = match args.on_lapse {
        OnLapseArg::Hold => OnLapse::Hold,
        OnLapseArg::Retry => OnLapse::Retry(Repeatable::declared("--on-lapse retry")),
    };
    if !args.wait.is_zero() {
        settings.policy.on_busy = OnBusy::Wait(args.wait);
    }
    settings.validate()?;
    Ok(settings)
}

/// The contract that these flags ask for.
fn layer(args: &GatewayArgs, gate: &Gate, scope: TenantScope) -> Result<IdempotencyLayer, hapax::Error> {
    let grammar = match args.key_grammar {
        GrammarArg::Lenient => Grammar::Lenient,
        GrammarArg::Strict => Grammar::Strict,
    };
    let layer = IdempotencyLayer::new(gate.clone())
        .scope(scope)
        .key(KeyField::default().grammar(grammar))
        .max_request_body(args.max_request_body)
        .max_stored_body(args.max_stored_body);
    let layer = args.store_header.iter().cloned().try_fold(layer, IdempotencyLayer::store_header)?;
    Ok(if args.key == KeyRule::Optional { layer.key_optional() } else { layer })
}

async fn check(opened: &Opened) -> Result<(), Failure> {
    for finding in opened.inspect.check().await.map_err(Failure::cannot_start)? {
        match finding.severity {
            Severity::Refuse => return Err(Failure::cannot_start(anyhow!(finding.message))),
            Severity::Warn => tracing::warn!("{}", finding.message),
        }
    }
    Ok(())
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    let bound = TcpListener::bind(address).await;
    bound.with_context(|| format!("cannot listen on {address}; is it taken?")).map_err(Failure::cannot_start)
}

fn explain(args: &GatewayArgs) {
    tracing::info!(listen = %args.listen, admin = %args.admin, upstream = %args.upstream.authority, "POST and PATCH are protected");
    match args.tenant {
        Tenant::Authorization => tracing::info!(
            "keys belong to the Authorization field; a retry with a renewed credential is a new request (--tenant header:NAME is the remedy)"
        ),
        Tenant::None => {
            tracing::warn!("all callers share their keys and can be given each other's answers (--tenant none)");
        }
        Tenant::Header(ref name) => {
            tracing::info!(%name, "keys belong to the tenant in this header; only a trusted proxy may set it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_scheme_and_an_authority() {
        assert_eq!(upstream("http://127.0.0.1:9000").unwrap().authority, "127.0.0.1:9000");
        assert_eq!(upstream("https://api.example").unwrap().scheme, Scheme::HTTPS);
        for url in ["127.0.0.1:9000", "ftp://api.example", "http://api.example/v1", "http://api.example?x"] {
            let error = format!("{:#}", upstream(url).unwrap_err());
            assert!(error.contains("http://HOST:PORT"), "{url}: {error}");
        }
    }

    #[test]
    fn a_tenant_has_one_of_three_sources() {
        assert_eq!(tenant("authorization").unwrap(), Tenant::Authorization);
        assert_eq!(tenant("header:X-Account").unwrap(), Tenant::Header("x-account".parse().unwrap()));
        assert_eq!(tenant("none").unwrap(), Tenant::None);
        for source in ["", "header", "header:", "header:a b", "nobody"] {
            assert!(tenant(source).is_err(), "{source}");
        }
    }
}

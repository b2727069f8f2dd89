//! The process `hapax relay`, from its start to its stop.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use hapax::Store;
use hapax::ledger::Event;
use hapax::outbox::Sink;
use hapax::relay::{Relay, RelayEnd};
use hapax::runtime::{Runtime, Tokio};
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::admin::access::AdminAccess;
use crate::admin::api::audit::AuditFile;
use crate::admin::api::{AdminApi, PolicyDescription};
use crate::admin::listener::{self, AdminState};
use crate::config::{self, Configured, Flags, HasFlags, RELAY_NAMESPACE, RelayConfig};
use crate::relay::health::RelayHealth;
use crate::relay::opening::{self, SinkSlot};
use crate::serve::bind::bind;
use crate::serve::exit::CommandError;
use crate::serve::logs::{self, Log};
use crate::serve::metrics::{self, describe_relay, register_relay};
use crate::serve::otlp;
use crate::serve::otlp::sink::traced;
use crate::serve::shutdown::Shutdown;
use crate::serve::signals::{self, Reloads, StopSignals};
use crate::store::checks::{CheckFailure, StoreChecks, usable};
use crate::store::sweep::sweep;
use crate::store::wiring::outbox::{self, OpenedOutbox};
use crate::store::wiring::{self, OpenedStore};

/// The arguments of `hapax relay`.
pub(crate) type RelayArgs = Flags<RelayFlags>;

#[derive(Debug)]
pub(crate) struct RelayFlags;

impl HasFlags for RelayFlags {
    const COMMAND: Configured = Configured::Relay;
    const CHECK_HELP: &str = "Check the configuration, the database and the sink, print what they are, and exit";
    const AFTER_HELP: &str = "\
Examples:
  hapax relay --database postgres://relay@db.example/shop --sink nats://nats.example
  hapax relay --database postgres://relay@db.example/shop --sink kafka://kafka.example --topic-template 'shop.{topic}'
  hapax relay --database sqlite://shop.db --sink 'sqlite://orders.db?queue=orders'
  hapax relay --database sqlite://shop.db --sink https://shop.example/hooks --webhook-secret-file secret

Events of one ordering key are published one after the other, in the order of their rows. An event that the sink refuses
for good parks its key: see `hapax outbox`. After a crash an event is published again under the same id; the log says at
the start for how long the sink recognizes that. A consumer with a ledger always does.";
}

/// Runs the relay until a stop signal.
pub(crate) async fn run(args: RelayArgs) -> Result<ExitCode, CommandError> {
    // First of all, because an unhandled SIGHUP ends the process.
    let hangups = signals::hangups().map_err(CommandError::cannot_start)?;
    let config = RelayConfig::load(&args).map_err(CommandError::usage)?;
    if args.check {
        return check(&config).await;
    }
    let stop = StopSignals::listen(config.relay.drain).map_err(CommandError::cannot_start)?;
    let settings = config.log.clone();
    let log = spawn_blocking(move || Log::start(&settings)).await.map_err(CommandError::cannot_start)?;
    let log = log.map_err(CommandError::cannot_start)?;
    for (name, guess) in config::mistyped(std::env::vars_os()) {
        tracing::warn!("{name} is not a setting and is ignored; did you mean {guess}?");
    }
    let log = config.log.file.is_some().then_some(move || log.reopen());
    tokio::spawn(signals::at_each(hangups, Reloads { log, certificate: None::<fn()> }));
    tokio::select! {
        ended = publish(&config, &stop) => ended,
        () = stop.second.cancelled() => {
            logs::end_with(Duration::ZERO, logs::report_missing);
            std::process::exit(1)
        }
        () = drained(&stop, config.relay.drain) => {
            tracing::warn!("stopped at the end of --drain; what is not confirmed is published again under its ids");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// How much of the drain is left to give the buckets back, so that other relays go on with them at once, and to close
/// the sink.
const LONGEST_GIVE_BACK: Duration = Duration::from_secs(5);

/// How long events in flight may take during a drain of this length.
fn time_in_flight(drain: Duration) -> Duration {
    drain.saturating_sub(LONGEST_GIVE_BACK.min(drain / 4))
}

/// Waits for the end of the drain.
async fn drained(stop: &StopSignals, drain: Duration) {
    stop.first.cancelled().await;
    tokio::time::sleep(drain).await;
}

/// The database of a relay.
struct OpenedRelay {
    outbox: OpenedOutbox,
    store: OpenedStore,
    runtime: Arc<dyn Runtime>,
}

impl OpenedRelay {
    /// Opens the database, and creates its tables if they are missing and the role may.
    fn create(config: &RelayConfig) -> Result<Self, CommandError> {
        let runtime = Arc::new(Tokio::current()) as Arc<dyn Runtime>;
        let outbox = outbox::create(&config.database, Arc::clone(&runtime), config.has_notifications)?;
        let store = wiring::open(&config.database, Arc::clone(&runtime))?;
        Ok(Self { outbox, store, runtime })
    }

    fn health(&self, sink: &Arc<SinkSlot>) -> RelayHealth {
        let checks = StoreChecks {
            store: Arc::clone(&self.store.store),
            inspect: Arc::clone(&self.store.inspect),
            runtime: Arc::clone(&self.runtime),
            namespace: RELAY_NAMESPACE.to_owned(),
            secret: None,
            timeout: DATABASE_TIMEOUT,
        };
        RelayHealth { checks, outbox: Arc::clone(&self.outbox.outbox), sink: Arc::clone(sink) }
    }

    fn relay(self, config: &RelayConfig, sink: Arc<dyn Sink>) -> Result<Relay, CommandError> {
        let store: Arc<dyn Store> = self.store.store;
        let relay = Relay::builder(self.outbox.outbox, store, sink).upkeep(self.outbox.upkeep);
        let mut settings = config.relay;
        settings.drain = time_in_flight(settings.drain);
        relay.settings(settings).runtime(self.runtime).build().map_err(CommandError::usage)
    }
}

/// How long the database may take for one call of a check.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Publishes events until a stop signal.
async fn publish(config: &RelayConfig, stop: &StopSignals) -> Result<ExitCode, CommandError> {
    let metrics = metrics::install().map_err(CommandError::cannot_start)?;
    describe_relay();
    let private = bind(config.admin.listen).await?;
    let opened = OpenedRelay::create(config)?;
    register_relay(&config.sink.place.name(), config.sink.place.endpoints());
    let slot = Arc::new(SinkSlot::default());
    let health = Arc::new(opened.health(&slot));
    let shutdown = Arc::new(Shutdown::new(Duration::ZERO, config.relay.drain));
    let (access, api) = (AdminAccess::new(&config.admin), Arc::new(admin_api(config, &opened)));
    let state = AdminState { health: Arc::clone(&health) as _, metrics, access, api, shutdown: Arc::clone(&shutdown) };
    // From here on /readyz tells what the relay waits for.
    tokio::spawn(listener::serve(private, state));
    let start = async {
        let sink = slot.open(&config.sink, &opened.runtime).await?;
        refuse_short_retention(config, &*sink)?;
        health.check_start().await.map_err(CommandError::cannot_start)?;
        Ok(sink)
    };
    let sink = tokio::select! {
        sink = start => sink?,
        () = stop.first.cancelled() => return Ok(ExitCode::SUCCESS),
    };
    tokio::spawn(sweep(Arc::clone(&opened.store.inspect)));
    log_start(config, &*sink);
    let ended = opened.relay(config, traced(sink))?.run(shutdown.wait(stop.first.cancelled())).await;
    otlp::end_within(shutdown.left_for_requests()).await;
    match ended {
        Ok(RelayEnd { unconfirmed: 0 }) => Ok(ExitCode::SUCCESS),
        Ok(RelayEnd { unconfirmed }) => {
            tracing::warn!(unconfirmed, "stopped with events that are not confirmed; they are published again");
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Err(CommandError::failed(error.into())),
    }
}

fn refuse_short_retention(config: &RelayConfig, sink: &dyn Sink) -> Result<(), CommandError> {
    let Some((kept, window)) = config.relay.retention.zip(sink.window()).filter(|(kept, window)| kept < window) else {
        return Ok(());
    };
    let (kept, window) = (in_words(kept), in_words(window));
    Err(CommandError::usage(anyhow!(
        "retention {kept} is shorter than the {window} in which the sink recognizes a repeated event; lengthen \
         retention: from these rows a broker that lost events is filled again"
    )))
}

fn admin_api(config: &RelayConfig, opened: &OpenedRelay) -> AdminApi {
    let policy = PolicyDescription::new("relay", RELAY_NAMESPACE)
        .with("sink", json!(config.sink.place.name()))
        .with("retention_seconds", json!(config.relay.retention.map(|kept| kept.as_secs())))
        .with("max_in_flight", json!(config.relay.max_in_flight));
    AdminApi {
        process: "relay",
        records: None,
        dead: None,
        outbox: Some(Arc::clone(&opened.outbox.upkeep)),
        policy: policy.into_json(),
        audit: config.admin.audit_file.clone().map(AuditFile::new),
    }
}

/// Prints the configuration, and checks the database and the sink. Writes nothing.
async fn check(config: &RelayConfig) -> Result<ExitCode, CommandError> {
    let mut text = config.show();
    // An error means that the reader has closed the pipe.
    let _ = io::stdout().write_all(text.as_bytes());
    text.clear();
    let runtime = Arc::new(Tokio::current()) as Arc<dyn Runtime>;
    let outbox = outbox::open(&config.database, Arc::clone(&runtime)).await?;
    let store = wiring::open_existing(&config.database, Arc::clone(&runtime)).await?;
    let sink = opening::open_for_check(&config.sink, &runtime).await?;
    refuse_short_retention(config, &*sink)?;
    let records = match &store {
        Some(store) => usable(store.inspect.check()).await,
        // The relay creates them at its start.
        None => Ok(Vec::new()),
    };
    for (what, checked) in [
        ("outbox", usable(outbox.outbox.check()).await),
        ("records in its database", records),
        ("sink", usable(sink.check()).await),
    ] {
        let cannot_start = |failure: CheckFailure| CommandError::cannot_start(failure.into_error().context(what));
        for finding in checked.map_err(cannot_start)? {
            text += &format!("Note: the {what}: {}\n", finding.message);
        }
    }
    text += &format!("\nsink {}: {}\n", sink.name(), promise(&*sink));
    let retention = config.relay.retention.map_or("for ever".into(), |kept| format!("for {}", in_words(kept)));
    text += &format!("published rows are kept {retention}\nok\n");
    let _ = io::stdout().write_all(text.as_bytes());
    sink.close().await;
    Ok(ExitCode::SUCCESS)
}

/// What the sink takes, and what it recognizes.
fn promise(sink: &dyn Sink) -> String {
    let window = match sink.window() {
        Some(window) => format!("recognizes a repeated event for {}", in_words(window)),
        None => "recognizes no repeated event; its consumers need a ledger".to_owned(),
    };
    format!("takes events up to {} bytes; {window}", sink.max_len())
}

fn in_words(duration: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(duration)
}

/// Logs what the relay and the sink promise.
fn log_start(config: &RelayConfig, sink: &dyn Sink) {
    let (name, lease) = (&**sink.name(), in_words(config.relay.lease.into()));
    let admin = config.admin.listen;
    tracing::info!(sink = name, %lease, %admin, "events are published; the sink {}", promise(sink));
    if sink.max_len() < Event::MAX_LEN {
        let (takes, most) = (sink.max_len(), Event::MAX_LEN);
        tracing::warn!(takes, most, "the sink takes smaller events than the outbox: a larger one parks its key");
    }
}

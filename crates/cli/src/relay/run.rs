//! The process `hapax relay`, from its start to its stop.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use hapax::Store;
use hapax::ledger::Event;
use hapax::outbox::Sink;
use hapax::relay::{Relay, RelayEnd};
use hapax::runtime::{Runtime, Tokio};
use hapax_systems::{OpenedOutbox, OpenedStore};
use serde_json::json;
use tokio::signal::unix::Signal;

use crate::admin::api::{AdminApi, PolicyDescription};
use crate::config::{RELAY_NAMESPACE, RelayConfig};
use crate::relay::health::RelayHealth;
use crate::relay::trial::WriteTrial;
use crate::serve::exit::CommandError;
use crate::serve::frame::{FrameSettings, ProcessFrame, print_checked};
use crate::serve::metrics::{describe_relay, register_relay};
use crate::serve::otlp::traced;
use crate::serve::signals::StopSignals;
use crate::store::checks::{CheckFailure, StoreChecks, usable};
use crate::store::findings::FindingLog;
use crate::store::opening::{open, open_existing, open_outbox};
use crate::store::sweep::sweep;
use crate::store::waiting::{SinkSlot, open_for_check};
use crate::version::VERSION;

/// Runs the relay until a stop signal.
pub(crate) async fn run(config: RelayConfig, hangups: Signal) -> Result<ExitCode, CommandError> {
    let Some((frame, ())) = ProcessFrame::start(hangups, frame_settings(&config), || Ok(())).await? else {
        return Ok(ExitCode::SUCCESS);
    };
    tokio::select! {
        ended = publish(&config, &frame) => ended,
        () = frame.stop.second.cancelled() => frame.exit_at_once(),
        () = drained(&frame.stop, config.relay.drain) => {
            tracing::warn!("stopped at the end of --drain; what is not confirmed is published again under its ids");
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn frame_settings(config: &RelayConfig) -> FrameSettings {
    FrameSettings {
        log: config.log.clone(),
        admin: config.admin.clone(),
        tls: None,
        drain_delay: Duration::ZERO,
        drain: config.relay.drain,
        nothing_done: "no event was published",
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
        let outbox = config.database.outbox(Arc::clone(&runtime), config.has_notifications)?;
        let store = open(&config.database, Arc::clone(&runtime))?;
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
        let log = FindingLog::of("what the relay needs");
        RelayHealth {
            checks,
            outbox: Arc::clone(&self.outbox.outbox),
            sink: Arc::clone(sink),
            log,
            trial: WriteTrial::default(),
        }
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
async fn publish(config: &RelayConfig, frame: &ProcessFrame) -> Result<ExitCode, CommandError> {
    describe_relay();
    let private = frame.bind_admin().await?;
    let opened = OpenedRelay::create(config)?;
    register_relay(&config.sink.name(), config.sink.endpoints());
    let slot = Arc::new(SinkSlot::of("sink"));
    let health = Arc::new(opened.health(&slot));
    // From here on /readyz tells what the relay waits for.
    frame.serve_admin(private, Arc::clone(&health) as _, admin_api(config, &opened));
    let start = async {
        let sink = slot.open(&config.sink, &opened.runtime).await?;
        refuse_short_retention(config, &*sink)?;
        health.check_start().await.map_err(CommandError::cannot_start)?;
        Ok::<_, CommandError>(sink)
    };
    let sink = tokio::select! {
        sink = start => sink?,
        () = frame.stop.first.cancelled() => return Ok(ExitCode::SUCCESS),
    };
    tokio::spawn(sweep(Arc::clone(&opened.store.inspect)));
    tokio::spawn(async move { health.run().await });
    log_start(config, &*sink);
    let ended = opened.relay(config, traced(sink))?.run(frame.stopping()).await;
    frame.end_export().await;
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
        .with("sink", json!(config.sink.name()))
        .with("retention_seconds", json!(config.relay.retention.map(|kept| kept.as_secs())))
        .with("max_in_flight", json!(config.relay.max_in_flight));
    let api = AdminApi::new(policy, config.admin.audit_file.clone());
    AdminApi { outbox: Some(opened.outbox.clone()), ..api }
}

/// Prints the configuration, and checks the database and the sink. Writes nothing.
pub(crate) async fn check(config: &RelayConfig) -> Result<ExitCode, CommandError> {
    print_checked(&config.show());
    let mut text = String::new();
    let runtime = Arc::new(Tokio::current()) as Arc<dyn Runtime>;
    let outbox = open_outbox(&config.database, Arc::clone(&runtime)).await?;
    let store = open_existing(&config.database, Arc::clone(&runtime)).await?;
    let sink = open_for_check(&config.sink, &runtime).await?;
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
    let undeliverable = sink.undeliverable().await;
    if !undeliverable.is_empty() {
        return Err(CommandError::cannot_start(anyhow!("nothing can be delivered: {}", undeliverable.join("; "))));
    }
    text += &format!("\nsink {}: {}\n", sink.name(), promise(&*sink));
    let retention = config.relay.retention.map_or("for ever".into(), |kept| format!("for {}", in_words(kept)));
    text += &format!("published rows are kept {retention}\nok\n");
    let printed = print_checked(&text);
    sink.close().await;
    Ok(printed)
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
    let (version, database) = (VERSION, config.database.place());
    let promise = promise(sink);
    tracing::info!(version, %database, sink = name, %lease, %admin, "events are published; the sink {promise}");
    if sink.max_len() < Event::MAX_LEN {
        let (takes, most) = (sink.max_len(), Event::MAX_LEN);
        tracing::warn!(takes, most, "the sink takes smaller events than the outbox: a larger one parks its key");
    }
}

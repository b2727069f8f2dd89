//! The log of the process on standard error.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Libraries whose debug logs contain keys and credentials: they stay at `warn` whatever HAPAX_LOG says.
const LEAKY_LIBRARIES: [&str; 4] = ["h2=warn", "hyper=warn", "hyper_util=warn", "rustls=warn"];

/// Starts the log: text on a terminal, JSON otherwise.
pub(crate) fn start() {
    let mut level = EnvFilter::try_from_env("HAPAX_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    for library in LEAKY_LIBRARIES {
        level = level.add_directive(library.parse().expect("a valid directive"));
    }
    let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let logs = match std::io::stderr().is_terminal() {
        true => logs.with_target(false).boxed(),
        false => logs.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(logs.with_filter(StoreErrorLimit)).with(level).init();
}

/// Logs one store error per second and counts the rest: in an outage every request causes one. The access log has an
/// entry for each request anyway.
struct StoreErrorLimit;

/// The module that logs store errors, at the level `ERROR`.
const STORE_ERROR_TARGET: &str = "hapax_http::answer";

/// Store errors of the current second, including the one that was logged.
static STORE_ERRORS: AtomicU64 = AtomicU64::new(0);

const SECOND: Duration = Duration::from_secs(1);

impl<S: Subscriber> Filter<S> for StoreErrorLimit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let is_store_error =
            event.metadata().target() == STORE_ERROR_TARGET && *event.metadata().level() == Level::ERROR;
        !is_store_error || STORE_ERRORS.fetch_add(1, Ordering::Relaxed) == 0
    }
}

/// Logs each second how many store errors were left out, until the process ends.
pub(crate) async fn report_omitted_errors() {
    loop {
        sleep(SECOND).await;
        let more = STORE_ERRORS.swap(0, Ordering::Relaxed).saturating_sub(1);
        if more > 0 {
            tracing::error!(more, "the store cannot be used; this many further requests failed in the last second");
        }
    }
}

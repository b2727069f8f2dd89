//! What the process writes to standard error.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// What they trace has keys and credentials in it, whatever level somebody asks for.
const LOGS_SECRETS: [&str; 4] = ["h2=warn", "hyper=warn", "hyper_util=warn", "rustls=warn"];

/// For people on a terminal, as JSON for machines otherwise.
pub(crate) fn start() {
    let mut level = EnvFilter::try_from_env("HAPAX_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    for library in LOGS_SECRETS {
        level = level.add_directive(library.parse().expect("a directive"));
    }
    let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let logs = match std::io::stderr().is_terminal() {
        true => logs.with_target(false).boxed(),
        false => logs.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(logs.with_filter(StoreErrorLimit)).with(level).init();
}

/// Of the line that says why the store refused a request, the first of each second is written, and the others are counted: in an outage
/// there is one for every request. Each request has its line in the access log.
struct StoreErrorLimit;

/// The module that writes such lines, and no others.
const REFUSALS: &str = "hapax_http::answer";

/// Those of this second, with the one that was written.
static REFUSED: AtomicU64 = AtomicU64::new(0);

const SECOND: Duration = Duration::from_secs(1);

impl<S: Subscriber> Filter<S> for StoreErrorLimit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let is_refusal = event.metadata().target() == REFUSALS && *event.metadata().level() == Level::ERROR;
        !is_refusal || REFUSED.fetch_add(1, Ordering::Relaxed) == 0
    }
}

/// Says every second how many lines were not written. Goes on until the process ends.
pub(crate) async fn count_what_is_held_back() {
    loop {
        sleep(SECOND).await;
        let more = REFUSED.swap(0, Ordering::Relaxed).saturating_sub(1);
        if more > 0 {
            tracing::error!(more, "the store cannot be used: more requests were refused");
        }
    }
}

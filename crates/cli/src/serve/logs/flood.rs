//! The limit on repeated lines. In an outage of the store or of the API, every request logs the same event.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::LazyLock;
use std::time::Duration;

use hapax::telemetry::AUDIT;
use parking_lot::Mutex;
use tokio::time::sleep;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

use crate::serve::logs::queue::LostLines;
use crate::serve::logs::{ACCESS, output};

/// How often one event is logged in a second.
const LINES_PER_SECOND: u64 = 10;

const SECOND: Duration = Duration::from_secs(1);

/// The target of the lines that count the others.
const TARGET: &str = "hapax::suppressed";

/// The events of the current second, by their place in the source.
static EVENTS: LazyLock<Mutex<HashMap<Identifier, EventCount>>> = LazyLock::new(Mutex::default);

struct EventCount {
    seen: u64,
    level: Level,
    /// The message of the first line that was left out.
    message: String,
}

/// Lets at most ten lines a second of each event through, and counts the others. The access log has a line for each
/// request, whatever its number, and so have debug logs. An event that may be the last trace of an operation is logged
/// always.
pub(super) struct FloodLimit;

impl<S: Subscriber> Filter<S> for FloodLimit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || [ACCESS, AUDIT, TARGET].contains(&metadata.target()) {
            return true;
        }
        let mut events = EVENTS.lock();
        let unseen = || EventCount { seen: 0, level: *metadata.level(), message: String::new() };
        let count = events.entry(metadata.callsite()).or_insert_with(unseen);
        count.seen += 1;
        if count.seen == LINES_PER_SECOND + 1 {
            event.record(&mut MessageVisitor(&mut count.message));
        }
        count.seen <= LINES_PER_SECOND
    }
}

/// Copies the message of an event.
struct MessageVisitor<'a>(&'a mut String);

impl Visit for MessageVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string cannot fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}

/// Reports each second which lines are missing, until the process ends.
pub(super) async fn report_every_second() {
    loop {
        sleep(SECOND).await;
        report_missing();
    }
}

/// Logs how many lines are missing: those that were left out, and those that were lost.
pub(crate) fn report_missing() {
    report_suppressed();
    if let Some(LostLines { all: lost, audit: lost_audit }) = output::newly_lost() {
        tracing::error!(
            target: TARGET,
            lost,
            lost_audit,
            "lines of the log were lost since the start, because the log was blocked or could not be written"
        );
    }
}

/// Logs how many lines of each event were left out since the last report.
fn report_suppressed() {
    // Released before the report, because the report is an event itself.
    let events = std::mem::take(&mut *EVENTS.lock());
    for EventCount { seen, level, message: event } in events.into_values() {
        let suppressed = seen.saturating_sub(LINES_PER_SECOND);
        match level {
            _ if suppressed == 0 => {}
            Level::ERROR => tracing::error!(target: TARGET, suppressed, event, "lines of an event were left out"),
            Level::WARN => tracing::warn!(target: TARGET, suppressed, event, "lines of an event were left out"),
            _ => tracing::info!(target: TARGET, suppressed, event, "lines of an event were left out"),
        }
    }
}

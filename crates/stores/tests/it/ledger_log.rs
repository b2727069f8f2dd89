//! What a ledger logs and counts when it is opened.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_core::ledger::{Retention, Terms};
use hapax_core::telemetry::names;
use hapax_stores::{PostgresLedger, SqliteLedger, SqlxLedger};
use metrics::{Counter, Gauge, Histogram, KeyName, Recorder, SharedString, Unit};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps the fields of every event.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0.lock().unwrap(), "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_ledger_that_is_opened_logs_how_long_it_keeps_its_rows() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let logged = || std::mem::take(&mut *log.0.lock().unwrap());
    let terms = Terms::new("transfers").unwrap();
    drop(SqliteLedger::new(terms.clone()));
    let text = logged();
    assert!(text.contains("namespace=transfers retention=90 d"), "{text}");
    let forever = terms.retention(Retention::Forever, Duration::ZERO).unwrap();
    drop(PostgresLedger::connect(&"postgres://localhost/shop".parse().unwrap(), forever).unwrap());
    let text = logged();
    assert!(text.contains("namespace=transfers retention=forever"), "{text}");
}

/// Keeps the names of the counters that are registered.
#[derive(Default)]
struct CounterNames(Mutex<Vec<String>>);

impl Recorder for CounterNames {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> Counter {
        self.0.lock().unwrap().push(key.name().to_owned());
        Counter::noop()
    }

    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[tokio::test]
async fn the_counters_of_each_ledger_exist_from_when_it_is_opened() {
    let recorder = CounterNames::default();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let terms = || Terms::new("transfers").unwrap();
    let url = "postgres://localhost/shop".parse().unwrap();
    for (driver, open) in [
        ("SQLite", &(|| drop(SqliteLedger::new(terms()))) as &dyn Fn()),
        ("PostgreSQL", &|| drop(PostgresLedger::connect(&url, terms()).unwrap())),
        ("sqlx", &|| drop(SqlxLedger::new(terms()))),
    ] {
        open();
        assert_eq!(std::mem::take(&mut *recorder.0.lock().unwrap()), [names::CAUGHT, names::UNFINISHED], "{driver}");
    }
}

//! A recorder of the names of counters.

use std::sync::Mutex;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// The counters that exist, each with the values of its labels.
#[derive(Default)]
pub(crate) struct CounterNames(Mutex<Vec<String>>);

impl CounterNames {
    /// A line for each counter, in the order in which they were registered: its name, and its labels as in a query.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Recorder for CounterNames {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels = key.labels().map(|label| format!("{{{}=\"{}\"}}", label.key(), label.value()));
        self.0.lock().unwrap().push(format!("{}{}", key.name(), labels.collect::<String>()));
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

//! What the counter of caught copies counts for claims in a transaction of the caller's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use hapax_core::ledger::{Claimed, Entry, claim_one};
use hapax_core::telemetry;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use super::memory::Memory;
use super::*;
use crate::counters::CounterNames;

/// Counts the copies that the ledger has caught.
#[derive(Default)]
struct CaughtRecorder(Arc<AtomicU64>);

impl Recorder for CaughtRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let is_caught = key.name() == telemetry::names::CAUGHT && key.labels().any(|label| label.value() == "ledger");
        if is_caught { Counter::from_arc(Arc::clone(&self.0)) } else { Counter::noop() }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn the_counters_of_a_ledger_exist_from_when_it_is_opened() {
    let recorder = CounterNames::default();
    metrics::with_local_recorder(&recorder, || telemetry::ledger_opened(&terms()));
    assert_eq!(recorder.take(), ["hapax_caught_total{layer=\"ledger\"}", "hapax_ledger_unfinished_total"]);
}

#[test]
fn a_claim_counts_every_copy_that_runs_no_second_time() {
    let mut memory = Memory::default();
    memory.rows.insert(operation(1), row("done", None));
    memory.locked.insert(operation(2));
    memory.dead.insert(operation(3));
    let other_payload = Call::new(operation(1)).fingerprint(OTHER_PAYLOAD);
    for (call, is_caught) in [(call(1), 1), (call(2), 1), (call(3), 1), (call(4), 0), (other_payload, 0)] {
        let recorder = CaughtRecorder::default();
        let _guard = metrics::set_default_local_recorder(&recorder);
        let claimed = claim_one::<_, String>(&mut memory.open(), terms().namespace(), &call).now_or_never();
        drop(claimed.expect("rows in memory answer at once").expect("the operation was not claimed before"));
        assert_eq!(recorder.0.load(Ordering::SeqCst), is_caught, "{call:?}");
    }
}

#[test]
fn an_abandoned_entry_is_not_counted_and_a_dropped_one_is() {
    let counted = |give_up: fn(Entry)| {
        let recorder = CounterNames::default();
        metrics::with_local_recorder(&recorder, || {
            let memory = Memory::default();
            let claimed = claim_one::<_, String>(&mut memory.open(), terms().namespace(), &call(1)).now_or_never();
            let Some(Ok(Claimed::Fresh(entry))) = claimed else { panic!("the operation is new") };
            recorder.take();
            give_up(entry);
        });
        recorder.take()
    };
    assert_eq!(counted(Entry::abandon), Vec::<String>::new());
    assert_eq!(counted(drop), ["hapax_ledger_unfinished_total"]);
}

//! The counters that the alerts ask for, in a Rust service that has every layer.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::broker::{Job, Process, Verdict};
use hapax_core::ledger::Terms;
use hapax_core::outbox::{MemoryOutbox, OutgoingEvent, Published, Sink};
use hapax_core::relay::Relay;
use hapax_core::runtime::Runtime;
use hapax_core::store::{Finding, Memory, MemorySettings};
use hapax_core::worker::{MessageIdentity, Worker};
use hapax_core::{Gate, Result, Settings, telemetry};
use hapax_testkit::{MemoryBroker, MemoryDeadLetters, VirtualTime};

use crate::counters::CounterNames;

/// A sink that gets nothing, and a handler of no messages.
#[derive(Debug)]
struct Unused(Arc<str>);

#[async_trait]
impl Sink for Unused {
    fn name(&self) -> &Arc<str> {
        &self.0
    }

    fn max_len(&self) -> usize {
        1
    }

    fn window(&self) -> Option<Duration> {
        None
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    async fn publish(&self, _: &Arc<OutgoingEvent>) -> Published {
        unreachable!("the outbox is empty")
    }

    async fn close(&self) {}
}

#[async_trait]
impl Process for Unused {
    async fn process(&self, _: Vec<Job>) -> Vec<Verdict> {
        unreachable!("the topic is empty")
    }
}

/// The counters whose increase an alert asks for, with the labels that it names. Those of the binary itself are
/// left out.
fn asked_by_alerts() -> Vec<String> {
    let alerts = include_str!("../../../../assets/alerts.yml");
    let asked = ["increase(", "rate("].iter().flat_map(|function| alerts.split(function).skip(1));
    let names = asked.map(|query| query.split(['[', ')']).next().unwrap().to_owned());
    let is_of_binary = |name: &str| name.starts_with("hapax_gateway_") || name.starts_with("hapax_log_");
    names.filter(|name| !is_of_binary(name) && !name.contains("_bucket")).collect()
}

#[test]
fn each_counter_of_an_alert_exists_before_its_first_event() {
    let (recorder, time) = (CounterNames::default(), VirtualTime::new(1));
    let process = time.process();
    let runtime = Arc::clone(&process) as Arc<dyn Runtime>;
    let store = Arc::new(Memory::with(Arc::clone(&runtime), MemorySettings::default()));
    let _guard = metrics::set_default_local_recorder(&recorder);

    let _gate =
        Gate::builder(Arc::clone(&store) as _, Settings::default()).runtime(Arc::clone(&runtime)).build().unwrap();
    telemetry::ledger_opened(&Terms::new("transfers").unwrap());
    let source = MemoryBroker::prefix(Arc::clone(&runtime), 1).source();
    let worker = Worker::builder(source, Arc::new(Unused("none".into())), Arc::new(MemoryDeadLetters::new()))
        .identity(MessageIdentity::new("group").unwrap())
        .runtime(Arc::clone(&runtime))
        .build()
        .unwrap();
    process.spawn(Box::pin(async move { drop(worker.run(pending()).await) }));
    let outbox = Arc::new(MemoryOutbox::new(Arc::clone(&runtime)));
    let relay = Relay::builder(Arc::clone(&outbox) as _, store, Arc::new(Unused("none".into())))
        .upkeep(outbox)
        .runtime(runtime)
        .build()
        .unwrap();
    process.spawn(Box::pin(async move { drop(relay.run(pending()).await) }));
    time.run_for(Duration::from_secs(1));

    let (registered, asked) = (recorder.take(), asked_by_alerts());
    assert!(asked.len() > 8, "{asked:?}");
    for counter in asked {
        let is_asked =
            |line: &String| line.strip_prefix(&counter).is_some_and(|rest| matches!(rest.get(..1), None | Some("{")));
        assert!(registered.iter().any(is_asked), "{counter} is not among {registered:?}");
    }
}

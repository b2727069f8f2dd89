//! The source suite on the brokers in memory, under virtual time.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::{Message, Source};
use hapax_core::runtime::Runtime;
use hapax_testkit::{
    MemoryBroker, Process, ProcessPart, SourceBackend, SourceCapability, SourceCase, SourceSetup, VirtualTime,
    WorkerHost, source_main,
};

/// How long a case may take in virtual time.
const LIMIT: Duration = Duration::from_secs(3600);
const LEASE: Duration = Duration::from_secs(6);
const PARTITIONS: u32 = 4;

fn main() -> ExitCode {
    const NO_LANES: &str = "readers of a queue share one lane, which never moves";
    source_main(&[
        SourceBackend::new("memory_prefix", |case| run(case, |time| MemoryBroker::prefix(time, PARTITIONS))),
        SourceBackend::new("memory_each", |case| run(case, |time| MemoryBroker::each(time, LEASE)))
            .lacking(&[(SourceCapability::Rebalance, NO_LANES), (SourceCapability::Loss, NO_LANES)]),
    ])
}

fn run(case: SourceCase, broker: impl Fn(Arc<dyn Runtime>) -> MemoryBroker) {
    let time = VirtualTime::new(7);
    let server = time.process();
    let broker = broker(Arc::clone(&server) as _);
    let setup = Arc::new(MemorySetup { server: Arc::clone(&server), broker });
    let ran = server.start(async move { case.run(setup).await });
    assert!(time.run_until(LIMIT, || ran.output()).is_some(), "the case does not end");
}

struct MemorySetup {
    server: Arc<Process>,
    broker: MemoryBroker,
}

struct MemoryHost(Arc<Process>);

#[async_trait]
impl SourceSetup for MemorySetup {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.server) as _
    }

    fn start_process(&self) -> Arc<dyn WorkerHost> {
        Arc::new(MemoryHost(self.server.sibling()))
    }

    async fn connect(&self, _host: &dyn WorkerHost) -> Box<dyn Source> {
        self.broker.source()
    }

    async fn publish(&self, messages: Vec<Message>) {
        let partitions = self.broker.partitions();
        for (place, message) in messages.into_iter().enumerate() {
            let of_key = |key: &Bytes| key.iter().map(|byte| u32::from(*byte)).sum();
            let spread = message.ordering_key.as_ref().map_or(u32::try_from(place).unwrap_or(0), of_key);
            self.broker.publish(spread % partitions, message);
        }
    }

    async fn unfinished(&self) -> u64 {
        self.broker.unfinished()
    }

    fn stale_settlements(&self) -> usize {
        self.broker.stale_settlements()
    }

    async fn lose_lanes(&self) {
        (0..self.broker.partitions()).for_each(|partition| self.broker.lose(partition));
    }
}

impl WorkerHost for MemoryHost {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.0) as _
    }

    fn crash(&self) {
        self.0.crash();
    }

    fn pause(&self) {
        self.0.pause(ProcessPart::Tasks);
        self.0.pause(ProcessPart::Threads);
    }

    fn resume(&self) {
        self.0.resume(ProcessPart::Tasks);
        self.0.resume(ProcessPart::Threads);
    }
}

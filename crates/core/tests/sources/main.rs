//! The source suite on the brokers in memory, under virtual time.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::broker::{Acknowledges, BrokerLease, Capability, Message, Source};
use hapax_core::runtime::Runtime;
use hapax_testkit::{
    MemoryBroker, Process, ProcessPart, SourceBackend, SourceCapability, SourceCase, SourceSetup, SourceTimes,
    VirtualTime, WorkerHost, source_main,
};

/// How long a case may take in virtual time.
const LIMIT: Duration = Duration::from_secs(3600);
const LEASE: Duration = Duration::from_secs(6);
const PARTITIONS: u32 = 4;

const NO_LANES: &str = "readers of a queue share one lane, which never moves";
const NO_SERVER: &str = "a broker in memory has no server";
const KEEPS_ALL: &str = "a broker in memory keeps every message";
const NO_LONGEST: &str = "a lease can be extended for ever";
const NO_EXTENSION: &str = "a lease ends after a while, however often it is extended";
const NO_ORDER: &str = "a queue gives later messages of a key to another reader while the first one is leased";

const IN_MEMORY: [(SourceCapability, &str); 2] =
    [(SourceCapability::Restart, NO_SERVER), (SourceCapability::ExpiringOffsets, KEEPS_ALL)];
const A_QUEUE: [(SourceCapability, &str); 2] =
    [(SourceCapability::Rebalance, NO_LANES), (SourceCapability::Loss, NO_LANES)];
const ENDLESS: (SourceCapability, &str) = (SourceCapability::LongestLease, NO_LONGEST);
const UNORDERED: (SourceCapability, &str) = (SourceCapability::OrderAfterCrash, NO_ORDER);
const BOUNDED: (SourceCapability, &str) = (SourceCapability::Extension, NO_EXTENSION);

fn main() -> ExitCode {
    let lease = |longest| Some(BrokerLease { length: LEASE, longest });
    let plain = Capability {
        acknowledges: Acknowledges::Each,
        redelivers: true,
        delays: true,
        lease: lease(None),
        keeps_order: false,
        delivery_limit: None,
    };
    let ordered = Capability { keeps_order: true, ..plain };
    let at_once = Capability { delays: false, ..plain };
    let bounded = Capability { lease: lease(Some(4 * LEASE)), ..plain };
    let queue = |capability| move |case| run(case, |time| MemoryBroker::queue(time, capability));
    const LIKE_A_TOPIC: &[(SourceCapability, &str)] = &[IN_MEMORY[0], IN_MEMORY[1], ENDLESS];
    const PLAIN: &[(SourceCapability, &str)] =
        &[IN_MEMORY[0], IN_MEMORY[1], A_QUEUE[0], A_QUEUE[1], ENDLESS, UNORDERED];
    const ORDERED: &[(SourceCapability, &str)] = &[IN_MEMORY[0], IN_MEMORY[1], A_QUEUE[0], A_QUEUE[1], ENDLESS];
    const LEASED_FOR_A_WHILE: &[(SourceCapability, &str)] =
        &[IN_MEMORY[0], IN_MEMORY[1], A_QUEUE[0], A_QUEUE[1], UNORDERED, BOUNDED];
    source_main(&[
        SourceBackend::new("memory_prefix", |case| run(case, |time| MemoryBroker::prefix(time, PARTITIONS)))
            .lacking(LIKE_A_TOPIC),
        SourceBackend::new("memory_each", queue(plain)).lacking(PLAIN),
        SourceBackend::new("memory_ordered", queue(ordered)).lacking(ORDERED),
        SourceBackend::new("memory_undelayed", queue(at_once)).lacking(PLAIN),
        SourceBackend::new("memory_bounded", queue(bounded)).lacking(LEASED_FOR_A_WHILE),
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

struct MemoryHost {
    process: Arc<Process>,
    broker: MemoryBroker,
}

#[async_trait]
impl SourceSetup for MemorySetup {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.server) as _
    }

    fn times(&self) -> SourceTimes {
        SourceTimes {
            slow: Duration::from_secs(30),
            settle: Duration::from_secs(3),
            backoff: Duration::from_millis(50),
            look: Duration::from_millis(10),
        }
    }

    fn start_process(&self) -> Arc<dyn WorkerHost> {
        Arc::new(MemoryHost { process: self.server.sibling(), broker: self.broker.clone() })
    }

    async fn publish(&self, messages: Vec<Message>) {
        let partitions = self.broker.partitions();
        for (place, message) in messages.into_iter().enumerate() {
            let of_key = |key: &Bytes| key.iter().map(|byte| u32::from(*byte)).sum();
            let spread = message.ordering_key.as_ref().map_or(u32::try_from(place).unwrap_or(0), of_key);
            self.broker.publish(spread % partitions, message);
        }
    }

    async fn unfinished(&self) -> BTreeSet<usize> {
        self.broker.unfinished_places()
    }

    fn stale_settlements(&self) -> usize {
        self.broker.stale_settlements()
    }

    async fn lose_lanes(&self) {
        (0..self.broker.partitions()).for_each(|partition| self.broker.lose(partition));
    }
}

#[async_trait]
impl WorkerHost for MemoryHost {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.process) as _
    }

    async fn connect(&self) -> Box<dyn Source> {
        self.broker.source()
    }

    fn crash(&self) {
        self.process.crash();
    }

    fn pause(&self) {
        self.process.pause(ProcessPart::Tasks);
        self.process.pause(ProcessPart::Threads);
    }

    fn resume(&self) {
        self.process.resume(ProcessPart::Tasks);
        self.process.resume(ProcessPart::Threads);
    }
}

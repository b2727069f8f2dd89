//! A queue of its own for each case.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::broker::Message;
use hapax_core::runtime::{Runtime, Tokio};
use hapax_testkit::servers::ElasticMqServer;
use hapax_testkit::{
    SourceBackend, SourceCapability, SourceCase, SourceProcess, SourceSetup, SourceTimes, WorkerHost, run_source_case,
};

use crate::elasticmq::TestQueue;
use crate::recorder::Recorder;

/// The lease, in seconds. Long enough for a busy machine: a lease that ends while its worker lives fails a case.
const VISIBILITY: u32 = 5;

const NO_LANES: &str = "all workers share one lane, which never moves";
const TOO_LONG: &str = "a lease lasts up to twelve hours; a test of the source counts them";
const NO_OFFSETS: &str = "SQS has no offsets";
const NO_ORDER: &str = "a standard queue has no order";

const NO_ORDER_AFTER_RESTART: &str =
    "after a restart, ElasticMQ orders the messages of a group by the ends of their leases";

const LACKING: &[(SourceCapability, &str)] = &[
    // Only a FIFO queue lacks it.
    (SourceCapability::Restart, NO_ORDER_AFTER_RESTART),
    (SourceCapability::Rebalance, NO_LANES),
    (SourceCapability::Loss, NO_LANES),
    (SourceCapability::LongestLease, TOO_LONG),
    (SourceCapability::ExpiringOffsets, NO_OFFSETS),
    // What follows only a standard queue lacks.
    (SourceCapability::Order, NO_ORDER),
    (SourceCapability::OrderAfterCrash, NO_ORDER),
];

pub(crate) fn fifo() -> SourceBackend {
    backend("sqs-fifo", ".fifo").lacking(&LACKING[..5])
}

pub(crate) fn standard() -> SourceBackend {
    backend("sqs-standard", "").lacking(&LACKING[1..])
}

fn backend(name: &'static str, suffix: &'static str) -> SourceBackend {
    SourceBackend::new(name, move |case| run_source_case(case, async || SqsSetup::new(case, suffix).await))
        .requiring("elasticmq")
        .at_once(6)
}

struct SqsSetup {
    server: Arc<ElasticMqServer>,
    queue: TestQueue,
    recorder: Recorder,
    published: AtomicUsize,
    runtime: Arc<dyn Runtime>,
}

impl SqsSetup {
    async fn new(case: SourceCase, suffix: &'static str) -> Self {
        let server = match case.needs {
            // The others go on meanwhile.
            Some(SourceCapability::Restart) => Arc::new(ElasticMqServer::start(&[]).await.unwrap()),
            _ => ElasticMqServer::shared().await.unwrap(),
        };
        let queue = TestQueue::named(&server, &format!("{}{suffix}", case.name));
        queue.create().await;
        let recorder = Recorder::start(server.address()).await;
        Self { server, queue, recorder, published: AtomicUsize::new(0), runtime: Arc::new(Tokio::current()) }
    }
}

#[async_trait]
impl SourceSetup for SqsSetup {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn times(&self) -> SourceTimes {
        SourceTimes {
            slow: Duration::from_secs(12),
            settle: Duration::from_secs(1),
            backoff: Duration::from_millis(10),
            look: Duration::from_millis(30),
        }
    }

    fn start_process(&self) -> Arc<dyn WorkerHost> {
        let (address, queue) = (self.recorder.address(), &self.queue.name);
        let url = format!("sqs+http://{address}/{queue}?visibility={VISIBILITY}&wait=1");
        Arc::new(SourceProcess::start(url))
    }

    fn is_ordered(&self) -> bool {
        self.queue.is_fifo()
    }

    async fn publish(&self, messages: Vec<Message>) {
        for message in &messages {
            let number = self.published.fetch_add(1, Ordering::Relaxed);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let headers: Vec<(String, String)> =
                message.headers.iter().map(|(name, value)| (name.to_owned(), text(value))).collect();
            // Without an ordering key, a group of its own.
            let group = message.ordering_key.as_ref().map_or_else(|| format!("message-{number}"), |key| text(key));
            self.queue.send(&text(&message.payload), &headers, &group, number).await;
        }
    }

    async fn unfinished(&self) -> BTreeSet<usize> {
        // Before the count: a message may be published meanwhile.
        let deleted = self.recorder.deleted();
        (0..self.published.load(Ordering::Relaxed)).filter(|number| !deleted.contains(number)).collect()
    }

    async fn restart_broker(&self) {
        self.server.kill();
        self.server.restart().await.unwrap();
    }
}

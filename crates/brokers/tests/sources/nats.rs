//! A stream of its own for each case.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use async_nats::jetstream::{self, Context, stream};
use async_trait::async_trait;
use futures_util::TryStreamExt;
use hapax_core::broker::Message;
use hapax_core::runtime::{Runtime, Tokio};
use hapax_testkit::servers::NatsServer;
use hapax_testkit::{
    SourceBackend, SourceCapability, SourceCase, SourceProcess, SourceSetup, SourceTimes, WorkerHost, run_source_case,
};

use crate::DEADLINE;

/// The lease, in seconds. Long enough for a busy machine: a lease that ends while its worker lives fails a case.
const ACK_WAIT: u32 = 5;

pub(crate) fn backend() -> SourceBackend {
    const NO_LANES: &str = "all workers share one lane, which never moves";
    const NO_LONGEST: &str = "a delivery can be extended for ever";
    const NO_OFFSETS: &str = "JetStream has no offset to refuse: it skips what the stream has deleted";
    SourceBackend::new("nats", |case| run_source_case(case, async || NatsSetup::new(case).await))
        .requiring("nats")
        .at_once(12)
        .lacking(&[
            (SourceCapability::Rebalance, NO_LANES),
            (SourceCapability::Loss, NO_LANES),
            (SourceCapability::LongestLease, NO_LONGEST),
            (SourceCapability::ExpiringOffsets, NO_OFFSETS),
        ])
}

struct NatsSetup {
    server: Arc<NatsServer>,
    context: Context,
    name: &'static str,
    published: AtomicUsize,
    runtime: Arc<dyn Runtime>,
}

impl NatsSetup {
    async fn new(case: SourceCase) -> Self {
        let server = match case.needs {
            // The others go on meanwhile.
            Some(SourceCapability::Restart) => Arc::new(NatsServer::start(&[]).await.unwrap()),
            _ => NatsServer::shared().await.unwrap(),
        };
        let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
        let config = stream::Config {
            name: case.name.into(),
            subjects: vec![format!("{}.>", case.name)],
            // What is acknowledged leaves the stream, so that it shows.
            retention: stream::RetentionPolicy::WorkQueue,
            ..Default::default()
        };
        context.create_stream(config).await.unwrap();
        let runtime = Arc::new(Tokio::current());
        Self { server, context, name: case.name, published: AtomicUsize::new(0), runtime }
    }

    /// Sends one message under a subject of its own, until the server has it.
    async fn send(&self, message: &Message) {
        let mut headers = HeaderMap::new();
        for (name, value) in message.headers.iter() {
            headers.append(name, String::from_utf8_lossy(value).as_ref());
        }
        if let Some(key) = &message.ordering_key {
            headers.append("Order", String::from_utf8_lossy(key).as_ref());
        }
        let place = self.published.fetch_add(1, Ordering::Relaxed);
        headers.append("Nats-Msg-Id", place.to_string());
        let subject = format!("{}.{place}", self.name);
        let begun = Instant::now();
        loop {
            let sent =
                self.context.publish_with_headers(subject.clone(), headers.clone(), message.payload.clone()).await;
            if let Ok(sent) = sent
                && sent.await.is_ok()
            {
                return;
            }
            assert!(begun.elapsed() < DEADLINE, "the server takes no message");
            hapax_testkit::pause().await;
        }
    }

    async fn left(&self) -> Option<BTreeSet<usize>> {
        let stream = self.context.get_stream(self.name).await.ok()?;
        // A server that was killed may keep a message in the stream that its consumer has finished.
        let floor = match stream.consumer_info("d").await {
            Ok(info) => info.ack_floor.stream_sequence,
            Err(error) if matches!(error.kind(), ConsumerInfoErrorKind::NotFound) => 0,
            Err(_) => return None,
        };
        let subjects = stream.info_with_subjects(">").await.ok()?;
        let subjects: Vec<(String, usize)> = subjects.try_collect().await.ok()?;
        let place = |(subject, _): (String, usize)| subject.rsplit('.').next().unwrap().parse().unwrap();
        // The messages of the stream are numbered from 1 on.
        Some(subjects.into_iter().map(place).filter(|place| *place as u64 >= floor).collect())
    }
}

#[async_trait]
impl SourceSetup for NatsSetup {
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
        let (url, stream) = (self.server.url(), self.name);
        Arc::new(SourceProcess::start(format!("{url}/{stream}?durable=d&ack-wait={ACK_WAIT}&order=header:Order")))
    }

    async fn publish(&self, messages: Vec<Message>) {
        for message in &messages {
            self.send(message).await;
        }
    }

    async fn unfinished(&self) -> BTreeSet<usize> {
        let begun = Instant::now();
        loop {
            if let Some(left) = self.left().await {
                return left;
            }
            assert!(begun.elapsed() < DEADLINE, "the server does not tell what is left");
            hapax_testkit::pause().await;
        }
    }

    async fn restart_broker(&self) {
        self.server.kill();
        self.server.restart().await.unwrap();
    }
}

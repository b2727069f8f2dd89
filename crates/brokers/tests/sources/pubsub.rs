//! A topic with a subscription of its own for each case.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hapax_core::broker::Message;
use hapax_core::runtime::{Runtime, Tokio};
use hapax_net::http::HttpClient;
use hapax_testkit::servers::{PsTestServer, PubSubServer};
use hapax_testkit::{
    SourceBackend, SourceCapability, SourceCase, SourceProcess, SourceSetup, SourceTimes, WorkerHost, run_source_case,
};
use http::Method;
use serde_json::{Value, json};

use crate::emulator::{Emulator, ask, http_client};

/// The header in which the suite numbers messages.
const NUMBER: &str = "Suite-Number";

/// The lease, in seconds: the shortest that there is.
const DEADLINE: u32 = 10;

const NO_LANES: &str = "all workers share one lane, which never moves";
const NO_LONGEST: &str = "a lease can be extended for ever";
const NO_OFFSETS: &str = "Pub/Sub has no offsets";
const IN_MEMORY: &str = "a stand-in for Pub/Sub keeps everything in memory";
const NO_ORDER: &str = "the emulator loses the order of a key with the first message that is given back";

const LACKING: &[(SourceCapability, &str)] = &[
    (SourceCapability::Restart, IN_MEMORY),
    (SourceCapability::Rebalance, NO_LANES),
    (SourceCapability::Loss, NO_LANES),
    (SourceCapability::LongestLease, NO_LONGEST),
    (SourceCapability::ExpiringOffsets, NO_OFFSETS),
    // What follows only the emulator lacks.
    (SourceCapability::Order, NO_ORDER),
    (SourceCapability::OrderAfterCrash, NO_ORDER),
];

pub(crate) fn emulator() -> SourceBackend {
    let run = async |case: SourceCase| EmulatorSetup::new(case).await;
    SourceBackend::new("pubsub", move |case| run_source_case(case, async || run(case).await))
        .lacking(LACKING)
        .requiring("pubsub")
        .at_once(8)
}

pub(crate) fn pstest() -> SourceBackend {
    let run = async |case: SourceCase| PsTestSetup::new(case).await;
    SourceBackend::new("pstest", move |case| run_source_case(case, async || run(case).await))
        .lacking(&LACKING[..5])
        .requiring("pstest")
        .at_once(8)
}

const TIMES: SourceTimes = SourceTimes {
    slow: Duration::from_secs(14),
    settle: Duration::from_secs(1),
    backoff: Duration::from_millis(10),
    look: Duration::from_millis(100),
};

/// The name of the topic of a case. A name has at most 255 characters.
fn topic(case: SourceCase) -> String {
    case.name.replace('_', "-")
}

fn attributes(message: &Message) -> Vec<(String, String)> {
    message.headers.iter().map(|(name, value)| (name.to_owned(), String::from_utf8_lossy(value).into_owned())).collect()
}

struct EmulatorSetup {
    server: Arc<PubSubServer>,
    emulator: Emulator,
    topic: String,
    looks: AtomicUsize,
    runtime: Arc<dyn Runtime>,
}

impl EmulatorSetup {
    async fn new(case: SourceCase) -> Self {
        let server = PubSubServer::shared().await.unwrap();
        let (emulator, topic) = (Emulator::at(server.address()), topic(case));
        emulator.create_topic(&topic).await;
        emulator.subscribe(&topic, &topic, json!({ "ackDeadlineSeconds": 10 })).await;
        emulator.subscribe(&topic, &format!("{topic}-look"), json!({ "ackDeadlineSeconds": 600 })).await;
        Self { server, emulator, topic, looks: AtomicUsize::new(0), runtime: Arc::new(Tokio::current()) }
    }
}

#[async_trait]
impl SourceSetup for EmulatorSetup {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn times(&self) -> SourceTimes {
        TIMES
    }

    fn start_process(&self) -> Arc<dyn WorkerHost> {
        Arc::new(SourceProcess::start(format!("{}&deadline={DEADLINE}", self.server.named(&self.topic))))
    }

    fn is_ordered(&self) -> bool {
        false
    }

    async fn publish(&self, messages: Vec<Message>) {
        for message in &messages {
            self.emulator.publish(&self.topic, &message.payload, &attributes(message), "").await;
        }
    }

    async fn unfinished(&self) -> BTreeSet<usize> {
        let (looker, number) = (format!("{}-look", self.topic), self.looks.fetch_add(1, Ordering::Relaxed));
        let left = self.emulator.unacknowledged(&self.topic, &looker, number).await;
        left.iter().map(|message| message.attributes[NUMBER].parse().unwrap()).collect()
    }
}

struct PsTestSetup {
    server: Arc<PsTestServer>,
    http: HttpClient,
    topic: String,
    runtime: Arc<dyn Runtime>,
}

impl PsTestSetup {
    async fn new(case: SourceCase) -> Self {
        let (server, topic) = (PsTestServer::shared().await.unwrap(), topic(case));
        let setup = Self { server, http: http_client(), topic, runtime: Arc::new(Tokio::current()) };
        setup.ask(Method::POST, "create", &json!({})).await;
        setup
    }

    async fn ask(&self, method: Method, question: &str, body: &Value) -> Value {
        let url = format!("http://{}/{question}?topic={}", self.server.test_address(), self.topic);
        let (status, answer) = ask(&self.http, method, &url, body).await;
        assert!(status.is_success(), "{question}: {status}");
        answer
    }
}

#[async_trait]
impl SourceSetup for PsTestSetup {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn times(&self) -> SourceTimes {
        TIMES
    }

    fn start_process(&self) -> Arc<dyn WorkerHost> {
        Arc::new(SourceProcess::start(format!("{}&deadline={DEADLINE}", self.server.named(&self.topic))))
    }

    async fn publish(&self, messages: Vec<Message>) {
        for message in &messages {
            let key = message.ordering_key.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            let attributes: serde_json::Map<String, Value> =
                attributes(message).into_iter().map(|(name, value)| (name, value.into())).collect();
            let data = BASE64_STANDARD.encode(&message.payload);
            let message = json!({ "data": data, "attributes": attributes, "orderingKey": key });
            self.ask(Method::POST, "publish", &message).await;
        }
    }

    async fn unfinished(&self) -> BTreeSet<usize> {
        let messages = self.ask(Method::GET, "messages", &Value::Null).await;
        let left = messages.as_array().unwrap().iter().filter(|message| message["acks"] == 0);
        left.map(|message| message["attributes"][NUMBER].as_str().unwrap().parse().unwrap()).collect()
    }
}

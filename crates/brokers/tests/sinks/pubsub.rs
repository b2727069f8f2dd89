//! A topic of its own for each case.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_brokers::{PubSubSink, PubSubSinkConfig, PubSubSource};
use hapax_core::broker::{Headers, Source};
use hapax_core::outbox::{Sink, TopicTemplate};
use hapax_core::runtime::{Runtime, Tokio};
use hapax_testkit::servers::PubSubServer;
use hapax_testkit::{ArrivedEvent, SinkBackend, SinkCapability, SinkCase, SinkOptions, SinkSetup, run_sink_case};
use parking_lot::Mutex;
use serde_json::json;

use crate::emulator::{Emulator, StoredMessage};

/// A word behind the name of each case.
const WORD: &str = "suite";

const LACKING: &[(SinkCapability, &str)] = &[
    (SinkCapability::Restart, "the emulator keeps everything in memory"),
    (SinkCapability::SmallLimit, "the limit of Pub/Sub is the same for every topic"),
];

pub(crate) fn backend() -> SinkBackend {
    SinkBackend::new("pubsub", move |case| run_sink_case(case, async || PubSubSetup::new(case).await))
        .lacking(LACKING)
        .requiring("pubsub")
        .at_once(4)
}

struct PubSubSetup {
    server: Arc<PubSubServer>,
    emulator: Emulator,
    case: String,
    topic: String,
    /// What arrived so far.
    arrived: Mutex<Vec<ArrivedEvent>>,
    runtime: Arc<dyn Runtime>,
}

impl PubSubSetup {
    async fn new(case: SinkCase) -> Self {
        let server = PubSubServer::shared().await.unwrap();
        let (emulator, case_name) = (Emulator::at(server.address()), case.name.replace('_', "-"));
        let (topic, runtime) = (format!("{case_name}-{WORD}"), Arc::new(Tokio::current()));
        let setup = Self { server, emulator, case: case_name, topic, arrived: Mutex::default(), runtime };
        if case.needs != Some(SinkCapability::MissingTopic) {
            setup.create_topic().await;
        }
        setup
    }

    fn worker(&self) -> String {
        format!("{}-worker", self.topic)
    }

    fn read(&self, message: &StoredMessage) -> ArrivedEvent {
        let mut headers = Headers::default();
        for (name, value) in &message.attributes {
            headers.push(name.as_str(), value.clone());
        }
        let key = message.attributes.get("ce-partitionkey").cloned().unwrap_or_default();
        assert_eq!(key, message.ordering_key);
        ArrivedEvent {
            id: message.attributes["ce-id"].clone(),
            name: self.topic(),
            ordering_key: (!key.is_empty()).then(|| Bytes::from(key)),
            headers,
            payload: message.data.clone(),
        }
    }
}

#[async_trait]
impl SinkSetup for PubSubSetup {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.runtime)
    }

    fn topic(&self) -> String {
        self.topic.clone()
    }

    async fn open(&self, options: SinkOptions) -> Arc<dyn Sink> {
        let address = options.address.unwrap_or(self.server.address());
        let config: PubSubSinkConfig = format!("pubsub://shop?endpoint=http://{address}").parse().unwrap();
        let config = config.topic(options.topic).timeout(options.timeout);
        Arc::new(PubSubSink::open(config, self.runtime()).unwrap())
    }

    async fn arrived(&self) -> Vec<ArrivedEvent> {
        loop {
            let messages = self.emulator.pull(&self.topic).await;
            if messages.is_empty() {
                return self.arrived.lock().clone();
            }
            self.emulator.acknowledge(&self.topic, &messages).await;
            let events: Vec<ArrivedEvent> = messages.iter().map(|message| self.read(message)).collect();
            self.arrived.lock().extend(events);
        }
    }

    fn split_topic(&self) -> (TopicTemplate, String) {
        (format!("{}-{{topic}}", self.case).parse().unwrap(), WORD.into())
    }

    fn invalid_topic(&self) -> String {
        "orders of today".into()
    }

    fn address(&self) -> SocketAddr {
        self.server.address()
    }

    async fn create_topic(&self) {
        self.emulator.create_topic(&self.topic).await;
        for subscription in [self.topic.clone(), self.worker()] {
            let settings = json!({ "ackDeadlineSeconds": 60, "enableMessageOrdering": true });
            self.emulator.subscribe(&self.topic, &subscription, settings).await;
        }
    }

    async fn source(&self) -> Box<dyn Source> {
        let url = self.server.named(&self.worker()).parse().unwrap();
        Box::new(PubSubSource::connect(&url, self.runtime()).await.unwrap())
    }
}
